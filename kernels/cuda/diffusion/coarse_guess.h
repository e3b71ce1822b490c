// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_COARSE_GUESS_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_COARSE_GUESS_H_

// The coarse guess of a reverse process: the network is evaluated at every CoarseStride-th step,
// and its x0 is held in between.
//
// The Process (loop/block_recurrence.h) is that of a reverse process:
//   holds [L], CoefficientsOf(l)   its reverse steps; StepsOf(sample).Noise(l) is their noise
//   its steps have Predict(step), then Prediction(i), and Clip(x0)
//   kAnySampler   its sampler may carry a memory, or scale the noise as the network says:
//                 sample_dim (of z), memory_holds [L] or null, and NoiseScaleOf(step, v) of its
//                 steps

#include <math.h>

#include <cstdint>

#include "kernels/cuda/loop/block_recurrence.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"
#include "kernels/problem/reverse_step.h"

namespace deeppcr::cuda {

template <class Process>
struct CoarseArgs {
  Process process;
  int32_t num_blocks;  // blocks of a sample's team
  int32_t shooting_interval, num_intervals;
  const float* initial_states;  // z_0 [n, W], zero beyond D
  float* guesses;               // y_1..y_P [n, P, W], zero beyond D
};

// What an element of a state keeps from one evaluation to the next.
struct HeldElement {
  float x0, clipped, scale;  // scale: of the noise

  DEEPPCR_DEVICE float Next(const HoldCoefficients& hold, float z) const {
    return fmaf(hold.clipped, clipped, fmaf(hold.raw, x0, hold.z * z));
  }
};

// A guess may be wrong, but not useless.
DEEPPCR_DEVICE void SetFinite(float next, float* element) {
  if (isfinite(next)) *element = next;
}

// Takes element i of a state through steps [begin, end) with one x0, and with it the element of the
// memory `c`, where the sampler carries one; `guesses` may be null. The coefficients of several
// steps, then their noise, are loaded before the first of these steps: one after another they would
// come from the L2 twice a step, 1000 times in a row.
template <class Process, class Steps>
DEEPPCR_DEVICE void HoldElement(const CoarseArgs<Process>& args, const Steps& steps, int64_t begin,
                                int64_t end, const HeldElement& held, int i, bool real, float* z,
                                float* c, float* guesses) {
  const Process& process = args.process;
  const int width = process.width;
  float state = *z;
  int64_t interval = begin / args.shooting_interval;
  int64_t interval_end = (interval + 1) * args.shooting_interval;
  for (int64_t first = begin; first < end; first += kHeldSteps) {
    HoldCoefficients holds[kHeldSteps];
    float noise[kHeldSteps];
    DEEPPCR_UNROLL
    for (int k = 0; k < kHeldSteps; ++k)
      holds[k] = process.holds[first + k < end ? first + k : end - 1];
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
      float next = held.Next(hold, state);
      if (real && hold.sigma != 0.0F) next = fmaf(hold.sigma, held.scale * noise[k], next);
      if constexpr (Process::kAnySampler) {
        if (c != nullptr) {
          const MemoryHold& memory = process.memory_holds[l];
          next = fmaf(memory.recall, *c, next);
          SetFinite(held.Next(memory.next, state), c);
        }
      }
      SetFinite(next, &state);
      if (l + 1 != interval_end && l + 1 != process.num_steps) continue;
      if (guesses != nullptr) {
        guesses[interval * width + i] = state;
        if constexpr (Process::kAnySampler) {
          if (c != nullptr) guesses[interval * width + process.sample_dim + i] = *c;
        }
      }
      ++interval;
      interval_end += args.shooting_interval;
    }
  }
  *z = state;
}

// Makes the guess of a team's sample with the network of `step`.
template <class Process, class Team, class Step>
DEEPPCR_DEVICE void GuessSample(const Team& team, const CoarseArgs<Process>& args, Step& step) {
  auto& context = team.context();
  const Process& process = args.process;
  const int64_t sample = context.cluster(), every = CoarseStride(process.num_steps);
  const int width = process.width;
  float* const z = SharedFloats(context) + process.StepFloats(1);
  float* const guesses =
      team.leads() ? args.guesses + sample * args.num_intervals * width : nullptr;
  const auto steps = process.StepsOf(sample);
  int dim = process.state_dim;
  bool carries = false;
  if constexpr (Process::kAnySampler) {
    dim = process.sample_dim;
    carries = process.memory_holds != nullptr;
  }
  for (int i = context.thread(); i < width; i += context.num_threads())
    z[i] = args.initial_states[sample * width + i];
  for (int64_t begin = 0; begin < process.num_steps; begin += every) {
    // A thread has the same elements of z everywhere, so z needs no barrier. No network knows of a
    // memory.
    PlaceState(context, z, 0, step, carries ? dim : width);
    team.Sync(kAfterCoarseState);
    step.Predict(steps.At(begin));
    const ReverseCoefficients at = process.CoefficientsOf(begin);
    const int64_t end = begin + every < process.num_steps ? begin + every : process.num_steps;
    for (int i = context.thread(); i < width; i += context.num_threads()) {
      const bool real = i < dim;
      if (carries && !real && i < process.state_dim) continue;
      const float m = real ? step.Prediction(i) : 0.0F;
      const float x0 = fmaf(at.x0_m, m, at.x0_z * z[i]);
      HeldElement held = {x0, step.Clip(x0), 1.0F};
      if constexpr (Process::kAnySampler) {
        if (real) held.scale = step.NoiseScaleOf(begin, i);
      }
      HoldElement(args, steps, begin, end, held, i, real, &z[i],
                  carries && real ? &z[i + dim] : nullptr, guesses);
    }
  }
}

// Body of a launch of one team per sample. Shared memory: W floats more than for the sequential
// solver.
template <class Process, class Team>
DEEPPCR_DEVICE void GuessCoarsely(const Team& team, const CoarseArgs<Process>& args) {
  auto step = args.process.NewSoleStep(team, SharedFloats(team.context()));
  GuessSample(team, args, step);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_COARSE_GUESS_H_
