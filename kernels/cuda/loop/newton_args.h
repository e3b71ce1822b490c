// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_ARGS_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_ARGS_H_

// What the Newton kernel is told. Symbols as in kernels/backend/backend.h.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/loop/guess.h"
#include "kernels/cuda/loop/interval_tree.h"
#include "kernels/cuda/stack/warp_step.h"
#include "kernels/iteration/stopping.h"

namespace deeppcr::cuda {

// What a launch does. Where propagation is another kernel's (diffusion), the parts of a solve are
// launches of their own, and what they have in common lies in slabs.
enum class NewtonPart : uint8_t {
  kWhole,  // the solve, of a dense stack
  kStart,  // the guess
  kPass,   // what follows a propagation: tree, update, decision; nothing once it has stopped
};

// Pointers are the device's.
struct NewtonArgs {
  NewtonPart part;
  StackView stack;  // of which, in parts, only the sizes are used
  StoppingPolicy policy;
  Progress start;  // what there is before the first pass, counts of the guess among it
  IntervalTree tree;
  int32_t shooting_interval;  // C
  GuessView guess;
  const float* initial_states;  // z_0 [n, W], zero beyond D
  float* final_states;          // y_P [n, W], zero beyond D
  float* trajectories;          // z_0..z_L [n, L + 1, D], or null
  Progress* outcomes;           // [n], for the host
  Progress* progress;           // [n], from part to part; null for the whole
  const int32_t* cancel;        // [n], or null: not 0 is the Termination to end with
  std::byte* slabs;             // [n, blocks, BlockMemory::Bytes], or null: shared memory
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_NEWTON_ARGS_H_
