// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_SEQUENTIAL_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_STACK_SEQUENTIAL_KERNEL_H_

// The sequential solver on a GPU, the baseline of all others: one launch, one warp a sample, the
// state in registers, layers read ahead of their use.

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/stack/warp_step.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

// Arguments for steps (begin, end] of every sample. Pointers are to device memory.
struct SequentialArgs {
  StackView stack;
  int32_t num_samples;
  int64_t begin, end;      // 0 <= begin < end <= L
  const float* states;     // z_begin [n, W], zero beyond D
  float* final_states;     // z_end [n, W], zero beyond D; may be `states`
  float* trajectories;     // z_0..z_L [n, L + 1, D], of which begin..end are written, or null
  int64_t* num_dependent;  // steps made, one after another, by the first sample
};

// Writer of one sample's states, by the lanes that hold them, one after another. A store is
// predicated and its address is advanced either way: no branch stands between two steps.
class TrajectoryWriter {
 public:
  DEEPPCR_DEVICE TrajectoryWriter(const SequentialArgs& args, int64_t sample, int lane)
      : dim_(args.stack.state_dim),
        writes_(args.trajectories != nullptr && lane < dim_),
        to_(writes_ ? args.trajectories +
                          (sample * (args.stack.num_steps + 1) + args.begin) * dim_ + lane
                    : args.final_states) {}
  template <int N>
  DEEPPCR_DEVICE void Write(const float (&states)[N]) {
    DEEPPCR_UNROLL
    for (int k = 0; k < N; ++k) {
      if (writes_) *to_ = states[k];
      to_ += writes_ ? dim_ : 0;
    }
  }

 private:
  const int64_t dim_;
  const bool writes_;
  float* to_;
};

// A sample's steps, each of which waits for the one before: nothing else may stand on that chain.
// Layers come in chunks. A chunk's loads are issued before the first step of the chunk before it,
// into registers of their own: whoever touches one of them waits for all.
template <int W, class Context, class Rule>
class SequentialSolve {
 public:
  DEEPPCR_DEVICE SequentialSolve(Context& context, const SequentialArgs& args, const Rule& rule,
                                 int64_t sample)
      : context_(context),
        args_(args),
        rule_(rule),
        sample_(sample),
        cursor_(args.stack, context.lane(), args.begin),
        trajectory_(args, sample, context.lane()),
        z_(args.states[sample * W + context.lane() % W]) {}

  DEEPPCR_DEVICE void Run() {
    trajectory_.Write({z_});
    constexpr int kPair = 2 * kChunk;
    const int64_t pairs = (args_.end - args_.begin) / kPair;
    LayerPart<W> even[kChunk], odd[kChunk];
    if (pairs > 0) Load(0, even);
    for (int64_t pair = 1; pair <= pairs; ++pair) {
      Load(kChunk, odd);
      Take(even);
      // The last pair's first chunk is read twice: a branch around loads would wait for them.
      cursor_.Advance(pair < pairs ? kPair : 0);
      Load(0, even);
      Take(odd);
    }
    for (int64_t l = args_.begin + pairs * kPair; l < args_.end; ++l) {
      const LayerPart<W> layer[1] = {LoadLayer<W>(context_, args_.stack, l)};
      Take(layer);
    }
    if (context_.lane() < W) args_.final_states[sample_ * W + context_.lane()] = z_;
    if (sample_ == 0 && context_.lane() == 0) *args_.num_dependent = made_;
  }

 private:
  static constexpr int kChunk = kSequentialChunk<W>;

  DEEPPCR_DEVICE void Load(int ahead, LayerPart<W> (&layers)[kChunk]) {
    DEEPPCR_UNROLL
    for (int k = 0; k < kChunk; ++k) layers[k] = cursor_.Load(context_, ahead + k);
  }
  template <int N>
  DEEPPCR_DEVICE void Take(const LayerPart<W> (&layers)[N]) {
    float states[N];
    DEEPPCR_UNROLL
    for (int k = 0; k < N; ++k) {
      z_ = Step<W>(context_, rule_, layers[k], z_);
      states[k] = z_;
      ++made_;
    }
    trajectory_.Write(states);
  }

  Context& context_;
  const SequentialArgs& args_;
  const Rule rule_;
  const int64_t sample_;
  LayerCursor<W> cursor_;
  TrajectoryWriter trajectory_;
  float z_;
  int64_t made_ = 0;
};

// Body of a launch of blocks of whole warps, a warp per sample.
template <int W, class Context>
DEEPPCR_DEVICE void SolveSequentially(Context& context, const SequentialArgs& args) {
  const int64_t warps = context.num_threads() / kWarpSize;
  const int64_t sample = context.cluster() * warps + context.warp();
  if (sample >= args.num_samples) return;
  WithStepRule(args.stack, [&](const auto& rule) {
    SequentialSolve<W, Context, std::decay_t<decltype(rule)>>(context, args, rule, sample).Run();
  });
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_SEQUENTIAL_KERNEL_H_
