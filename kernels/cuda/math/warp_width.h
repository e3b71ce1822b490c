// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_WARP_WIDTH_H_
#define DEEPPCR_KERNELS_CUDA_MATH_WARP_WIDTH_H_

// Kernels of a warp a state are made for each of kWidths: the one place that tells them apart.

#include <cuda_runtime_api.h>

#include <type_traits>

#include "kernels/cuda/loop/newton_shape.h"

namespace deeppcr::cuda {

// f(std::integral_constant<int, W>) for the width; cudaErrorInvalidValue for one of no kernel.
template <class F>
cudaError_t WithWidth(int width, const F& f) {
  if (width == 8) return f(std::integral_constant<int, 8>{});
  if (width == 16) return f(std::integral_constant<int, 16>{});
  if (width == 32) return f(std::integral_constant<int, 32>{});
  return cudaErrorInvalidValue;
}
// The same for every width, until there is an error.
template <class F>
cudaError_t ForWidths(const F& f) {
  for (const int width : kWidths) {
    if (const cudaError_t error = WithWidth(width, f); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_WARP_WIDTH_H_
