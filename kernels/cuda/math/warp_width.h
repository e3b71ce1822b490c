// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_WARP_WIDTH_H_
#define DEEPPCR_KERNELS_CUDA_MATH_WARP_WIDTH_H_

// Selection of the kernel for a width: kernels of a warp a state are made for each of kWidths.

#include <cuda_runtime_api.h>

#include <type_traits>

#include "kernels/cuda/loop/newton_shape.h"

namespace deeppcr::cuda {

// Calls f(std::integral_constant<int, W>) for the width; cudaErrorInvalidValue for a width without
// a kernel.
template <class F>
cudaError_t WithWidth(int width, const F& f) {
  if (width == 8) return f(std::integral_constant<int, 8>{});
  if (width == 16) return f(std::integral_constant<int, 16>{});
  if (width == 32) return f(std::integral_constant<int, 32>{});
  return cudaErrorInvalidValue;
}
// Calls f for every width, until there is an error.
template <class F>
cudaError_t ForWidths(const F& f) {
  for (const int width : kWidths) {
    if (const cudaError_t error = WithWidth(width, f); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_WARP_WIDTH_H_
