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
#include <type_traits>

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
  int32_t staged_floats;        // of a block's shared memory for StagedHolds; 0: there is no room
};

// Elements of a state that the sampler moves and that have noise.
template <class Process>
constexpr int SampleDim(const Process& process) {
  if constexpr (Process::kAnySampler) {
    return process.sample_dim;
  } else {
    return process.state_dim;
  }
}

// The coefficients and the noise of the steps from one evaluation to the next, the first being
// step 0: in global memory.
struct HoldsInPlace {
  const HoldCoefficients* holds;
  const float* noise;
  int dim;

  DEEPPCR_DEVICE HoldCoefficients Hold(int32_t k) const { return holds[k]; }
  DEEPPCR_DEVICE float Noise(int32_t k, int i) const { return noise[int64_t{k} * dim + i]; }
};

// The same in a block's shared memory, to which they are copied while the network is evaluated:
// from the L2, every step would wait for them.
template <class Context>
class StagedHolds {
 public:
  static constexpr int kHoldFloats = sizeof(HoldCoefficients) / sizeof(float);
  // Floats for one step. In memory: holds [every, kHoldFloats], noise [every, dim].
  static constexpr int64_t Floats(int dim) { return kHoldFloats + int64_t{dim}; }

  DEEPPCR_DEVICE StagedHolds(Context& context, float* memory, int64_t every, int dim)
      : context_(context), holds_(memory), noise_(memory + every * kHoldFloats), dim_(dim) {}

  // Begins to copy `count` steps, by all threads of the block.
  DEEPPCR_DEVICE void Begin(const HoldsInPlace& from, int32_t count) {
    static_assert(kHoldFloats == 4, "copied in one piece");
    for (int k = context_.thread(); k < count; k += context_.num_threads())
      context_.template CopyAsync<4>(&from.holds[k].z, holds_ + k * kHoldFloats);
    for (int at = context_.thread(); at < count * dim_; at += context_.num_threads())
      context_.template CopyAsync<1>(from.noise + at, noise_ + at);
    context_.CommitCopies();
  }
  DEEPPCR_DEVICE void Wait() {
    context_.template WaitForCopies<0>();
    context_.SyncBlock(kAfterHolds);
  }

  DEEPPCR_DEVICE HoldCoefficients Hold(int32_t k) const {
    float four[kHoldFloats];
    context_.LoadFour(holds_ + k * kHoldFloats, four);
    return {four[0], four[1], four[2], four[3]};
  }
  DEEPPCR_DEVICE float Noise(int32_t k, int i) const { return noise_[k * dim_ + i]; }

 private:
  Context& context_;
  float* const holds_;
  float* const noise_;
  const int dim_;
};

// Float of a block's shared memory at which StagedHolds begin.
template <class Process>
constexpr int64_t FirstStagedFloat(const Process& process) {
  return (int64_t{process.StepFloats(1)} + process.width + 3) / 4 * 4;
}

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

// Takes element i of a state through `count` steps from step `begin` on with one x0, and with it
// the element of the memory `c`, where the sampler carries one; `guesses` may be null. The
// coefficients and the noise of several steps are loaded before the first of these: one after
// another, each would be waited for.
template <class Process, class Holds>
DEEPPCR_DEVICE void HoldElement(const CoarseArgs<Process>& args, const Holds& source, int64_t begin,
                                int32_t count, const HeldElement& held, int i, bool real, float* z,
                                float* c, float* guesses) {
  const Process& process = args.process;
  const int64_t interval = begin / args.shooting_interval;
  float* const to = guesses == nullptr ? nullptr : guesses + interval * process.width + i;
  int32_t at = 0;  // place of the next guess
  // Steps that are left of the interval.
  auto left = static_cast<int32_t>((interval + 1) * args.shooting_interval - begin);
  float state = *z;
  const auto store = [&] {
    to[at] = state;
    if constexpr (Process::kAnySampler) {
      if (c != nullptr) to[at + process.sample_dim] = *c;
    }
  };
  const auto take = [&](auto steps, int32_t first) {
    HoldCoefficients holds[steps.value];
    float noise[steps.value];
    DEEPPCR_UNROLL
    for (int k = 0; k < steps.value; ++k) {
      holds[k] = source.Hold(first + k);
      noise[k] = real ? source.Noise(first + k, i) : 0.0F;
    }
    DEEPPCR_UNROLL
    for (int k = 0; k < steps.value; ++k) {
      const HoldCoefficients& hold = holds[k];
      float next = held.Next(hold, state);
      if (real && hold.sigma != 0.0F) next = fmaf(hold.sigma, held.scale * noise[k], next);
      if constexpr (Process::kAnySampler) {
        if (c != nullptr) {
          const MemoryHold& memory = process.memory_holds[begin + first + k];
          next = fmaf(memory.recall, *c, next);
          SetFinite(held.Next(memory.next, state), c);
        }
      }
      SetFinite(next, &state);
      const bool ends = --left == 0;
      if (ends && to != nullptr) store();
      at += ends ? process.width : 0;
      left = ends ? args.shooting_interval : left;
    }
  };
  int32_t k = 0;
  for (; k + kHeldSteps <= count; k += kHeldSteps)
    take(std::integral_constant<int, kHeldSteps>{}, k);
  for (; k < count; ++k) take(std::integral_constant<int, 1>{}, k);
  const bool last = begin + count == process.num_steps && left < args.shooting_interval;
  if (last && to != nullptr) store();
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
  const int dim = SampleDim(process);
  bool carries = false;
  if constexpr (Process::kAnySampler) carries = process.memory_holds != nullptr;
  StagedHolds staged(context, SharedFloats(context) + FirstStagedFloat(process), every, dim);
  for (int i = context.thread(); i < width; i += context.num_threads())
    z[i] = args.initial_states[sample * width + i];
  for (int64_t begin = 0; begin < process.num_steps; begin += every) {
    // A thread has the same elements of z everywhere, so z needs no barrier. No network knows of a
    // memory.
    PlaceState(context, z, 0, step, carries ? dim : width);
    const int64_t rest = process.num_steps - begin;
    const auto count = static_cast<int32_t>(every < rest ? every : rest);
    const HoldsInPlace in_place = {process.holds + begin, steps.Noise(begin), dim};
    team.Sync(kAfterCoarseState);
    if (args.staged_floats > 0) staged.Begin(in_place, count);
    step.Predict(steps.At(begin));
    const ReverseCoefficients at = process.CoefficientsOf(begin);
    if (args.staged_floats > 0) staged.Wait();
    for (int i = context.thread(); i < width; i += context.num_threads()) {
      const bool real = i < dim;
      if (carries && !real && i < process.state_dim) continue;
      const float m = real ? step.Prediction(i) : 0.0F;
      const float x0 = fmaf(at.x0_m, m, at.x0_z * z[i]);
      HeldElement held = {x0, step.Clip(x0), 1.0F};
      if constexpr (Process::kAnySampler) {
        if (real) held.scale = step.NoiseScaleOf(begin, i);
      }
      float* const c = carries && real ? &z[i + dim] : nullptr;
      args.staged_floats > 0
          ? HoldElement(args, staged, begin, count, held, i, real, &z[i], c, guesses)
          : HoldElement(args, in_place, begin, count, held, i, real, &z[i], c, guesses);
    }
  }
}

// Body of a launch of one team per sample. Shared memory: FirstStagedFloat + staged_floats.
template <class Process, class Team>
DEEPPCR_DEVICE void GuessCoarsely(const Team& team, const CoarseArgs<Process>& args) {
  auto step = args.process.NewSoleStep(team, SharedFloats(team.context()));
  GuessSample(team, args, step);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_COARSE_GUESS_H_
