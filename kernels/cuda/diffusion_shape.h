// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_SHAPE_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_SHAPE_H_

// Sizes of the launches of diffusion_kernel.h.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/diffusion_kernel.h"
#include "kernels/cuda/newton_shape.h"

namespace deeppcr::cuda {

// Of a block that makes reverse steps: a warp for each panel of a layer, up to so many.
inline constexpr int kMaxDiffusionWarps = 16;
constexpr int DiffusionWarps(const DenoiserView& d, int max_warps) {
  const int panels = d.hidden_width / kPanelRows;
  const int most = max_warps < kMaxDiffusionWarps ? max_warps : kMaxDiffusionWarps;
  return panels < most ? panels : most;
}

// Bytes of shared memory of steps of so many rows.
constexpr size_t StepBytes(int width, const DenoiserView& d, int rows) {
  const int64_t floats = width <= 8    ? DenoiserMemory<8, 1>::Floats(d, rows)
                         : width <= 16 ? DenoiserMemory<16, 1>::Floats(d, rows)
                                       : DenoiserMemory<32, 1>::Floats(d, rows);
  return static_cast<size_t>(floats) * sizeof(float);
}
constexpr size_t CoarseBytes(int width, const DenoiserView& d) {
  return StepBytes(width, d, 1) + static_cast<size_t>(width) * sizeof(float);
}

// Rows that pass through a step together: everything, or as much as a block has memory for; 0 where
// that is too little for a state, its probes and a column.
constexpr int StepRows(int width, const DenoiserView& d, const LaunchLimits& limits) {
  int rows = 1 + kNumProbes + width;
  while (rows > 0 && StepBytes(width, d, rows) > limits.shared_bytes) --rows;
  return rows >= 2 + kNumProbes ? rows : 0;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_SHAPE_H_
