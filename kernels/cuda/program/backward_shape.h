// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_BACKWARD_SHAPE_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_BACKWARD_SHAPE_H_

// Sizes of the launches of backward_kernel.h.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/program/backward_kernel.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

// Shape of a launch whose blocks take one job after another.
struct ProgramBackShape {
  int columns = 1;  // S: cotangents that a block takes together
  int num_warps = 1;
  int64_t num_blocks = 1;       // at most
  size_t shared_bytes = 0;      // of a block
  int64_t workspace_bytes = 0;  // of a block
  bool frames_in_workspace = false;
};

// For m cotangents of a sample. A single one, as most requests have, has code of its own.
constexpr int BackColumns(int64_t num_columns) { return num_columns == 1 ? 1 : kBackColumns; }

constexpr ProgramBackShape BackShapeOf(int columns, int widest, int64_t frame_floats,
                                       int64_t sum_floats, const LaunchLimits& limits) {
  constexpr int64_t kFloat = sizeof(float), kAligned = 4;  // floats
  ProgramBackShape shape;
  shape.columns = columns;
  shape.num_warps = WarpsOf(widest, 1, limits.max_warps);
  const int64_t frame_bytes = frame_floats * kFloat;
  shape.frames_in_workspace = frame_bytes > static_cast<int64_t>(limits.shared_bytes);
  shape.shared_bytes = shape.frames_in_workspace ? 0 : static_cast<size_t>(frame_bytes);
  const int64_t floats = (shape.frames_in_workspace ? frame_floats : 0) + sum_floats;
  shape.workspace_bytes = (floats + kAligned - 1) / kAligned * kAligned * kFloat;
  shape.num_blocks = int64_t{kBackBlocks} * limits.multiprocessors;
  if (shape.workspace_bytes > 0) {
    const int64_t most = kBackWorkspaceBytes / shape.workspace_bytes;
    if (shape.num_blocks > most) shape.num_blocks = most > 1 ? most : 1;
  }
  return shape;
}

constexpr int WidestOf(const ProgramBackView& model) {
  int widest = model.state.section.widest;
  for (const ProgramTape* tape : {&model.mixed, &model.condition})
    if (tape->section.widest > widest) widest = tape->section.widest;
  return widest;
}

// Of the way back through intervals, with or without the cotangents of a condition, and of that
// through the condition.
constexpr ProgramBackShape RetreatShape(const ProgramBackView& model, bool condition,
                                        int64_t num_columns, const LaunchLimits& limits) {
  const int columns = BackColumns(num_columns);
  const bool mixed = condition && model.mixed.section.count > 0;
  return BackShapeOf(columns, WidestOf(model), RetreatFrameFloats(model, condition, columns),
                     mixed ? int64_t{columns} * model.process.mixed_floats : 0, limits);
}
constexpr ProgramBackShape ConditionBackShape(const ProgramBackView& model, int64_t num_columns,
                                              const LaunchLimits& limits) {
  const int columns = BackColumns(num_columns);
  return BackShapeOf(columns, WidestOf(model), TapeFloats(model.condition, columns), 0, limits);
}

// Blocks of a launch of so many jobs.
constexpr int64_t BlocksOf(const ProgramBackShape& shape, int64_t jobs) {
  return jobs < shape.num_blocks ? jobs : shape.num_blocks;
}
constexpr int64_t WorkspaceBytes(const ProgramBackShape& shape, int64_t jobs) {
  return BlocksOf(shape, jobs) * shape.workspace_bytes;
}

// Threads of a block of a scan: one an element of a vector, or of the rows of a product.
constexpr int ScanThreads(const ProgramLevelArgs& args, int max_warps) {
  const int rows = args.part == ScanPart::kMultiply ? kProductRows : 1;
  const int warps = (rows * args.scan.width - 1) / kWarpSize + 1;
  return (warps < max_warps ? warps : max_warps) * kWarpSize;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_BACKWARD_SHAPE_H_
