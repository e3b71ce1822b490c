// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_KERNEL_H_

// Diffusion models on a GPU: the Process for block_recurrence.h, and the coarse guess.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/diffusion/reverse_step.h"
#include "kernels/cuda/loop/block_recurrence.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

class SampleSteps;

// A Process: one reverse process and the noise and modulation of n samples. Pointers are to device
// memory.
struct DiffusionView {
  static constexpr bool kHasDiagonals = false;

  DenoiserView denoiser;
  int64_t num_steps;                        // L
  int32_t state_dim;                        // D
  int32_t width;                            // W
  const ReverseCoefficients* coefficients;  // [L]
  const HoldCoefficients* holds;            // [L]
  const float* noise;                       // [n, L, D]
  const float* tables;                      // [tables, L, modulation_floats]
  const int32_t* table_of;                  // [n]

  DEEPPCR_DEVICE SampleSteps StepsOf(int64_t sample, int32_t draw = 0) const;
  constexpr int64_t StepFloats(int rows) const { return DenoiserFloats(denoiser, rows); }
  // Rows are states, one per sample: Run(BatchSteps::At(l)) takes each row through its own sample's
  // step.
  template <int S, class Team>
  DEEPPCR_DEVICE DenoiserStep<S, Team, StepRowsAre::kStates> NewStates(const Team& team,
                                                                       float* memory,
                                                                       int rows) const {
    return {team, denoiser, memory, rows, false};
  }
  template <class Team>
  DEEPPCR_DEVICE auto NewSoleStep(const Team& team, float* memory) const {
    return DenoiserStep<1, Team, StepRowsAre::kStates>(team, denoiser, memory, 1, false);
  }
  // Step of one state by a block with the weights in registers: see HeldLayers.
  template <class Team>
  DEEPPCR_DEVICE auto NewHeldStep(const Team& team, float* memory) const {
    return DenoiserStep<1, Team, StepRowsAre::kStates, HeldLayers>(team, denoiser, memory, 1,
                                                                   false);
  }
  template <int S, class Team>
  DEEPPCR_DEVICE DenoiserStep<S, Team> NewStep(const Team& team, float* memory, int rows,
                                               bool probes) const {
    return {team, denoiser, memory, rows, probes};
  }
};

// The steps of one sample.
class SampleSteps {
 public:
  DEEPPCR_DEVICE SampleSteps(const DiffusionView& view, int64_t sample, int32_t draw = 0)
      : view_(view),
        noise_(view.noise + sample * view.num_steps * view.state_dim),
        table_(view.tables +
               view.table_of[sample] * view.num_steps * view.denoiser.modulation_floats()),
        signs_(DrawOfSigns(0, draw, view.num_steps)) {}

  DEEPPCR_DEVICE const float* Noise(int64_t step) const { return noise_ + step * view_.state_dim; }
  DEEPPCR_DEVICE StepView At(int64_t step) const {
    const ReverseCoefficients c = view_.coefficients[step];
    return {c, table_ + step * view_.denoiser.modulation_floats(),
            c.sigma == 0.0F ? nullptr : Noise(step), signs_ + step};
  }
  // Prefetches the modulation and the noise of a step, which come from global memory and which a
  // step that holds its weights would wait for. Weights are the same for all steps. Large
  // modulation rows are not prefetched, as the weights would evict them.
  template <class Team>
  DEEPPCR_DEVICE void Prefetch(const Team& team, int64_t step) const {
    constexpr int kLineFloats = 32;
    const int floats = view_.denoiser.modulation_floats();
    if (step + 1 >= view_.num_steps || floats > kMostPrefetchedModulation) return;
    const float* const row = table_ + (step + 1) * floats;
    auto& context = team.context();
    const int stride = context.num_threads() * kLineFloats;
    for (int at = context.thread() * kLineFloats; at < floats; at += stride)
      context.Prefetch(row + at);
    for (int at = context.thread() * kLineFloats; at < view_.state_dim; at += stride)
      context.Prefetch(Noise(step + 1) + at);
  }

 private:
  const DiffusionView& view_;
  const float* const noise_;
  const float* const table_;
  const int64_t signs_;  // draws the signs of the first step
};

DEEPPCR_DEVICE SampleSteps DiffusionView::StepsOf(int64_t sample, int32_t draw) const {
  return SampleSteps(*this, sample, draw);
}

// Body of a launch of one block per sample: SolveByTeams with HeldLayers.
template <class Team>
DEEPPCR_DEVICE void SolveWithHeldLayers(const Team& team,
                                        const BlockSequentialArgs<DiffusionView>& args) {
  auto step = args.process.NewHeldStep(team, SharedFloats(team.context()));
  SolveSample(team, args, step);
}

// ---- Samples together
// Steps of samples first, first + 1, ..., a row each.
class BatchSteps {
 public:
  struct Steps {
    const DiffusionView& view;
    int64_t first, step;
    DEEPPCR_DEVICE StepView Row(int r) const { return SampleSteps(view, first + r).At(step); }
  };
  DEEPPCR_DEVICE BatchSteps(const DiffusionView& view, int64_t first)
      : view_(view), first_(first) {}
  DEEPPCR_DEVICE Steps At(int64_t step) const { return {view_, first_, step}; }

 private:
  const DiffusionView& view_;
  const int64_t first_;
};

// Calls f(r, sample) for the samples of a team, in the block that leads.
template <class Team, class F>
DEEPPCR_DEVICE void ForSamples(const Team& team, int64_t first, int rows, const F& f) {
  for (int r = 0; team.leads() && r < rows; ++r) f(r, first + r);
}

// Body of a launch of one team per team.samples samples, which read the weights of a layer once for
// all samples. StepFloats(team.samples) of shared memory a block.
template <class Team>
DEEPPCR_DEVICE void SolveBatchesByTeams(const Team& team,
                                        const BlockSequentialArgs<DiffusionView>& args) {
  const DiffusionView& process = args.process;
  auto& context = team.context();
  const int width = process.width, dim = process.state_dim;
  const int64_t first = int64_t{context.cluster()} * args.team.samples;
  const int64_t left = args.num_samples - first;
  const int rows = left < args.team.samples ? static_cast<int>(left) : args.team.samples;
  auto step = process.NewStates<kTeamSamples>(team, SharedFloats(context), rows);
  const auto trajectory = [&](int64_t sample, int64_t l) {
    return args.trajectories + (sample * (process.num_steps + 1) + l) * dim;
  };
  for (int r = 0; r < rows; ++r)
    PlaceState(context, args.states + (first + r) * width, r, step, width);
  team.Sync(kAfterInitialState);
  const bool wanted = args.trajectories != nullptr;
  ForSamples(team, first, wanted && args.begin == 0 ? rows : 0, [&](int r, int64_t sample) {
    WriteState(context, step, dim, trajectory(sample, 0), r);
  });
  const BatchSteps steps(process, first);
  int64_t made = 0;
  for (int64_t l = args.begin; l < args.end; ++l, ++made) {
    step.Run(steps.At(l));
    ForSamples(team, first, wanted ? rows : 0, [&](int r, int64_t sample) {
      WriteState(context, step, dim, trajectory(sample, l + 1), r);
    });
  }
  ForSamples(team, first, rows, [&](int r, int64_t sample) {
    WriteState(context, step, width, args.final_states + sample * width, r);
  });
  if (first == 0 && team.leads() && context.thread() == 0) *args.num_dependent = made;
}

// ---- The coarse guess
struct CoarseArgs {
  DiffusionView process;
  int32_t num_blocks;  // blocks of a sample's team
  int32_t shooting_interval, num_intervals;
  const float* initial_states;  // z_0 [n, W], zero beyond D
  float* guesses;               // y_1..y_P [n, P, W], zero beyond D
};

// Takes element i of a state through steps [begin, end) with one x0; `guesses` may be null. The
// coefficients of several steps, then their noise, are loaded before the first of these steps: one
// after another they would come from the L2 twice a step, 1000 times in a row.
DEEPPCR_DEVICE float HoldSample(const CoarseArgs& args, const SampleSteps& steps, int64_t begin,
                                int64_t end, float x0, float clipped, int i, float z, int width,
                                float* guesses) {
  const bool real = i < args.process.state_dim;
  int64_t interval = begin / args.shooting_interval;
  int64_t interval_end = (interval + 1) * args.shooting_interval;
  for (int64_t first = begin; first < end; first += kHeldSteps) {
    HoldCoefficients holds[kHeldSteps];
    float noise[kHeldSteps];
    DEEPPCR_UNROLL
    for (int k = 0; k < kHeldSteps; ++k)
      holds[k] = args.process.holds[first + k < end ? first + k : end - 1];
    DEEPPCR_UNROLL
    for (int k = 0; k < kHeldSteps; ++k) {
      const bool noisy = real && holds[k].sigma != 0.0F && first + k < end;
      noise[k] = noisy ? steps.Noise(first + k)[i] : 0.0F;
    }
    DEEPPCR_UNROLL
    for (int k = 0; k < kHeldSteps; ++k) {
      const int64_t l = first + k;
      if (l >= end) break;
      const HoldCoefficients& hold = holds[k];
      float next = fmaf(hold.clipped, clipped, fmaf(hold.raw, x0, hold.z * z));
      if (real && hold.sigma != 0.0F) next = fmaf(hold.sigma, noise[k], next);
      // A guess may be wrong, but not useless.
      if (isfinite(next)) z = next;
      if (l + 1 != interval_end && l + 1 != args.process.num_steps) continue;
      if (guesses != nullptr) guesses[interval * width + i] = z;
      ++interval;
      interval_end += args.shooting_interval;
    }
  }
  return z;
}

// Evaluates the denoiser of `step` every CoarseStride steps, and holds its x0 in between.
template <class Team, class Step>
DEEPPCR_DEVICE void GuessSample(const Team& team, const CoarseArgs& args, Step& step) {
  auto& context = team.context();
  const DiffusionView& process = args.process;
  const int64_t sample = context.cluster(), every = CoarseStride(process.num_steps);
  const int width = process.width;
  float* const z = SharedFloats(context) + process.StepFloats(1);
  float* const guesses =
      team.leads() ? args.guesses + sample * args.num_intervals * width : nullptr;
  const SampleSteps steps(process, sample);
  for (int i = context.thread(); i < width; i += context.num_threads())
    z[i] = args.initial_states[sample * width + i];
  // A thread has the same elements of z everywhere, so z needs no barrier.
  for (int64_t begin = 0; begin < process.num_steps; begin += every) {
    PlaceState(context, z, 0, step, width);
    team.Sync(kAfterCoarseState);
    const StepView at = steps.At(begin);
    step.Predict(at);
    const int64_t end = begin + every < process.num_steps ? begin + every : process.num_steps;
    for (int i = context.thread(); i < width; i += context.num_threads()) {
      const float m = i < process.state_dim ? step.Prediction(i) : 0.0F;
      const float x0 = fmaf(at.coefficients.x0_m, m, at.coefficients.x0_z * z[i]);
      z[i] = HoldSample(args, steps, begin, end, x0, step.Clip(x0), i, z[i], width, guesses);
    }
  }
}

// Body of a launch of one team per sample. Shared memory: W floats more than for the sequential
// solver.
template <class Team>
DEEPPCR_DEVICE void GuessCoarsely(const Team& team, const CoarseArgs& args) {
  auto step = args.process.NewSoleStep(team, SharedFloats(team.context()));
  GuessSample(team, args, step);
}
// Body of a launch of one block per sample: GuessCoarsely with HeldLayers.
template <class Team>
DEEPPCR_DEVICE void GuessWithHeldLayers(const Team& team, const CoarseArgs& args) {
  auto step = args.process.NewHeldStep(team, SharedFloats(team.context()));
  GuessSample(team, args, step);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_KERNEL_H_
