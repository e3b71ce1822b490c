// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_CUDA_PROGRAM_MIXER_H_
#define DEEPPCR_TESTS_KERNELS_CUDA_PROGRAM_MIXER_H_

// Reverse processes whose programs have what random programs have not: layers of several vectors
// of a row, lines longer than a warp, and samplers with a memory.

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/problem/spec.h"
#include "tests/kernels/program/draft.h"
#include "tests/testing/random_diffusion.h"

namespace deeppcr::testing {

// More elements than a warp has lanes.
inline constexpr int64_t kTokens = 5, kOfToken = 9, kDim = kTokens * kOfToken;
inline constexpr int64_t kConditionDim = 40;

// A denoiser of tokens: norms and layers of each token, of which `hidden` is the widest, and a
// condition whose vector passes a layer of its own and then one that depends on the time too.
inline program::Program Mixer(int64_t hidden) {
  using program::Draft;
  using program::Op;
  using program::ValueId;
  Draft draft(3);
  const ValueId z = draft.State(kDim), time = draft.Time();
  const ValueId shared =
      draft.Along(Op::kSoftmax, draft.Condition(kConditionDim), {1, kConditionDim, 1});
  const ValueId given = draft.Do(Op::kTanh, {draft.Linear(shared, kDim)});
  const ValueId at = draft.Arrange({time}, std::vector<program::Element>(kDim, {0, 0}));
  const ValueId both = draft.Do(Op::kSin, {draft.Add(given, draft.By(Op::kMultiply, at, 0.1))});
  const ValueId mixed = draft.Linear(both, kDim);
  const ValueId norm = draft.Along(Op::kStandardize, z, {kTokens, kOfToken, 1}, 0.1);
  const ValueId inner =
      draft.Linear(draft.Add(norm, mixed), draft.Layer(hidden, kOfToken, true, kTokens));
  const ValueId outer =
      draft.Linear(draft.Do(Op::kSilu, {inner}), draft.Layer(kOfToken, hidden, true, kTokens));
  // Across tokens.
  const ValueId shares = draft.Along(Op::kSoftmax, outer, {1, kTokens, kOfToken});
  const ValueId m = draft.Add(draft.By(Op::kMultiply, outer, 0.2), draft.Multiply(shares, given));
  return draft.Finish(draft.ReverseStep(z, m), m);
}

// A reverse process whose denoiser is a program.
class ProgramProcess {
 public:
  // `step_weights`: what a step is taken to read.
  ProgramProcess(program::Program program, int64_t dim, int64_t num_steps,
                 int64_t step_weights = 1000)
      : program_(std::move(program)), dim_(dim), step_weights_(step_weights) {
    for (int64_t l = 0; l < num_steps; ++l)
      steps_.push_back({.timestep = static_cast<double>(num_steps - l),
                        .x0_z = 1.05,
                        .x0_m = -0.3,
                        .z_z = 0.5,
                        .z_m = 0.05,
                        .z_x0 = 0.4,
                        .sigma = l % 2 == 0 ? 0.1 : 0.0});
  }
  SystemSpec spec() const {
    return DiffusionProgramSpec{.state_dim = dim_,
                                .steps = steps_,
                                .clip_range = 1.5,
                                .program = &program_,
                                .step_weights = step_weights_,
                                .condition_dim = kConditionDim};
  }
  int64_t num_steps() const { return static_cast<int64_t>(steps_.size()); }

 private:
  program::Program program_;
  int64_t dim_, step_weights_;
  std::vector<ReverseStep> steps_;
};

// A named denoiser with a memory and a learned scale of the noise, which are programs by
// themselves.
inline RandomDiffusion WithMemory(int64_t num_steps) {
  return RandomDiffusion({.state_dim = 20,
                          .hidden_dim = 20,
                          .num_steps = num_steps,
                          .output_gain = 0.2,
                          .form = {.carries = true, .noise_scale = NoiseScale::kLearnedRange}});
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_KERNELS_CUDA_PROGRAM_MIXER_H_
