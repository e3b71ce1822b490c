// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_RESIDENT_SOLVE_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_RESIDENT_SOLVE_H_

// The whole Newton solve of a sample of a residual denoiser whose layers a block's shared memory
// holds: they are copied there once a solve, and a pass takes no launch (loop/grid_solve.h).

#include <cstdint>

#include "kernels/cuda/diffusion/resident_propagation.h"
#include "kernels/cuda/loop/grid_scan.h"
#include "kernels/cuda/loop/grid_solve.h"
#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

struct ResidentSolveArgs {
  ResidentArgs resident;  // of one sample; the tree is that of `solve`, `together` its per_block
  GridSolveArgs solve;

  constexpr int num_blocks() const { return GridBlocksOf(solve.newton.tree); }
};

// Floats of shared memory of a block.
constexpr int64_t ResidentSolveFloats(const DiffusionView& process, const IntervalTree& tree) {
  const DenoiserView& d = process.denoiser;
  const int64_t layers = ResidentLayerFloats(d);
  return layers + GridSolveFloats(GridScanFloats(tree, process.width),
                                  ResidentFloats(d, tree.per_block) - layers);
}

// Body of a cooperative launch of args.num_blocks() blocks of kResidentWarps, with
// ResidentSolveFloats of shared memory.
template <int W, int kHiddenTiles, class Context>
DEEPPCR_DEVICE void SolveResident(Context& context, const ResidentSolveArgs& args) {
  static_assert(W <= 16, "two tiles of a state");
  using Propagation = ResidentPropagation<2, kHiddenTiles, Context>;
  const DenoiserView& d = args.resident.propagation.process.denoiser;
  const IntervalTree& tree = args.solve.newton.tree;
  const int64_t layers = ResidentLayerFloats(d);
  Propagation(context, args.resident, context.block()).CopyLayers();
  using Scan = GridScan<W, Context>;
  SolveOverGrid<Scan>(context, args.solve, SharedFloats(context) + layers,
                      ResidentFloats(d, tree.per_block) - layers, [&](IterationKind kind) {
                        // Made anew for each pass, which has other uses for registers.
                        Propagation propagation(context, args.resident,
                                                context.Uniform(context.block()));
                        propagation.TakeLayers();
                        propagation.Propagate(kind);
                      });
}

// Calls f(std::integral_constant<int, W>, std::integral_constant<int, kHiddenTiles>) for the sizes
// of a process whose states have at most 16 elements.
template <class F>
auto WithResidentSolve(const DiffusionView& process, const F& f) {
  return WithResidentTiles(process.denoiser, [&](auto, auto hidden) {
    return process.width == 8 ? f(std::integral_constant<int, 8>{}, hidden)
                              : f(std::integral_constant<int, 16>{}, hidden);
  });
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_RESIDENT_SOLVE_H_
