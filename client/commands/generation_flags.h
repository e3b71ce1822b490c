// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_COMMANDS_GENERATION_FLAGS_H_
#define DEEPPCR_CLIENT_COMMANDS_GENERATION_FLAGS_H_

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/array.h"
#include "deeppcr/v1/deeppcr.pb.h"

namespace deeppcr {

// --steps, --class and --conditioning: the flags for diffusion models.
struct GenerationFlags {
  int64_t steps = 0;
  std::string classes;
  std::string conditioning;
  void Add(CLI::App* app);

  // Errors: kInvalidArgument if any of these flags is set; for models that take inputs.
  absl::Status CheckUnset() const;

  // One label per sample, as CycleClasses makes them.
  absl::StatusOr<std::vector<int32_t>> Labels(const v1::GetModelResponse& model,
                                              uint64_t first_sample, int64_t count) const;

  // The conditioning [m, input_dim], without shape if the model takes none. Errors: as ReadRows;
  // kInvalidArgument if it is given but not taken, or taken but not given.
  absl::StatusOr<Array> LoadConditioning(const v1::GetModelResponse& model,
                                         const std::string& format) const;
};

// Repeats a single row for `count` samples. Errors: kInvalidArgument naming `what` unless there are
// 1 or `count` rows, or if the result would be too large.
absl::Status SpreadRows(int64_t count, std::string_view what, Array* array);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_COMMANDS_GENERATION_FLAGS_H_
