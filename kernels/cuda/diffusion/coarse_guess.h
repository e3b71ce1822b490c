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

// What an element of a state keeps from one evaluation to the next.
struct HeldElement {
  float x0, clipped, scale;  // scale: of the noise

  // A step with this x0 takes z to hold.z z + Offset(hold).
  DEEPPCR_DEVICE float Offset(const HoldCoefficients& hold) const {
    return fmaf(hold.clipped, clipped, hold.raw * x0);
  }
  DEEPPCR_DEVICE float Offset(const HoldCoefficients& hold, float noise) const {
    const float offset = Offset(hold);
    return hold.sigma != 0.0F ? fmaf(hold.sigma, scale * noise, offset) : offset;
  }
};

// The coefficients and the noise of the steps from one evaluation to the next, the first being
// step 0.
struct Holds {
  const HoldCoefficients* coefficients;
  const float* noise;  // [steps, dim]
  int dim;
};

// A guess may be wrong, but not useless.
DEEPPCR_DEVICE void SetFinite(float next, float* element) {
  if (isfinite(next)) *element = next;
}

// Steps between two evaluations in a block's shared memory: their data is copied there while the
// network is evaluated; then all threads make what a step adds to each element, and the threads
// that have an element no more than the recurrence. One after another, by these threads and from
// the L2, all of that would be waited for.
template <class Context>
class StagedHolds {
 public:
  static constexpr int kHoldFloats = sizeof(HoldCoefficients) / sizeof(float);
  // Floats for `every` steps. In memory: coefficients [every, kHoldFloats]; the factors of z
  // [Row(every)]; what steps add to each element [dim, Row(every)]; noise, then states [every,
  // dim].
  static constexpr int64_t Floats(int64_t every, int dim) {
    return every * (kHoldFloats + dim) + Row(every) * (1 + int64_t{dim});
  }

  DEEPPCR_DEVICE StagedHolds(Context& context, float* memory, int64_t every, int dim)
      : context_(context),
        holds_(memory),
        factors_(holds_ + every * kHoldFloats),
        row_(Row(every)),
        elements_(factors_ + row_ * (1 + int64_t{dim})),
        dim_(dim) {}

  // Begins to copy `count` steps, by all threads of the block.
  DEEPPCR_DEVICE void Begin(const Holds& from, int32_t count) {
    static_assert(kHoldFloats == 4, "copied in one piece");
    for (int k = context_.thread(); k < count; k += context_.num_threads())
      context_.template CopyAsync<4>(&from.coefficients[k].z, holds_ + k * kHoldFloats);
    if (dim_ % 4 == 0) {
      CopyNoise<4>(from, count);
    } else {
      CopyNoise<1>(from, count);
    }
    context_.CommitCopies();
  }
  // Takes z [dim] through the steps; every thread may ask for held(i), which z does not change.
  template <class Held>
  DEEPPCR_DEVICE void Run(int32_t count, const Held& held, float* z) {
    context_.template WaitForCopies<0>();
    context_.SyncBlock(kAfterHolds);
    for (int at = context_.thread(); at < count * dim_; at += context_.num_threads()) {
      const auto k = static_cast<int32_t>(static_cast<uint32_t>(at) / static_cast<uint32_t>(dim_));
      const int i = at - k * dim_;
      float four[kHoldFloats];
      context_.LoadFour(holds_ + k * kHoldFloats, four);
      const HoldCoefficients hold = {four[0], four[1], four[2], four[3]};
      Offsets(i)[k] = held(i).Offset(hold, elements_[at]);
      if (i == 0) factors_[k] = hold.z;
    }
    context_.SyncBlock(kAfterOffsets);
    for (int i = context_.thread(); i < dim_; i += context_.num_threads()) {
      const float last = Walk(count, i, z[i]);
      // What is not finite stays so: a look at the last state is one at all of them.
      z[i] = isfinite(last) ? last : WalkCarefully(count, i, z[i]);
    }
    context_.SyncBlock(kAfterHeldStates);
  }
  // Element i behind step k, after Run.
  DEEPPCR_DEVICE float State(int32_t k, int i) const { return elements_[k * dim_ + i]; }

 private:
  // Floats from one element's row to the next, so that the four from any step on may be loaded, and
  // lanes find theirs in different banks.
  static constexpr int64_t Row(int64_t every) { return (every + 3) / 4 * 4 + 4; }
  DEEPPCR_DEVICE float* Offsets(int i) const { return factors_ + row_ * (1 + int64_t{i}); }

  // Copies N floats at a time. Samples and steps have `dim` floats each.
  template <int N>
  DEEPPCR_DEVICE void CopyNoise(const Holds& from, int32_t count) {
    for (int at = N * context_.thread(); at < count * dim_; at += N * context_.num_threads())
      context_.template CopyAsync<N>(from.noise + at, elements_ + at);
  }

  // Takes element i through the steps and returns what is behind the last. The data of four steps
  // is loaded while those before are made.
  DEEPPCR_DEVICE float Walk(int32_t count, int i, float state) {
    const float* const offsets = Offsets(i);
    float* element = elements_ + i;
    float factors[4] = {}, adds[4] = {}, next_factors[4] = {}, next_adds[4] = {};
    context_.LoadFour(factors_, factors);
    context_.LoadFour(offsets, adds);
    int32_t k = 0;
    DEEPPCR_AS_WRITTEN
    for (; k + 4 <= count; k += 4) {
      context_.LoadFour(factors_ + k + 4, next_factors);
      context_.LoadFour(offsets + k + 4, next_adds);
      DEEPPCR_UNROLL
      for (int j = 0; j < 4; ++j) {
        state = fmaf(factors[j], state, adds[j]);
        element[j * dim_] = state;
        factors[j] = next_factors[j];
        adds[j] = next_adds[j];
      }
      element += 4 * dim_;
    }
    DEEPPCR_UNROLL
    for (int j = 0; j < 3; ++j) {
      if (k + j >= count) break;
      state = fmaf(factors[j], state, adds[j]);
      element[j * dim_] = state;
    }
    return state;
  }
  // The same, but a step that would not be finite is left out.
  DEEPPCR_DEVICE float WalkCarefully(int32_t count, int i, float state) {
    DEEPPCR_AS_WRITTEN
    for (int32_t k = 0; k < count; ++k) {
      SetFinite(fmaf(factors_[k], state, Offsets(i)[k]), &state);
      elements_[k * dim_ + i] = state;
    }
    return state;
  }

  Context& context_;
  float* const holds_;
  float* const factors_;
  const int64_t row_;
  float* const elements_;
  const int dim_;
};

// Float of a block's shared memory at which StagedHolds begin.
template <class Process>
constexpr int64_t FirstStagedFloat(const Process& process) {
  return (int64_t{process.StepFloats(1)} + process.width + 3) / 4 * 4;
}

// Stores the guesses of intervals that end within `count` steps from step `begin` on, by all
// threads of the block.
template <class Process, class Context>
DEEPPCR_DEVICE void StoreGuesses(Context& context, const CoarseArgs<Process>& args,
                                 const StagedHolds<Context>& staged, int64_t begin, int32_t count,
                                 int dim, float* guesses) {
  const auto width = static_cast<uint32_t>(args.process.width);
  const auto interval = static_cast<uint32_t>(args.shooting_interval);
  const auto first = static_cast<uint32_t>(begin), end = first + static_cast<uint32_t>(count);
  const uint32_t p = first / interval;
  const bool last = end == args.process.num_steps;
  const uint32_t ends = (last ? args.num_intervals : end / interval) - p;
  for (uint32_t at = context.thread(); at < ends * width; at += context.num_threads()) {
    const uint32_t j = at / width, i = at - j * width;
    const uint32_t behind = (p + j + 1) * interval < end ? (p + j + 1) * interval : end;
    const bool real = i < static_cast<uint32_t>(dim);
    guesses[p * width + at] =
        real ? staged.State(static_cast<int32_t>(behind - first) - 1, static_cast<int>(i)) : 0.0F;
  }
}

// Takes element i of a state through `count` steps from step `begin` on with one x0, and with it
// the element of the memory `c`, where the sampler carries one; `guesses` may be null.
template <class Process>
DEEPPCR_DEVICE void HoldElement(const CoarseArgs<Process>& args, const Holds& holds, int64_t begin,
                                int32_t count, const HeldElement& held, int i, bool real, float* z,
                                float* c, float* guesses) {
  const Process& process = args.process;
  const int64_t interval = begin / args.shooting_interval;
  float* to = guesses == nullptr ? nullptr : guesses + interval * process.width + i;
  // Steps that are left of the interval.
  auto left = static_cast<int32_t>((interval + 1) * args.shooting_interval - begin);
  float state = *z;
  for (int32_t k = 0; k < count; ++k) {
    const HoldCoefficients hold = holds.coefficients[k];
    const float noise = real ? holds.noise[int64_t{k} * holds.dim + i] : 0.0F;
    float next = fmaf(hold.z, state, held.Offset(hold, noise));
    if constexpr (Process::kAnySampler) {
      if (c != nullptr) {
        const MemoryHold& memory = process.memory_holds[begin + k];
        next = fmaf(memory.recall, *c, next);
        SetFinite(fmaf(memory.next.z, state, held.Offset(memory.next)), c);
      }
    }
    SetFinite(next, &state);
    if (--left > 0 && begin + k + 1 < process.num_steps) continue;
    left = args.shooting_interval;
    if (to == nullptr) continue;
    *to = state;
    if constexpr (Process::kAnySampler) {
      if (c != nullptr) to[process.sample_dim] = *c;
    }
    to += process.width;
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
    const Holds holds = {process.holds + begin, steps.Noise(begin), dim};
    team.Sync(kAfterCoarseState);
    if (args.staged_floats > 0) staged.Begin(holds, count);
    steps.Prefetch(team, begin + every - 1);
    step.Predict(steps.At(begin));
    const ReverseCoefficients at = process.CoefficientsOf(begin);
    const auto held = [&](int i) {
      const float x0 = fmaf(at.x0_m, step.Prediction(i), at.x0_z * z[i]);
      HeldElement element = {x0, step.Clip(x0), 1.0F};
      if constexpr (Process::kAnySampler) element.scale = step.NoiseScaleOf(begin, i);
      return element;
    };
    if (args.staged_floats > 0) {
      staged.Run(count, held, z);
      if (guesses != nullptr) StoreGuesses(context, args, staged, begin, count, dim, guesses);
      continue;
    }
    for (int i = context.thread(); i < width; i += context.num_threads()) {
      const bool real = i < dim;
      if (carries && !real && i < process.state_dim) continue;
      HoldElement(args, holds, begin, count, real ? held(i) : HeldElement{}, i, real, &z[i],
                  carries && real ? &z[i + dim] : nullptr, guesses);
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
