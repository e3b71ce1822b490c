// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_SEQUENTIAL_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_STACK_SEQUENTIAL_KERNEL_H_

// The sequential solver on a GPU, the baseline of all others: one launch, one warp a sample, the
// state in registers, layers copied to shared memory ahead of their use.

#include <cstddef>
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
  // Of row `row` of a state, by a lane that may write it.
  template <class Args, class Stack>
  DEEPPCR_DEVICE TrajectoryWriter(const Args& args, const Stack& stack, int64_t sample, int row,
                                  bool may)
      : dim_(stack.state_dim),
        writes_(args.trajectories != nullptr && may && row < dim_),
        to_(writes_ ? args.trajectories + (sample * (stack.num_steps + 1) + args.begin) * dim_ + row
                    : args.final_states) {}
  DEEPPCR_DEVICE void Write(float state) {
    if (writes_) *to_ = state;
    to_ += writes_ ? dim_ : 0;
  }

 private:
  const int64_t dim_;
  const bool writes_;
  float* to_;
};

// Sizes of a warp's ring of layers.
template <int W>
struct RingShape {
  static constexpr int kColumns = LanePart<W>::kColumns;
  static constexpr int kVector = kColumns < 4 ? kColumns : 4;  // weights that are copied together
  static constexpr int kLayers = kSequentialChunk<W>;          // of a chunk
  // Floats of a layer, which come by kVector for all lanes in turn, of a chunk, and of the ring.
  static constexpr int kLayerFloats = (kColumns + 1) * kWarpSize;
  static constexpr int kChunkFloats = kLayers * kLayerFloats;
  static constexpr int kFloats = kSequentialRing * kChunkFloats;
};

// Bytes of shared memory of a launch.
template <int W>
constexpr size_t SequentialBytes(int num_threads) {
  return sizeof(float) * RingShape<W>::kFloats * static_cast<size_t>(num_threads / kWarpSize);
}

// Layers of a stack on their way to a warp, chunk by chunk, in a ring in shared memory: copies of
// their own, which no register and no scoreboard waits for. A lane copies what it reads itself, so
// lanes need not wait for one another.
template <int W, class Context>
class LayerRing {
 public:
  // There is at least one chunk.
  DEEPPCR_DEVICE LayerRing(Context& context, const StackView& stack, int64_t begin, int64_t chunks)
      : context_(context),
        cursor_(stack, context.lane(), begin),
        slots_(reinterpret_cast<float*>(context.shared()) + context.warp() * Shape::kFloats),
        left_(chunks) {
    DEEPPCR_UNROLL
    for (int c = 1; c < kSequentialRing; ++c) {
      DEEPPCR_UNROLL
      for (int k = 0; k < Shape::kLayers; ++k) Fetch(k);
      Commit();
    }
  }

  // Begins to copy layer k of another chunk to where the oldest chunk has been. Behind the last
  // chunk it is copied again: a branch would keep copies from being issued between steps.
  DEEPPCR_DEVICE void Fetch(int k) const {
    const int at = fetched_ + k * Shape::kLayerFloats;
    DEEPPCR_UNROLL
    for (int j = 0; j < Shape::kColumns; j += kVector)
      context_.template CopyAsync<kVector>(cursor_.Weights(k) + j, Weights(at, j));
    context_.template CopyAsync<1>(cursor_.Bias(k), Bias(at));
  }
  // To be called when all layers of a chunk are on their way.
  DEEPPCR_DEVICE void Commit() {
    context_.CommitCopies();
    cursor_.Advance(left_ > 1 ? Shape::kLayers : 0);
    --left_;
    fetched_ = After(fetched_);
  }
  // The lane's part of layer k of the chunk at hand.
  DEEPPCR_DEVICE LayerPart<W> Read(int k) const { return ReadAt(read_ + k * Shape::kLayerFloats); }
  // Waits for all chunks that have been committed.
  DEEPPCR_DEVICE void Wait() { context_.template WaitForCopies<0>(); }
  // The lane's part of the first layer of the next chunk, which becomes the one at hand. The chunk
  // that is being asked for is committed later, so nothing of it is waited for.
  DEEPPCR_DEVICE LayerPart<W> ReadNext() {
    Wait();
    read_ = After(read_);
    return Read(0);
  }

 private:
  using Shape = RingShape<W>;
  static constexpr int kVector = Shape::kVector;

  static DEEPPCR_DEVICE int After(int slot) {
    return slot + Shape::kChunkFloats == Shape::kFloats ? 0 : slot + Shape::kChunkFloats;
  }
  DEEPPCR_DEVICE float* Weights(int at, int j) const {
    return slots_ + at + j * kWarpSize + context_.lane() * kVector;
  }
  DEEPPCR_DEVICE float* Bias(int at) const {
    return slots_ + at + Shape::kColumns * kWarpSize + context_.lane();
  }
  DEEPPCR_DEVICE LayerPart<W> ReadAt(int at) const {
    LayerPart<W> layer;
    DEEPPCR_UNROLL
    for (int j = 0; j < Shape::kColumns; j += kVector) {
      if constexpr (kVector == 4) {
        float four[4] = {};
        context_.LoadFour(Weights(at, j), four);
        DEEPPCR_UNROLL
        for (int i = 0; i < 4; ++i) layer.weights[j + i] = four[i];
      } else {
        DEEPPCR_UNROLL
        for (int i = 0; i < kVector; ++i) layer.weights[j + i] = Weights(at, j)[i];
      }
    }
    layer.bias = *Bias(at);
    return layer;
  }

  Context& context_;
  LayerCursor<W> cursor_;
  float* const slots_;
  int64_t left_;  // chunks to be fetched
  int fetched_ = 0, read_ = Shape::kFloats - Shape::kChunkFloats;
};

// A sample's steps, each of which waits for the one before: nothing else may stand on that chain. A
// layer is read from the ring while the layer before it is multiplied.
template <int W, class Context, class Rule>
class SequentialSolve {
 public:
  DEEPPCR_DEVICE SequentialSolve(Context& context, const SequentialArgs& args, const Rule& rule,
                                 int64_t sample)
      : context_(context),
        args_(args),
        rule_(rule),
        sample_(sample),
        trajectory_(args, args.stack, sample, context.lane(), true),
        z_(args.states[sample * W + context.lane() % W]) {}

  DEEPPCR_DEVICE void Run() {
    trajectory_.Write(z_);
    const int64_t chunks = (args_.end - args_.begin) / kChunk;
    if (chunks > 0) TakeChunks(chunks);
    for (int64_t l = args_.begin + chunks * kChunk; l < args_.end; ++l)
      Take(LoadLayer<W>(context_, args_.stack, l));
    if (context_.lane() < W) args_.final_states[sample_ * W + context_.lane()] = z_;
    if (sample_ == 0 && context_.lane() == 0) *args_.num_dependent = made_;
  }

 private:
  static constexpr int kChunk = RingShape<W>::kLayers;

  DEEPPCR_DEVICE void TakeChunks(int64_t chunks) {
    LayerRing<W, Context> ring(context_, args_.stack, args_.begin, chunks);
    LayerPart<W> layer = ring.ReadNext();
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      DEEPPCR_UNROLL
      for (int k = 0; k < kChunk; ++k) {
        ring.Fetch(k);
        const LayerPart<W> next = k + 1 < kChunk ? ring.Read(k + 1) : ring.ReadNext();
        Take(layer);
        layer = next;
      }
      ring.Commit();
    }
    ring.Wait();  // no copy is to come after the block has gone
  }
  DEEPPCR_DEVICE void Take(const LayerPart<W>& layer) {
    z_ = Step<W>(context_, rule_, layer, z_);
    trajectory_.Write(z_);
    ++made_;
  }

  Context& context_;
  const SequentialArgs& args_;
  const Rule rule_;
  const int64_t sample_;
  TrajectoryWriter trajectory_;
  float z_;
  int64_t made_ = 0;
};

// Body of a launch of blocks of whole warps, a warp per sample, with SequentialBytes of shared
// memory a block.
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
