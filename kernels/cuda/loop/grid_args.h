// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_GRID_ARGS_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_GRID_ARGS_H_

// Sequential steps by all blocks of a GPU together (grid_team.h).

#include <cstdint>

#include "kernels/cuda/loop/block_recurrence.h"
#include "kernels/cuda/math/grid_team.h"

namespace deeppcr::cuda {

// Shape of a launch over the whole GPU; no blocks: none is made.
struct GridShape {
  int32_t blocks;
  // What a block keeps in shared memory: layers of a denoiser, or floats for those of a program.
  int32_t resident;
};

// How all blocks of a GPU make the steps of a process.
struct GridPlan {
  GridShape shape = {};   // no blocks: they make none
  int32_t exchanges = 0;  // of a step
  int64_t floats = 0;     // of shared memory, up to the last that is exchanged

  constexpr GridExchange Exchange() const { return NewExchange(exchanges, floats); }
  // Bytes of places.
  constexpr int64_t bytes() const {
    return shape.blocks == 0 ? 0 : Exchange().num_places() * int64_t{sizeof(uint64_t)};
  }
};

template <class Process>
struct GridStepsArgs {
  BlockSequentialArgs<Process> sequential;  // one sample after another, by one team
  GridExchange exchange;
  int32_t resident;  // of the GridShape

  constexpr GridShape shape() const { return {sequential.team.num_blocks, resident}; }
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_GRID_ARGS_H_
