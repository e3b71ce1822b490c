// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_ARGS_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_ARGS_H_

// Arguments of the Newton kernel. Symbols as in kernels/backend/backend.h.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/loop/block_memory.h"
#include "kernels/cuda/loop/guess.h"
#include "kernels/cuda/loop/interval_tree.h"
#include "kernels/cuda/stack/warp_step.h"
#include "kernels/iteration/stopping.h"

namespace deeppcr::cuda {

// Part of a solve that a launch does. Where another kernel propagates (diffusion), the parts of a
// solve are launches of their own, and the data that they share lies in the workspace.
enum class NewtonPart : uint8_t {
  kWhole,  // the solve, of a dense stack
  kStart,  // the guess
  kPass,   // the rest of a pass after propagation: tree, update, decision; nothing after the stop
};

// Pointers are to device memory.
struct NewtonArgs {
  NewtonPart part;
  StackView stack;  // only its sizes are used in parts
  StoppingPolicy policy;
  Progress start;  // progress before the first pass, with the counts of the guess
  IntervalTree tree;
  int32_t shooting_interval;  // C
  GuessView guess;
  const float* initial_states;  // z_0 [n, W], zero beyond D
  float* final_states;          // y_P [n, W], zero beyond D
  float* trajectories;          // z_0..z_L [n, L + 1, D], or null
  Progress* outcomes;           // [n], for the host
  Progress* progress;           // [n], from part to part; null for the whole
  const int32_t* cancel;        // [n], or null: not 0 is the Termination to end with
  std::byte* workspace;         // [n, blocks, BlockMemory::Bytes], or null: shared memory
  bool holds_layers;            // shared memory holds the layers too: NewtonBytes
  bool holds_tree = false;      // in parts: shared memory holds the tree
};

// Layers of a block's intervals.
constexpr int64_t LayersOfBlock(const IntervalTree& tree, int32_t shooting_interval) {
  return int64_t{tree.per_block} * shooting_interval;
}
// True if a block's shared memory, which holds its intervals, has room for their layers: a pass
// that reads them from the L2 waits for most of them.
constexpr bool CanHoldLayers(const IntervalTree& tree, int32_t shooting_interval, int width,
                             size_t shared_bytes) {
  return BlockMemory::SharedBytes(tree, width) +
             BlockMemory::HeldBytes(width, LayersOfBlock(tree, shooting_interval)) <=
         shared_bytes;
}
// Bytes of shared memory of a block.
constexpr size_t NewtonBytes(const NewtonArgs& args, int width) {
  if (args.part != NewtonPart::kWhole)
    return args.holds_tree ? BlockMemory::TreeBytes(args.tree, width) : 0;
  if (args.workspace != nullptr) return 0;
  const int64_t layers = args.holds_layers ? LayersOfBlock(args.tree, args.shooting_interval) : 0;
  return BlockMemory::SharedBytes(args.tree, width) + BlockMemory::HeldBytes(width, layers);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_ARGS_H_
