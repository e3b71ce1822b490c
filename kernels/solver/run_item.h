// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_RUN_ITEM_H_
#define DEEPPCR_KERNELS_SOLVER_RUN_ITEM_H_

#include <cstdint>
#include <span>

#include "kernels/base/cancel_token.h"
#include "kernels/solver/progress.h"
#include "kernels/solver/report.h"

namespace deeppcr {

// One request within a batch. Every span is the caller's memory and outlives the call.
struct RunItem {
  int64_t num_samples = 0;        // n >= 1
  std::span<const float> inputs;  // [n, input_dim]
  // Members of diffusion models only: sample i draws the noise of (seed, first_sample + i), see
  // kernels/problem/philox.h, unless the noise is given.
  uint64_t seed = 0;
  uint64_t first_sample = 0;
  std::span<const int32_t> labels;       // [n] in [0, num_classes) where there are classes
  std::span<const float> initial_noise;  // [n, D], or empty
  std::span<const float> step_noise;     // [n, L, D], or empty

  std::span<const float> initial_states;  // [n, L + 1, D] for InitialGuess::kPrevious, else empty
  std::span<float> outputs;               // [n, output_dim]
  std::span<float> final_states;          // [n, D]: z_L, or empty if not wanted
  std::span<float> trajectory;            // [n, L + 1, D], or empty if not wanted
  std::span<SampleReport> reports;        // [n]
  const CancelToken* token = nullptr;     // may be null
  ProgressListener* listener = nullptr;   // may be null
};

// The inputs of samples [first, first + n) of a request, with nothing to write to.
inline RunItem InputsOf(const RunItem& request, int64_t first, int64_t n) {
  const auto rows = [&](auto span) {
    const size_t row = span.size() / static_cast<size_t>(request.num_samples);
    return span.subspan(static_cast<size_t>(first) * row, static_cast<size_t>(n) * row);
  };
  return {.num_samples = n,
          .inputs = rows(request.inputs),
          .seed = request.seed,
          .first_sample = request.first_sample + static_cast<uint64_t>(first),
          .labels = rows(request.labels),
          .initial_noise = rows(request.initial_noise),
          .step_noise = rows(request.step_noise),
          .initial_states = rows(request.initial_states),
          .token = request.token};
}

// Stages of one Run, as seconds summed over the threads that worked on it, and the wall time of the
// whole.
struct RunTimings {
  double encode_seconds = 0;
  double solve_seconds = 0;
  double decode_seconds = 0;
  double wall_seconds = 0;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_RUN_ITEM_H_
