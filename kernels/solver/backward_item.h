// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_SOLVER_BACKWARD_ITEM_H_
#define DEEPPCR_KERNELS_SOLVER_BACKWARD_ITEM_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/base/cancel_token.h"
#include "kernels/iteration/termination.h"
#include "kernels/solver/sample_inputs.h"

namespace deeppcr {

// Ways of the backward pass. Both give the derivative of the states that are handed in; they differ
// in rounding and in dependent stages.
enum class BackwardWay : uint8_t {
  kSequential,  // step by step
  kParallel,    // the transposed reverse scan over intervals
};
// "sequential", "parallel".
std::string_view ToString(BackwardWay way);

struct BackwardOptions {
  BackwardWay way = BackwardWay::kSequential;
  int64_t shooting_interval = 0;  // C in [1, L] of the parallel way; 0: open, see ResolveBackward

  bool operator==(const BackwardOptions&) const = default;
};

// Cost of one sample's backward pass. Counts come from the loops as they run.
struct BackwardReport {
  // kDirect; kNonFinite where a cotangent has overflowed; kDeadline or kCancelled, and no result.
  Termination termination = Termination::kDirect;
  int64_t dependent_stages = 0;
  int64_t column_passes = 0;  // vectors pushed back through all L steps
};

// Status of a backward pass: kCancelled, kDeadlineExceeded.
absl::Status JudgeReports(std::span<const BackwardReport> reports);

// Cotangents of a sample, at most: more are a request for memory, not for an answer.
inline constexpr int64_t kMostCotangents = 4096;

// The backward pass of the samples of one request. Every span is the caller's memory and outlives
// the call; an empty one of those that are written is not wanted.
struct BackwardItem {
  SampleInputs samples;           // n of them, as they were solved
  std::span<const float> states;  // [n, L + 1, D]: the trajectories that were found, finite
  int64_t columns = 1;            // m in [1, kMostCotangents]: cotangents of each sample
  // Cotangents of the outputs and of the final states, whose effects add up; empty: zero.
  std::span<const float> of_outputs;  // [n, m, output_dim]
  std::span<const float> of_final;    // [n, m, D]

  std::span<float> inputs;  // [n, m, input_dim]
  // Of each row of these, the first so many are answered, and count in estimates of their errors;
  // 0: all.
  int64_t answered_inputs = 0;
  // [n, m, sample_dim]: by z_0; of a diffusion model by its noise.
  std::span<float> initial;
  std::span<float> step_noise;  // [n, m, L, sample_dim]; of systems that draw noise
  // Of dense stacks, where m = 1; see BackwardSample.
  std::span<float> deltas;             // [n, L, D]
  std::span<float> encode_deltas;      // [n, D], where there is an input layer; of programs too
  std::span<float> state_cotangents;   // [n, L, D], where m = 1, of any system that gives them
  std::span<BackwardReport> reports;   // [n]
  const CancelToken* token = nullptr;  // may be null
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_SOLVER_BACKWARD_ITEM_H_
