// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_SAMPLE_INPUTS_H_
#define DEEPPCR_KERNELS_SOLVER_SAMPLE_INPUTS_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"

namespace deeppcr {

// The inputs of n samples of one request. Every span is the caller's memory and outlives what it is
// handed to.
struct SampleInputs {
  int64_t num_samples = 0;        // n >= 1
  std::span<const float> inputs;  // [n, input_dim]
  // Of diffusion models only: sample i draws the noise of (seed, first_sample + i), see
  // kernels/problem/philox.h, unless it is given.
  uint64_t seed = 0;
  uint64_t first_sample = 0;
  std::span<const int32_t> labels;       // [n] in [0, num_classes) where there are classes
  std::span<const float> initial_noise;  // [n, sample_dim], or empty
  std::span<const float> step_noise;     // [n, L, sample_dim], or empty
  // All samples have the noise of the first one, and given noise is of one sample.
  bool same_noise = false;

  std::span<const float> initial_states;  // [n, L + 1, D] for InitialGuess::kPrevious, else empty
};

// The samples [first, first + n) of `all`, as views of the same memory.
SampleInputs SamplesOf(const SampleInputs& all, int64_t first, int64_t n);
// Sample i as a space takes it, views of the same memory. token: may be null.
SampleInput InputOf(const SampleInputs& all, int64_t i, const CancelToken* token);

// Checks of what callers hand to the engine; they validate first, so that an error is a bug of
// ours. Errors: kInvalidArgument.
absl::Status CheckItemSize(std::string_view what, size_t got, int64_t expected);
absl::Status CheckSamples(const SampleInputs& samples, const SystemShape& shape);

// The inputs of samples in memory of their own, for what runs when the request is gone.
class OwnedSampleInputs {
 public:
  OwnedSampleInputs() = default;
  // Copies everything but initial_states.
  explicit OwnedSampleInputs(const SampleInputs& samples);

  // Views of this object, which last until it is moved, changed or gone.
  SampleInputs View() const;

 private:
  int64_t num_samples_ = 0;
  uint64_t seed_ = 0, first_sample_ = 0;
  bool same_noise_ = false;
  std::vector<float> inputs_, initial_noise_, step_noise_;
  std::vector<int32_t> labels_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_SAMPLE_INPUTS_H_
