// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_RESIDENT_STACK_SOLVE_H_
#define DEEPPCR_KERNELS_CUDA_STACK_RESIDENT_STACK_SOLVE_H_

// The whole Newton solve of a sample of a dense stack in one launch over the whole GPU: a block has
// one shooting interval, whose layers its shared memory holds for the solve, and blocks without
// intervals compose matrices (loop/helped_scan.h).

#include <cstdint>

#include "kernels/cuda/loop/block_memory.h"
#include "kernels/cuda/loop/grid_solve.h"
#include "kernels/cuda/loop/helped_scan.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/stack/panel_step.h"
#include "kernels/cuda/stack/resident_stack.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

// The width of states that the kernel is made for.
inline constexpr int kResidentStackWidth = 64;

struct ResidentStackArgs {
  PanelStackView stack;
  GridSolveArgs solve;  // of one sample; the tree is that of a single block, as its workspace is

  constexpr int num_blocks() const { return HelpedShape{solve.newton.tree.num_intervals}.blocks(); }
};

// Floats of shared memory of a block.
constexpr int64_t ResidentStackFloats(int32_t intervals, int64_t shooting_interval) {
  using Scan = HelpedScan<ResidentStack<kResidentStackWidth, int>>;
  return GridSolveFloats(Scan::Floats(intervals, shooting_interval), 0);
}

// Body of a cooperative launch of args.num_blocks() blocks of kResidentWarps, with
// ResidentStackFloats of shared memory.
template <int W, class Context>
DEEPPCR_DEVICE void SolveResidentStack(Context& context, const ResidentStackArgs& args) {
  using Scan = HelpedScan<ResidentStack<W, Context>>;
  const NewtonArgs& newton = args.solve.newton;
  float* const memory = SharedFloats(context);
  const ResidentStack<W, Context> stack(context, args.stack, newton.shooting_interval, memory);
  const Scan scan(context, args.solve.places, newton, memory);
  const int64_t begin = int64_t{scan.first()} * newton.shooting_interval;
  const int64_t end = begin + newton.shooting_interval;
  const StackInterval interval = {scan.first(), begin,
                                  end < args.stack.num_steps ? end : args.stack.num_steps,
                                  scan.State(0), scan.State(1)};
  if (scan.count() > 0) stack.CopyLayers(interval);
  SolveOverGrid<Scan>(context, args.solve, memory, 0, [&](IterationKind kind) {
    if (scan.count() > 0)
      stack.Propagate(interval, kind, scan.Propagated(0), scan.Residual(), scan.Matrix());
  });
  if (scan.count() > 0) scan.KeepStates(newton);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_RESIDENT_STACK_SOLVE_H_
