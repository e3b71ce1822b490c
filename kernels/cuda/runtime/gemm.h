// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RUNTIME_GEMM_H_
#define DEEPPCR_KERNELS_CUDA_RUNTIME_GEMM_H_

#include <cstdint>

#include "kernels/cuda/loop/interval_tree.h"

namespace deeppcr::cuda {

// product_j = right_j left_j for matrices [W, W], row-major, j = 0 .. count - 1, in float32:
// rounded to TF32, a matrix near the identity would lose its growth, and the certificate its
// meaning (tests/gpu/cuda_on_gpu_test.cc). The shape alone decides on the order of sums, so a
// sample has to have products of its own.
struct GemmArgs {
  int32_t width, count;
  const float* right;
  const float* left;
  int64_t stride;  // floats from one right or left to the next
  float* product;
  int64_t product_stride;
};

// The products of a level of a sample's tree, whose matrices lie at `matrices` + index_of(level, j)
// W^2; count is 0 where the level needs no products.
constexpr GemmArgs ProductsOfLevel(const IntervalTree& tree, int level, int32_t width,
                                   float* matrices) {
  const int64_t floats = int64_t{width} * width;
  const int32_t count = tree.nodes(level) - 2;  // all but the two spines
  if (count <= 0) return {width, 0, nullptr, nullptr, 0, nullptr, 0};
  return {width,
          count,
          matrices + tree.index_of(level - 1, 3) * floats,
          matrices + tree.index_of(level - 1, 2) * floats,
          2 * floats,
          matrices + tree.index_of(level, 1) * floats,
          floats};
}

// products = vectors weights^T, for a layer and tangents. Factors are rounded to TF32 (11 bits),
// sums are in float32: three digits of a network's Jacobian J are left. A reverse step has
// by_z I + by_m J, whose first part is no product; the loss over all steps is 2^-11 of the sum of
// |by_m J|, the flow of the process, which does not depend on the number of steps that it is cut
// into. The shape alone decides on the order of sums.
struct LayerGemmArgs {
  int32_t rows, outputs, inputs;
  const float* vectors;  // [rows, inputs]
  const float* weights;  // [outputs, inputs]
  float* products;       // [rows, outputs]
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_RUNTIME_GEMM_H_
