// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_COARSE_GUESS_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_COARSE_GUESS_H_

// The coarse guess of a reverse process: the network is evaluated at every CoarseStride-th step,
// and its x0 is held in between.
//
// The Process (loop/block_recurrence.h) is that of a reverse process:
//   holds [L], CoefficientsOf(l)   its reverse steps; StepsOf(sample).Noise(l) is their noise
//   its steps have Predict(step), then Prediction(i), and Clip(x0); where kCopiesAhead, that is
//                 Predict(step, beside, await), and CopyingThreads(context) are those that call
//                 beside() (half_denoiser.h)
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
  int32_t staged_floats;        // of a block's shared memory for HoldScan; 0: there is no room
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

// Elements i < width of rows dealt out to the threads of a context, each of which has the same
// elements of every row.
class DealtRows {
 public:
  template <class Context>
  DEEPPCR_DEVICE DealtRows(const Context& context, int width)
      : width_(width), thread_(context.thread()), threads_(context.num_threads()) {
    const int rows = threads_ / width;
    step_ = rows > 0 ? rows : 1;
    first_ = rows > 0 ? thread_ / width : 0;
    i_ = thread_ - first_ * width;
  }
  // Calls f(k, i) for the thread's elements of rows k < count.
  template <class F>
  DEEPPCR_DEVICE void For(int32_t count, const F& f) const {
    if (first_ >= step_) return;
    for (int32_t k = first_; k < count; k += step_) {
      for (int i = i_; i < width_; i += threads_) f(k, i);
    }
  }

 private:
  int width_, thread_, threads_, step_, first_, i_;
};

// Steps between two evaluations: half a warp takes an element through all of them at once. With one
// x0, a step is an affine map of the element, and the states are a prefix scan of the maps. One
// step after another would be waited for, by a thread that has nothing else to do; so would the
// steps' data, which is copied to shared memory while the network is evaluated, where there is
// room. States have the same bits with that room and without.
//
// Threads: those that copy.
template <class Context, class Threads = Context>
class HoldScan {
 public:
  static constexpr int kHoldFloats = sizeof(HoldCoefficients) / sizeof(float);
  // Floats of `buffers` for `every` steps each. In memory: a buffer's coefficients [Places(every),
  // kHoldFloats] and its noise [Places(every), NoiseRow(dim)], then the next one's.
  static constexpr int64_t Floats(int64_t every, int dim, int buffers) {
    return buffers * Places(every) * (kHoldFloats + NoiseRow(dim));
  }

  DEEPPCR_DEVICE HoldScan(Context& context, Threads& threads, float* memory, int64_t every, int dim,
                          int buffers)
      : context_(context),
        threads_(threads),
        noise_(threads, dim % 4 == 0 ? dim / 4 : dim),
        memory_(memory),
        places_(static_cast<int32_t>(Places(every))),
        dim_(dim),
        buffers_(buffers) {}

  // Begins to copy `count` steps, the `stretch`-th ones, by the threads, which commit the copies.
  DEEPPCR_DEVICE void Begin(int32_t stretch, const Holds& from, int32_t count) {
    static_assert(kHoldFloats == 4, "copied in one piece");
    float* const holds = HoldsOf(stretch);
    for (int k = threads_.thread(); k < count; k += threads_.num_threads())
      threads_.template CopyAsync<4>(&from.coefficients[k].z, holds + PlaceOf(k) * kHoldFloats);
    if (dim_ % 4 == 0) {
      CopyNoise<4>(NoiseOf(stretch), from, count);
    } else {
      CopyNoise<1>(NoiseOf(stretch), from, count);
    }
  }
  // Takes z [dim] through the steps of a stretch, `from`. Where they are `staged`, the threads have
  // waited for their copies, and the block for them. Every thread may ask for held(i), which
  // changes with put(i, z), of the element behind all steps. store_from(i, k): a Store(states) of
  // element i behind step k and the next ones, of which some may be none of the stretch.
  template <class Held, class Put, class StoreFrom>
  DEEPPCR_DEVICE void Run(int32_t stretch, bool staged, const Holds& from, int32_t count,
                          const float* z, const Held& held, const Put& put,
                          const StoreFrom& store_from) {
    if (staged) {
      const Source<true> source = {HoldsOf(stretch), NoiseOf(stretch), NoiseRow(dim_)};
      TakeElements(source, count, z, held, put, store_from);
    } else {
      const Source<false> source = {&from.coefficients->z, from.noise, dim_};
      TakeElements(source, count, z, held, put, store_from);
    }
  }

 private:
  static constexpr int kLanes = kWarpSize / 2;        // lanes of an element
  static constexpr int kOfLane = 4;                   // steps that a lane has of a scan
  static constexpr int kTogether = kLanes * kOfLane;  // steps of a scan

  // Places of steps: those of a scan of which each lane has one lie side by side.
  static constexpr int64_t Places(int64_t every) {
    return (every + kTogether - 1) / kTogether * kTogether;
  }
  static DEEPPCR_DEVICE int32_t PlaceOf(int32_t k) {
    const int32_t in_scan = k % kTogether;
    return k - in_scan + in_scan % kOfLane * kLanes + in_scan / kOfLane;
  }
  // Floats from one step's noise to the next, so that lanes find theirs in different banks, or few
  // of them in one.
  static constexpr int NoiseRow(int dim) { return dim % 4 == 0 ? dim + 4 : dim | 1; }
  DEEPPCR_DEVICE float* HoldsOf(int32_t stretch) const {
    return memory_ + stretch % buffers_ * places_ * (kHoldFloats + NoiseRow(dim_));
  }
  DEEPPCR_DEVICE float* NoiseOf(int32_t stretch) const {
    return HoldsOf(stretch) + places_ * kHoldFloats;
  }

  // Copies N floats at a time.
  template <int N>
  DEEPPCR_DEVICE void CopyNoise(float* to, const Holds& from, int32_t count) {
    const int row = NoiseRow(dim_);
    noise_.For(count, [&](int32_t k, int i) {
      threads_.template CopyAsync<N>(from.noise + int64_t{k} * dim_ + N * i,
                                     to + PlaceOf(k) * row + N * i);
    });
  }

  // What a step does to an element: z to factor z + offset.
  struct Map {
    float factor = 1.0F, offset = 0.0F;

    DEEPPCR_DEVICE float Of(float z) const { return fmaf(factor, z, offset); }
    // This map behind another one.
    DEEPPCR_DEVICE Map After(const Map& first) const {
      return {factor * first.factor, Of(first.offset)};
    }
  };
  // Where steps have their data: `staged` in places, one after another else.
  template <bool kStaged>
  struct Source {
    const float* holds;
    const float* noise;
    int32_t row;  // floats from one step's noise to the next
  };
  // An element and what `count` steps have of it.
  template <bool kStaged>
  struct Element {
    Source<kStaged> source;
    int i;
    HeldElement held;
    int32_t count;
  };
  // The map of step k, or one that changes nothing behind the last step.
  template <bool kStaged>
  DEEPPCR_DEVICE Map MapOf(const Element<kStaged>& element, int32_t k) const {
    const int32_t step = k < element.count ? k : 0;
    const int32_t place = kStaged ? PlaceOf(step) : step;
    const Source<kStaged>& source = element.source;
    float four[kHoldFloats];
    context_.LoadFour(source.holds + place * kHoldFloats, four);
    const HoldCoefficients hold = {four[0], four[1], four[2], four[3]};
    const float noise = source.noise[place * source.row + element.i];
    const Map map = {hold.z, element.held.Offset(hold, noise)};
    return k < element.count ? map : Map();
  }

  template <bool kStaged, class Held, class Put, class StoreFrom>
  DEEPPCR_DEVICE void TakeElements(const Source<kStaged>& source, int32_t count, const float* z,
                                   const Held& held, const Put& put, const StoreFrom& store_from) {
    const int half = context_.lane() / kLanes, warps = context_.num_threads() / kWarpSize;
    for (int first = 2 * context_.warp(); first < dim_; first += 2 * warps) {
      const bool real = first + half < dim_;
      const int i = real ? first + half : first;
      const Element<kStaged> element = {source, i, held(i), count};
      const float last =
          TakeElement(element, z[i], real, [&](int32_t k) { return store_from(i, k); });
      if (real && context_.lane() % kLanes == 0) put(i, last);
    }
  }
  // Takes an element through the steps and returns what is behind the last, in all lanes of half a
  // warp.
  template <bool kStaged, class StoreFrom>
  DEEPPCR_DEVICE float TakeElement(const Element<kStaged>& element, float state, bool stores,
                                   const StoreFrom& store_from) {
    const int lane = context_.lane() % kLanes;
    for (int32_t first = 0; first < element.count; first += kTogether) {
      const int32_t k = first + lane * kOfLane;
      const auto store = store_from(k);
      Map own[kOfLane], behind;  // behind: the steps of the scan up to the lane's last
      DEEPPCR_UNROLL
      for (int s = 0; s < kOfLane; ++s) {
        own[s] = MapOf(element, k + s);
        behind = s == 0 ? own[s] : own[s].After(behind);
      }
      DEEPPCR_UNROLL
      for (int distance = 1; distance < kLanes; distance *= 2) {
        const Map before = FromBefore(behind, distance);
        if (lane >= distance) behind = behind.After(before);
      }
      const Map before = FromBefore(behind, 1);
      float reached[kOfLane], next = lane == 0 ? state : before.Of(state);
      bool finite = true;
      DEEPPCR_UNROLL
      for (int s = 0; s < kOfLane; ++s) {
        reached[s] = next = own[s].Of(next);
        finite = finite && isfinite(next);
      }
      if (context_.AllOfWarp(finite)) {
        state = context_.Shuffle(next, context_.lane() - lane + kLanes - 1);
      } else {
        TakeCarefully(element, first, &state, reached);
      }
      if (stores) store(reached);
    }
    return state;
  }
  // The map of an element's lane so many before, or any one.
  DEEPPCR_DEVICE Map FromBefore(const Map& map, int distance) {
    const int lane = context_.lane(), source = lane < distance ? lane : lane - distance;
    return {context_.Shuffle(map.factor, source), context_.Shuffle(map.offset, source)};
  }
  // Takes an element through the steps of a scan one after another, where a step that would not be
  // finite is left out; `reached` gets what is behind the lane's own.
  template <bool kStaged>
  DEEPPCR_DEVICE void TakeCarefully(const Element<kStaged>& element, int32_t first, float* state,
                                    float (&reached)[kOfLane]) const {
    DEEPPCR_AS_WRITTEN
    for (int32_t j = 0; j < kTogether; ++j) {
      SetFinite(MapOf(element, first + j).Of(*state), state);
      DEEPPCR_UNROLL
      for (int s = 0; s < kOfLane; ++s)
        if (j == context_.lane() % kLanes * kOfLane + s) reached[s] = *state;
    }
  }

  Context& context_;
  Threads& threads_;
  const DealtRows noise_;  // pieces of it that are copied at once
  float* const memory_;
  const int32_t places_;
  const int dim_, buffers_;
};

// Float of a block's shared memory at which a HoldScan has its data.
template <class Process>
constexpr int64_t FirstStagedFloat(const Process& process) {
  return (int64_t{process.StepFloats(1)} + process.width + 3) / 4 * 4;
}

// Stores an element of the states behind some steps where intervals end.
class GuessStore {
 public:
  // Element i behind step `step` and the next ones, `count` at most.
  template <class Process>
  DEEPPCR_DEVICE GuessStore(const CoarseArgs<Process>& args, float* guesses, int64_t step,
                            int32_t count, int i)
      : interval_(static_cast<uint32_t>(args.shooting_interval)),
        width_(args.process.width),
        count_(guesses == nullptr ? 0 : count),
        last_(static_cast<int32_t>(args.process.num_steps - 1 - step)),
        guesses_(guesses) {
    const auto first = static_cast<uint32_t>(step);
    const uint32_t p = first / interval_;
    left_ = (p + 1) * interval_ - first;
    place_ = int64_t{p} * width_ + i;
  }
  template <int N>
  DEEPPCR_DEVICE void operator()(const float (&states)[N]) const {
    uint32_t left = left_;
    int32_t ends = 0;  // before step s
    DEEPPCR_UNROLL
    for (int s = 0; s < N; ++s) {
      const bool ends_here = --left == 0 || s == last_;
      if (ends_here && s < count_) guesses_[place_ + ends * width_] = states[s];
      ends += ends_here ? 1 : 0;
      left = left == 0 ? interval_ : left;
    }
  }

 private:
  const uint32_t interval_;
  const int32_t width_, count_, last_;  // last_: the last step of all, counted from the first one
  uint32_t left_;                       // steps until an interval ends
  int64_t place_;                       // of the first of them in guesses_
  float* const guesses_;
};

// Takes element i of a state, *z, and that of the memory that its sampler carries, *c, through
// `count` steps from step `begin` on with one x0; `guesses` may be null.
template <class Process>
DEEPPCR_DEVICE void HoldWithMemory(const CoarseArgs<Process>& args, const Holds& holds,
                                   int64_t begin, int32_t count, const HeldElement& held, int i,
                                   float* z, float* c, float* guesses) {
  const Process& process = args.process;
  const int64_t interval = begin / args.shooting_interval;
  float* to = guesses == nullptr ? nullptr : guesses + interval * process.width + i;
  // Steps that are left of the interval.
  auto left = static_cast<int32_t>((interval + 1) * args.shooting_interval - begin);
  float state = *z, carried = *c;
  for (int32_t k = 0; k < count; ++k) {
    const HoldCoefficients hold = holds.coefficients[k];
    const MemoryHold& memory = process.memory_holds[begin + k];
    const float noise = holds.noise[int64_t{k} * holds.dim + i];
    const float next = fmaf(hold.z, state, held.Offset(hold, noise));
    const float recalled = fmaf(memory.recall, carried, next);
    SetFinite(fmaf(memory.next.z, state, held.Offset(memory.next)), &carried);
    SetFinite(recalled, &state);
    if (--left > 0 && begin + k + 1 < process.num_steps) continue;
    left = args.shooting_interval;
    if (to == nullptr) continue;
    to[0] = state;
    to[process.sample_dim] = carried;
    to += process.width;
  }
  *z = state;
  *c = carried;
}

// Writes zeros to what guesses have beyond D elements, by all threads of the block.
template <class Process, class Context>
DEEPPCR_DEVICE void ClearBeyond(Context& context, const CoarseArgs<Process>& args, float* guesses) {
  const int dim = args.process.state_dim, width = args.process.width;
  if (dim == width) return;
  DealtRows(context, width - dim).For(args.num_intervals, [&](int32_t p, int i) {
    guesses[int64_t{p} * width + dim + i] = 0.0F;
  });
}

// Buffers of HoldScan: with two, the data of the next steps is copied by warps that an evaluation
// leaves idle.
template <class Step>
inline constexpr int kCoarseBuffers = Step::kCopiesAhead ? 2 : 1;

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
  const bool is_staged = args.staged_floats > 0;
  auto&& threads = step.CopyingThreads(context);
  HoldScan scan(context, threads, SharedFloats(context) + FirstStagedFloat(process), every, dim,
                kCoarseBuffers<Step>);
  const auto count_from = [&](int64_t begin) {
    const int64_t rest = process.num_steps - begin;
    return static_cast<int32_t>(every < rest ? every : rest);
  };
  const auto holds_from = [&](int64_t begin) {
    return Holds{process.holds + begin, steps.Noise(begin), dim};
  };
  const auto begin_copies = [&](int32_t stretch) {
    const int64_t begin = stretch * every;
    if (is_staged && begin < process.num_steps)
      scan.Begin(stretch, holds_from(begin), count_from(begin));
  };
  for (int i = context.thread(); i < width; i += context.num_threads())
    z[i] = args.initial_states[sample * width + i];
  // No network knows of a memory.
  PlaceState(context, z, 0, step, carries ? dim : width);
  if (guesses != nullptr) ClearBeyond(context, args, guesses);
  if constexpr (Step::kCopiesAhead) {
    if (threads.thread() >= 0) begin_copies(0);
    context.CommitCopies();
  }
  int32_t stretch = 0;
  for (int64_t begin = 0; begin < process.num_steps; begin += every, ++stretch) {
    const int32_t count = count_from(begin);
    const ReverseCoefficients at = process.CoefficientsOf(begin);
    const auto view = steps.At(begin);
    team.Sync(kAfterCoarseState);
    if constexpr (Step::kCopiesAhead) {
      const auto beside = [&] {
        begin_copies(stretch + 1);
        steps.Prefetch(threads, begin + every - 1);
      };
      step.Predict(view, beside, [&] {
        context.CommitCopies();
        context.template WaitForCopies<1>();
      });
    } else {
      begin_copies(stretch);
      context.CommitCopies();
      steps.Prefetch(team, begin + every - 1);
      step.Predict(view);
      context.template WaitForCopies<0>();
      if (is_staged) context.SyncBlock(kAfterHolds);
    }
    const auto held = [&](int i) {
      const float x0 = fmaf(at.x0_m, step.Prediction(i), at.x0_z * z[i]);
      HeldElement element = {x0, step.Clip(x0), 1.0F};
      if constexpr (Process::kAnySampler) element.scale = step.NoiseScaleOf(begin, i);
      return element;
    };
    const Holds holds = holds_from(begin);
    if constexpr (Process::kAnySampler) {
      if (carries) {
        // A thread has the same elements of z everywhere, so that z needs no barrier.
        for (int i = context.thread(); i < dim; i += context.num_threads())
          HoldWithMemory(args, holds, begin, count, held(i), i, &z[i], &z[i + dim], guesses);
        PlaceState(context, z, 0, step, dim);
        continue;
      }
    }
    const auto put = [&](int i, float next) {
      z[i] = next;
      step.State(0, i) = next;
    };
    scan.Run(stretch, is_staged, holds, count, z, held, put,
             [&](int i, int32_t k) { return GuessStore(args, guesses, begin + k, count - k, i); });
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
