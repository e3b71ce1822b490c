// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_KERNEL_H_

// Diffusion models on a GPU: the Process for block_recurrence.h and coarse_guess.h.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/diffusion/coarse_guess.h"
#include "kernels/cuda/diffusion/reverse_step.h"
#include "kernels/cuda/loop/block_recurrence.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

class SampleSteps;

// A Process: one reverse process and the noise and modulation of n samples. Pointers are to device
// memory.
struct DiffusionView {
  static constexpr bool kHasDiagonals = false, kAnySampler = false;

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
  DEEPPCR_DEVICE const ReverseCoefficients& CoefficientsOf(int64_t step) const {
    return coefficients[step];
  }
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
  // Step of one state by a block with the weights in registers and shared memory: see HeldLayers.
  template <class Team>
  using HeldStep = DenoiserStep<1, Team, StepRowsAre::kStates, HeldLayers>;
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

// Float of a block's shared memory at which HeldLayers have their copies: behind all else.
constexpr int64_t FirstHeldFloat(const DiffusionView& process) {
  return (process.StepFloats(1) + 3) / 4 * 4;
}

// Body of a launch of one block per sample: SolveByTeams with HeldLayers.
template <class Team>
DEEPPCR_DEVICE void SolveWithHeldLayers(const Team& team,
                                        const BlockSequentialArgs<DiffusionView>& args) {
  float* const memory = SharedFloats(team.context());
  DiffusionView::HeldStep<Team> step(team, args.process.denoiser, memory, 1, false);
  step.Hold(memory + FirstHeldFloat(args.process));
  SolveSample(team, args, team.context().cluster(), step);
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

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_KERNEL_H_
