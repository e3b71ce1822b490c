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

// --steps, --class and --conditioning: what a diffusion model is asked for.
struct GenerationFlags {
  int64_t steps = 0;
  std::string classes;
  std::string conditioning;
  void Add(CLI::App* app);

  // Errors: kInvalidArgument if any is set, for a model that takes inputs instead.
  absl::Status CheckUnset() const;

  // One label per sample, as CycleClasses makes them.
  absl::StatusOr<std::vector<int32_t>> Labels(const v1::GetModelResponse& model,
                                              uint64_t first_sample, int64_t count) const;

  // [m, input_dim], without shape if there is none. Errors: of the file; kInvalidArgument where the
  // model wants none, or one and has none.
  absl::StatusOr<Array> LoadConditioning(const v1::GetModelResponse& model,
                                         const std::string& format) const;
};

// Makes one row serve for `count` samples. Errors: kInvalidArgument for another number than 1 and
// count, naming `what`.
absl::Status SpreadRows(int64_t count, std::string_view what, Array* array);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_COMMANDS_GENERATION_FLAGS_H_
