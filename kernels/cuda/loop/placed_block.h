// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_PLACED_BLOCK_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_PLACED_BLOCK_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/loop/block_memory.h"
#include "kernels/cuda/loop/newton_args.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

// Where the data of a block lies.
enum class BlockPlace {
  kShared,      // in its shared memory
  kWorkspace,   // in the workspace in global memory
  kSharedTree,  // there, but for the tree, of which every launch forms one of its own
};

// The data of a block of the Newton kernel, and that of the other blocks of its cluster.
template <int W, BlockPlace kPlace, class Context>
class PlacedBlock {
 public:
  DEEPPCR_DEVICE PlacedBlock(Context& context, const NewtonArgs& args)
      : context_(context), args_(args) {}

  DEEPPCR_DEVICE BlockMemory memory() const {
    if constexpr (kPlace == BlockPlace::kShared) return {args_.tree, W, context_.shared()};
    const BlockMemory memory = InWorkspace();
    if constexpr (kPlace == BlockPlace::kSharedTree)
      return {args_.tree, W, context_.shared(), memory.base};
    return memory;
  }
  // Address in the tree of another block, or among its states, that corresponds to `local` in this
  // block's memory.
  template <class T>
  DEEPPCR_DEVICE T* RemoteTree(T* local, int block) const {
    if constexpr (kPlace != BlockPlace::kWorkspace) return context_.Remote(local, block);
    return InWorkspaceOf(local, block);
  }
  DEEPPCR_DEVICE float* RemoteState(float* local, int block) const {
    if constexpr (kPlace == BlockPlace::kShared) return context_.Remote(local, block);
    return InWorkspaceOf(local, block);
  }

  // Begin to copy what propagation made of the block's intervals, of which there are `count`, to
  // the leaves of a tree in shared memory.
  DEEPPCR_DEVICE void FetchMatrices(Linearization linearization, int32_t count) const {
    const BlockMemory from = InWorkspace(), to = memory();
    if (linearization == Linearization::kFull)
      CopyRows<W * W, W * W>(from.Matrix(0), count, to.Matrix(0));
    if (linearization == Linearization::kDiagonal)
      CopyRows<W, W * W>(from.Matrix(0), count, to.Matrix(0));
    context_.CommitCopies();
  }
  DEEPPCR_DEVICE void FetchResiduals(IterationKind kind, int32_t count) const {
    const BlockMemory from = InWorkspace(), to = memory();
    kind.vectors() == 1 ? CopyRows<W, kRow>(from.Residual(0), count, to.Residual(0))
                        : CopyRows<kRow, kRow>(from.Residual(0), count, to.Residual(0));
    context_.CommitCopies();
  }
  DEEPPCR_DEVICE void AwaitLeaves() const { context_.template WaitForCopies<0>(); }
  // Asks for what a warp is to update of the states in the workspace, those of the intervals
  // warp(), warp() + warps, ... < count, after the last barrier of the cluster before that: each
  // takes from the L1 what it has.
  DEEPPCR_DEVICE void PrefetchStates(IterationKind kind, int32_t count) const {
    if (kind.vectors() > 1) {
      PrefetchColumns<kNumColumns, kNumColumns>(count);
    } else if (kind.confirms()) {
      PrefetchColumns<1 + kBallColumn, 1>(count);
    } else {
      PrefetchColumns<1, 1>(count);
    }
  }

 private:
  static constexpr int kRow = kNumColumns * W;

  // The first columns of states, and of what propagation made of them.
  template <int kOfState, int kPropagated>
  DEEPPCR_DEVICE void PrefetchColumns(int32_t count) const {
    constexpr int kLine = 32, kStateLines = (kOfState * W - 1) / kLine + 2;
    constexpr int kLines = kStateLines + (kPropagated * W - 1) / kLine + 2;
    const BlockMemory from = memory();
    const int32_t warps = context_.num_threads() / kWarpSize;
    for (int at = context_.lane();; at += kWarpSize) {
      const int32_t i = context_.warp() + at / kLines * warps;
      if (i >= count) return;
      const int line = at % kLines;
      const bool of_state = line < kStateLines;
      const int begin = kLine * (of_state ? line : line - kStateLines);
      const int last = (of_state ? kOfState : kPropagated) * W - 1;
      context_.Prefetch((of_state ? from.State(i + 1) : from.Propagated(i)) +
                        (begin < last ? begin : last));
    }
  }

  DEEPPCR_DEVICE BlockMemory InWorkspace() const {
    return MemoryInWorkspace(args_.workspace, args_.tree, W, context_.cluster(), context_.block());
  }
  template <class T>
  DEEPPCR_DEVICE T* InWorkspaceOf(T* local, int block) const {
    const auto stride = static_cast<int64_t>(BlockMemory::Bytes(args_.tree, W));
    return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(local) +
                                (block - context_.block()) * stride);
  }
  // Copies the first kFloats of kStride floats that each of `count` intervals has.
  template <int kFloats, int kStride>
  DEEPPCR_DEVICE void CopyRows(const float* from, int32_t count, float* to) const {
    constexpr int kFours = kFloats / 4;
    for (int at = context_.thread(); at < count * kFours; at += context_.num_threads()) {
      const int place = at / kFours * kStride + 4 * (at % kFours);
      context_.template CopyAsync<4>(from + place, to + place);
    }
  }

  Context& context_;
  const NewtonArgs& args_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_PLACED_BLOCK_H_
