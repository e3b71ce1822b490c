// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_GRID_SITES_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_GRID_SITES_H_

namespace deeppcr::cuda {

// The barrier calls of a solve over a grid, beyond those of resident_block.h.
enum GridSolveSite : int {
  kAfterGridGuess = 96,
  kAfterGridPropagation,
  kAfterGridIntervals,
  kAfterGridNode,
  kBeforeGridRound,
  kAfterGridPrefixes,
  kBeforeGridGroup,
  kForGroupMatrices,  // elements are awaited, not a barrier, as with the next ones
  kForGroupVectors,
  kForChainMatrices,
  kForChainVectors,
  kForNodeBefore,
  kAfterGridNodes,
  kAfterGroupPrefixes,
  kBeforeGridChain,
  kBeforeGridEntering,
  kAfterGridChain,
  kAfterGridNorms,
  kForGridOutcomes,  // elements are awaited, not a barrier, as with the next one
  kForGridHalo,
  kAfterGridOutcomes,
  kAfterGridProgress,
  kNumGridSolveSites,
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_GRID_SITES_H_
