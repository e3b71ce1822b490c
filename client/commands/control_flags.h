// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_COMMANDS_CONTROL_FLAGS_H_
#define DEEPPCR_CLIENT_COMMANDS_CONTROL_FLAGS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/array.h"
#include "client/batched_generate.h"
#include "deeppcr/v1/deeppcr.pb.h"

namespace deeppcr {

// Flags of what a generation says about its process beside steps, condition and noise: guidance,
// scales of the noise, known elements, a beginning that is given, and bounds.
class ControlFlags {
 public:
  // with_bounds: what is answered are samples.
  void Add(CLI::App* app, bool with_bounds);

  // Errors: kInvalidArgument if any of these flags is set; for models that take inputs.
  absl::Status CheckUnset() const;

  // Reads the files. Errors: as ReadRows.
  absl::Status ReadFiles(const v1::GetModelResponse& model, const std::string& format);
  // Rows of the file of states to begin at; 0: none.
  int64_t rows() const { return initial_samples_.shape.empty() ? 0 : initial_samples_.rows(); }

  // The steps that are made of num_inference_steps. Errors: kInvalidArgument.
  absl::StatusOr<int64_t> StepsMade(int64_t num_inference_steps) const;

  // Sets the controls of a generation that has its number of samples, after ReadFiles. This object
  // must outlive it. Errors: kInvalidArgument naming the flag.
  absl::Status Take(Generation* generation);

 private:
  std::optional<double> guidance_scale_, temperature_, initial_temperature_;
  std::optional<double> noise_clip_, initial_noise_clip_;
  std::string known_;
  int64_t first_step_ = 0;
  std::vector<float> lower_, upper_;
  std::string null_conditioning_path_, initial_samples_path_;
  Array null_conditioning_, initial_samples_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_COMMANDS_CONTROL_FLAGS_H_
