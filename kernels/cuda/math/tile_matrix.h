// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_TILE_MATRIX_H_
#define DEEPPCR_KERNELS_CUDA_MATH_TILE_MATRIX_H_

// Products of matrices [W, W] on the tensor cores, by a warp, as exact as those of floats.
//
// mma.m16n8k8 (runtime/device_context.h) multiplies TF32 numbers and adds up floats; every factor
// is two of them (split_floats.h).
//
// A warp holds X transposed in the accumulators of mma, and takes X to L X as X^T L^T: with the
// columns of X^T numbered so that lane % 4 = t stands for columns 2 t and 2 t + 1, an accumulator
// is where the next product wants its factor, and L^T is pairs of neighbours in a row of L.

#include "kernels/cuda/math/split_floats.h"
#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// Pairs of neighbours in the rows of a [W, W], as LeftProduct takes them.
template <int W>
struct RowPairs {
  static constexpr int kTiles = W / 8;
  float at[kTiles][kTiles][2];

  // load(offset, pair) loads the two elements from `offset` on, of rows kRowStride floats apart.
  template <int kRowStride, class Context, class LoadPair>
  DEEPPCR_DEVICE void Load(Context& context, const LoadPair& load) {
    const int row = context.lane() / 4, pair = 2 * (context.lane() % 4);
    DEEPPCR_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      DEEPPCR_UNROLL
      for (int k = 0; k < kTiles; ++k) load((8 * n + row) * kRowStride + 8 * k + pair, at[n][k]);
    }
  }
};

template <int W>
class TileMatrix {
 public:
  static_assert(W == 8 || W % 16 == 0, "whole tiles");

  // Sets every element of X that the lane holds to f(row, column).
  template <class Context, class F>
  DEEPPCR_DEVICE void Set(Context& context, const F& f) {
    ForMine(context, [&](int i, int j, float* x) { *x = f(i, j); });
  }
  template <class Context>
  DEEPPCR_DEVICE void SetIdentity(Context& context) {
    Set(context, [](int i, int j) { return i == j ? 1.0F : 0.0F; });
  }
  // Loads X from, and stores it to, a row-major matrix: a lane has the same elements of both.
  template <class Context>
  DEEPPCR_DEVICE void Load(Context& context, const float* matrix) {
    Set(context, [&](int i, int j) { return matrix[i * W + j]; });
  }
  template <class Context>
  DEEPPCR_DEVICE void Store(Context& context, float* matrix) {
    ForMine(context, [&](int i, int j, const float* x) { matrix[i * W + j] = *x; });
  }

  // product = L X.
  template <class Context>
  DEEPPCR_DEVICE void LeftProduct(Context& context, const RowPairs<W>& left,
                                  TileMatrix& product) const {
    // Where there are few tiles, either kind of rest has sums of its own, so that chains are short.
    float rests[kRestSums][kRowTiles][kColTiles][4] = {};
    DEEPPCR_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      DEEPPCR_UNROLL
      for (int n = 0; n < kColTiles; ++n) {
        DEEPPCR_UNROLL
        for (int r = 0; r < 4; ++r) product.at_[m][n][r] = 0.0F;
      }
    }
    DEEPPCR_UNROLL
    for (int k = 0; k < kColTiles; ++k) {
      DEEPPCR_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        const float(&x)[4] = at_[m][k];
        const SplitFloats<4> a(context, {x[0], x[2], x[1], x[3]});
        DEEPPCR_UNROLL
        for (int n = 0; n < kColTiles; ++n) {
          const SplitFloats<2> b(context, left.at[n][k]);
          context.AddProduct(a.rest, b.large, rests[0][m][n]);
          context.AddProduct(a.large, b.rest, rests[kRestSums - 1][m][n]);
          context.AddProduct(a.large, b.large, product.at_[m][n]);
        }
      }
    }
    DEEPPCR_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      DEEPPCR_UNROLL
      for (int n = 0; n < kColTiles; ++n) {
        DEEPPCR_UNROLL
        for (int r = 0; r < 4; ++r) {
          float rest = rests[0][m][n][r];
          if constexpr (kRestSums == 2) rest += rests[1][m][n][r];
          product.at_[m][n][r] += rest;
        }
      }
    }
  }

  // X <- diag(scales) product, or X + diag(scales) product; a lane has element lane % W of `scale`.
  template <class Context>
  DEEPPCR_DEVICE void TakeScaled(Context& context, float scale, const TileMatrix& product,
                                 bool adds) {
    DEEPPCR_UNROLL
    for (int n = 0; n < kColTiles; ++n) {
      DEEPPCR_UNROLL
      for (int h = 0; h < 2; ++h) {
        const float s = context.Shuffle(scale, 8 * n + 2 * (context.lane() % 4) + h);
        DEEPPCR_UNROLL
        for (int m = 0; m < kRowTiles; ++m) {
          DEEPPCR_UNROLL
          for (int r = h; r < 4; r += 2) {
            const float p = product.at_[m][n][r];
            at_[m][n][r] = adds ? fmaf(s, p, at_[m][n][r]) : s * p;
          }
        }
      }
    }
  }

 private:
  static constexpr int kRowTiles = (W + 15) / 16, kColTiles = W / 8;
  static constexpr int kRestSums = W < 32 ? 2 : 1;
  // Of a tile of 16 rows a matrix of eight fills the first half.
  static constexpr int kPerTile = W < 16 ? 2 : 4;

  // Calls f(row, column, &x) for every element of X that the lane holds.
  template <class Context, class F>
  DEEPPCR_DEVICE void ForMine(Context& context, const F& f) {
    const int g = context.lane() / 4, pair = 2 * (context.lane() % 4);
    DEEPPCR_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      DEEPPCR_UNROLL
      for (int n = 0; n < kColTiles; ++n) {
        DEEPPCR_UNROLL
        for (int r = 0; r < kPerTile; ++r)
          f(8 * n + pair + r % 2, 16 * m + g + 8 * (r / 2), &at_[m][n][r]);
      }
    }
  }

  // Tile (m, n) of X^T: rows 16 m + g and 16 m + g + 8, columns 8 n + 2 t and the next, with
  // g = lane / 4 and t = lane % 4.
  float at_[kRowTiles][kColTiles][4] = {};
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_TILE_MATRIX_H_
