// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_WARP_MATRIX_H_
#define DEEPPCR_KERNELS_CUDA_MATH_WARP_MATRIX_H_

// Matrices [W, W], row-major, by a warp. A lane has a part of column lane % W of a matrix, or, for
// products with vectors, the part of a row that warp_step.h defines. The chains of sums have a
// fixed shape.

#include <math.h>

#include "kernels/cuda/math/tile_matrix.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/stack/warp_step.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

// A lane's part of a column: rows FirstRow .. FirstRow + kColumnRows - 1.
template <int W>
constexpr int kColumnRows = LanePart<W>::kColumns;
template <int W>
DEEPPCR_DEVICE int FirstRow(int lane) {
  return lane / W * kColumnRows<W>;
}
template <int W, class Context>
DEEPPCR_DEVICE void StoreColumn(Context& context, const float (&column)[kColumnRows<W>],
                                float* matrix) {
  DEEPPCR_UNROLL
  for (int r = 0; r < kColumnRows<W>; ++r)
    matrix[(FirstRow<W>(context.lane()) + r) * W + context.lane() % W] = column[r];
}
// Gathers the whole column from the lanes that share it.
template <int W, class Context>
DEEPPCR_DEVICE void GatherColumn(Context& context, const float (&column)[kColumnRows<W>],
                                 float (&whole)[W]) {
  DEEPPCR_UNROLL
  for (int k = 0; k < W; ++k)
    whole[k] =
        context.Shuffle(column[k % kColumnRows<W>], k / kColumnRows<W> * W + context.lane() % W);
}
template <int W>
DEEPPCR_DEVICE float RowTimes(const float (&row)[W], const float (&column)[W]) {
  float chains[2] = {};
  DEEPPCR_UNROLL
  for (int k = 0; k < W; ++k) chains[k % 2] = fmaf(row[k], column[k], chains[k % 2]);
  return chains[0] + chains[1];
}

// Loads a row or a part of one, at an address aligned to 16 bytes where N is a multiple of 4.
template <int N, class Context>
DEEPPCR_DEVICE void LoadRow(Context& context, const float* from, float (&row)[N]) {
  if constexpr (N % 4 != 0) {
    DEEPPCR_UNROLL
    for (int k = 0; k < N; ++k) row[k] = from[k];
  } else {
    DEEPPCR_UNROLL
    for (int k = 0; k < N; k += 4) {
      float four[4] = {};
      context.LoadFour(from + k, four);
      DEEPPCR_UNROLL
      for (int i = 0; i < 4; ++i) row[k + i] = four[i];
    }
  }
}

// product = right left, on the tensor cores, where `right` is at an address aligned to 8 bytes. All
// loads stand before the first store: a store may be to what is loaded next, for all the compiler
// knows, and `product` may be `left`, as no lane has its part of the product before all have
// loaded.
template <int W, class Context>
DEEPPCR_DEVICE void MultiplyMatrices(Context& context, const float* right, const float* left,
                                     float* product) {
  TileMatrix<W> factor, result;
  RowPairs<W> pairs;
  pairs.template Load<W>(context,
                         [&](int at, float(&two)[2]) { context.LoadTwo(right + at, two); });
  factor.Load(context, left);
  factor.LeftProduct(context, pairs, result);
  result.Store(context, product);
}

// Loads a lane's part of a transposed matrix: Multiply gives the lane's element of the product with
// the transposed matrix.
template <int W, class Context>
DEEPPCR_DEVICE LayerPart<W> LoadTransposed(Context& context, const float* matrix) {
  LayerPart<W> part;
  part.bias = 0.0F;
  DEEPPCR_UNROLL
  for (int r = 0; r < kColumnRows<W>; ++r)
    part.weights[r] = matrix[(FirstRow<W>(context.lane()) + r) * W + context.lane() % W];
  return part;
}

// The A of an interval or a node, as a warp multiplies vectors with it. In memory a full A is
// [W, W], a diagonal [W], and the identity nothing.
template <int W>
class Transition {
 public:
  Transition() = default;
  template <class Context>
  DEEPPCR_DEVICE Transition(Context& context, Linearization kind, const float* matrix)
      : kind_(kind), diagonal_(kind == Linearization::kDiagonal ? matrix[context.lane() % W] : 0) {
    if (kind != Linearization::kFull) return;
    const LanePart<W> at(context.lane());
    LoadRow(context, matrix + at.row * W + at.first_column, part_.weights);
  }
  // The lane's element of A x.
  template <class Context>
  DEEPPCR_DEVICE float Times(Context& context, float x) const {
    if (kind_ == Linearization::kFull) return Multiply<W>(context, part_, x);
    return kind_ == Linearization::kDiagonal ? diagonal_ * x : x;
  }

 private:
  Linearization kind_ = Linearization::kIdentity;
  float diagonal_ = 0.0F;
  LayerPart<W> part_ = {};
};

// The same for vectors in memory, aligned to 16 bytes: a lane has a whole row, all lanes read the
// vector at once, and no lane waits for another one's sum.
template <int W>
class RowTransition {
 public:
  RowTransition() = default;
  template <class Context>
  DEEPPCR_DEVICE RowTransition(Context& context, Linearization kind, const float* matrix)
      : kind_(kind), row_(context.lane() % W) {
    if (kind == Linearization::kDiagonal) weights_[0] = matrix[row_];
    if (kind == Linearization::kFull) LoadRow(context, matrix + row_ * W, weights_);
  }
  // Of a full A, from the lane's row.
  template <class Context>
  DEEPPCR_DEVICE RowTransition(Context& context, const float (&row)[W])
      : kind_(Linearization::kFull), row_(context.lane() % W) {
    DEEPPCR_UNROLL
    for (int j = 0; j < W; ++j) weights_[j] = row[j];
  }
  // The lane's element of A x.
  template <class Context>
  DEEPPCR_DEVICE float Times(Context& context, const float* x) const {
    if (kind_ == Linearization::kDiagonal) return weights_[0] * x[row_];
    if (kind_ != Linearization::kFull) return x[row_];
    float whole[W], chains[4] = {};
    LoadRow(context, x, whole);
    DEEPPCR_UNROLL
    for (int j = 0; j < W; ++j) chains[j % 4] = fmaf(weights_[j], whole[j], chains[j % 4]);
    return (chains[0] + chains[1]) + (chains[2] + chains[3]);
  }

 private:
  Linearization kind_ = Linearization::kIdentity;
  int row_ = 0;
  float weights_[W] = {};
};

// Composes the A of two intervals or nodes, `left` first.
template <int W, class Context>
DEEPPCR_DEVICE void ComposeTransitions(Context& context, Linearization kind, const float* right,
                                       const float* left, float* product) {
  if (kind == Linearization::kFull) {
    MultiplyMatrices<W>(context, right, left, product);
  } else if (context.lane() < W) {
    product[context.lane()] = right[context.lane()] * left[context.lane()];
  }
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_WARP_MATRIX_H_
