// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_GRID_PLAN_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_GRID_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/loop/grid_args.h"
#include "kernels/cuda/program/grid_steps.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

// The most floats of panels that one of so many blocks could keep.
inline int64_t MostOwnFloats(std::span<const ProgramInstruction> instructions, int blocks) {
  int64_t most = 0;
  for (int block = 0; block < blocks; ++block) {
    PanelDeal deal(blocks);
    int64_t floats = 0;
    for (const ProgramInstruction& instruction : instructions) {
      floats += deal.FloatsOf(instruction, block);
      deal.Next(instruction);
    }
    most = std::max(most, floats);
  }
  return most;
}

// A launch over the whole GPU for the step of a process, whose section has these instructions. None
// where no layer is wide, or where blocks cannot wait for one another. Every block makes an
// element in every step: what an exchange asks for.
inline GridPlan PlanGrid(const ProgramView& process,
                         std::span<const ProgramInstruction> instructions,
                         const LaunchLimits& limits) {
  int64_t panels = 0;
  int32_t layers = 0;
  bool wide = false;
  for (const ProgramInstruction& instruction : instructions) {
    const int own = PanelsOf(instruction);
    panels += own;
    layers += own > 0 ? 1 : 0;
    wide = wide || own * kPanelRows >= kWideLayer;
  }
  GridPlan plan;
  const auto bytes = [&](int64_t resident) {
    return GridBytes(process, {0, static_cast<int32_t>(resident)});
  };
  if (!wide || bytes(0) > limits.shared_bytes) return plan;
  const auto blocks = static_cast<int32_t>(std::min<int64_t>(panels, limits.grid_blocks));
  if (blocks == 0) return plan;
  const auto room = static_cast<int64_t>((limits.shared_bytes - bytes(0)) / sizeof(float));
  const int64_t resident = std::min(room, MostOwnFloats(instructions, blocks));
  return {.shape = {blocks, static_cast<int32_t>(resident)},
          .exchanges = layers,
          .floats = process.StepFloats(1)};
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_GRID_PLAN_H_
