// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_SOLVER_OPTIONS_H_
#define DEEPPCR_CLIENT_SOLVER_OPTIONS_H_

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deeppcr/v1/deeppcr.pb.h"

namespace deeppcr {

// A solver option as text: on the command line, and in a row of `deeppcr compare`.
struct SolverOptionText {
  const char* name;  // the field of SolverOptions
  const char* help;
};
std::span<const SolverOptionText> SolverOptionTexts();

// Sets the field `name` from text. Only the form is checked here; the server checks ranges.
// Errors: kInvalidArgument naming the option, what was expected and what came.
absl::Status SetSolverOption(std::string_view name, std::string_view value,
                             v1::SolverOptions* options);

// Sets the initial guess to "previous". Errors: kInvalidArgument if the options name another.
absl::Status StartFromPrevious(v1::SolverOptions* options);

// Parses "solver[,option=value]...", on top of `base`. Errors: as SetSolverOption.
absl::StatusOr<v1::SolverOptions> ParseSolverRow(std::string_view text,
                                                 const v1::SolverOptions& base);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_SOLVER_OPTIONS_H_
