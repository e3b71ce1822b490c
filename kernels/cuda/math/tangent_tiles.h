// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_TANGENT_TILES_H_
#define DEEPPCR_KERNELS_CUDA_MATH_TANGENT_TILES_H_

// Sixteen tangents through the layers of a network, by a warp, on the tensor cores: each stays in
// registers from layer to layer.
//
// With X [16, cols] the tangents as rows, a layer takes X to X L^T. mma.m16n8k8
// (runtime/device_context.h) leaves tile p of a product, eight columns, in lane 4 g + t as columns
// 2 t and 2 t + 1 of rows g and g + 8. Which elements these columns are is free: here they are
// First(t) + 2 p and the next, where First(t) is that of the t-th quarter. So an accumulator is
// where the next layer wants its factor; and four elements one after another, of a row of L and the
// lane's quarter, are the factors of two products, and are where PanelPlace has them for one load
// that meets no other lane's bank.
//
// Factors are TF32: those of X are rounded, those of L cut off, so that layers are read as they
// are. What is lost is 2^-10 of a layer's product at most; sums are floats, and so is what a
// residual path adds. Or they are two TF32 numbers each, for three times as many products.

#include <cstdint>

#include "kernels/cuda/math/panel_layer.h"
#include "kernels/cuda/math/split_floats.h"
#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

inline constexpr int kTileTangents = 16;

// Element 2 p + e of a lane's elements, of vectors of `cols` elements.
struct TileElements {
  int first;

  template <class Context>
  DEEPPCR_DEVICE TileElements(Context& context, int cols)
      : first(context.lane() % kSegments * (cols / kSegments)) {}
  DEEPPCR_DEVICE int At(int p, int e) const { return first + 2 * p + e; }
};

// Vectors of 8 kTiles elements.
template <int kTiles>
struct TangentTiles {
  // Of tile p: elements 2 p and 2 p + 1 of tangent g, then of tangent g + 8.
  float at[kTiles][4];
};

// A tangent as TF32. The bits of the NaN that a GPU makes, 0x7FFFFFFF, would round up to those of
// -0.
template <class Context>
DEEPPCR_DEVICE float RoundTangent(float x) {
  return x == x ? Context::RoundToTf32(x) : Context::CutToTf32(x);
}

// Factors of the products with sixteen columns: tiles 2 j and 2 j + 1 of X, as in TangentTiles.
struct TangentFactors {
  float at[2][4];
};

// What factors are multiplied as.
enum class FactorsAre : uint8_t { kTf32, kSplit };

// Adds the products of group j of the weights, load(p, j, w) those of tile p, to y[p]: factors[h]
// are the lane's of the h-th half of the group, as the instruction takes them. Two products with
// one accumulator have those with others between them: the second waits for the first.
template <int kOut, class Context, class Load>
DEEPPCR_DEVICE void AddTf32Products(Context& context, const float (&factors)[2][4],
                                    const Load& load, int j, float (&y)[kOut][4]) {
  constexpr int kTogether = kOut < 4 ? kOut : 4;
  float a[2][4];
  DEEPPCR_UNROLL
  for (int h = 0; h < 2; ++h) {
    DEEPPCR_UNROLL
    for (int i = 0; i < 4; ++i) a[h][i] = RoundTangent<Context>(factors[h][i]);
  }
  DEEPPCR_UNROLL
  for (int tile = 0; tile < kOut; tile += kTogether) {
    float w[kTogether][4];
    DEEPPCR_UNROLL
    for (int p = 0; p < kTogether; ++p) {
      load(tile + p, j, w[p]);
      DEEPPCR_UNROLL
      for (int i = 0; i < 4; ++i) w[p][i] = Context::CutToTf32(w[p][i]);
    }
    DEEPPCR_UNROLL
    for (int p = 0; p < kTogether; ++p) context.AddProduct(a[0], {w[p][0], w[p][1]}, y[tile + p]);
    DEEPPCR_UNROLL
    for (int p = 0; p < kTogether; ++p) context.AddProduct(a[1], {w[p][2], w[p][3]}, y[tile + p]);
  }
}
// The same with factors split in two. The products with rests are sums of their own, so that chains
// are short.
template <int kOut, class Context, class Load>
DEEPPCR_DEVICE void AddSplitProducts(Context& context, const float (&factors)[2][4],
                                     const Load& load, int j, float (&rests)[kOut][4],
                                     float (&y)[kOut][4]) {
  constexpr int kTogether = kOut < 4 ? kOut : 4;
  const SplitFloats<4> a[2] = {{context, factors[0]}, {context, factors[1]}};
  DEEPPCR_UNROLL
  for (int tile = 0; tile < kOut; tile += kTogether) {
    float large[kTogether][4], rest[kTogether][4];
    DEEPPCR_UNROLL
    for (int p = 0; p < kTogether; ++p) {
      float w[4];
      load(tile + p, j, w);
      const SplitFloats<4> b(context, w);
      DEEPPCR_UNROLL
      for (int i = 0; i < 4; ++i) {
        large[p][i] = b.large[i];
        rest[p][i] = b.rest[i];
      }
    }
    DEEPPCR_UNROLL
    for (int h = 0; h < 2; ++h) {
      DEEPPCR_UNROLL
      for (int p = 0; p < kTogether; ++p)
        context.AddProduct(a[h].rest, {large[p][2 * h], large[p][2 * h + 1]}, rests[tile + p]);
      DEEPPCR_UNROLL
      for (int p = 0; p < kTogether; ++p)
        context.AddProduct(a[h].large, {large[p][2 * h], large[p][2 * h + 1]}, y[tile + p]);
      DEEPPCR_UNROLL
      for (int p = 0; p < kTogether; ++p)
        context.AddProduct(a[h].large, {rest[p][2 * h], rest[p][2 * h + 1]}, rests[tile + p]);
    }
  }
}

// y = X L^T without bias, of tiles `first` to first + kOut - 1 of a layer in shared memory with 8
// kIn columns and 8 kTiles rows; `first` is a multiple of kOut. factors(j): TangentFactors.
template <int kIn, int kTiles, int kOut, FactorsAre kFactors = FactorsAre::kTf32, class Context,
          class Factors>
DEEPPCR_DEVICE void MultiplyFactors(Context& context, const PanelLayer& layer, int first,
                                    const Factors& factors, float (&y)[kOut][4]) {
  const int g = context.lane() / kSegments, t = context.lane() % kSegments;
  constexpr int kGroups = 8 * kIn / kPanelCols;
  // The lane's weights of tile `first`, and how far behind them those of the p-th are: of the row 2
  // p behind. As many rows as tiles have do not leave a panel but where a panel ends.
  static_assert(kTiles % kOut == 0 && (kOut & (kOut - 1)) == 0);
  const auto place = [](int row) {
    return (row / kPanelRows * kGroups * kWarpSize + row % kPanelRows * kSegments) * 4;
  };
  const int row = 8 * kTiles / kSegments * (g / 2) + g % 2 + 2 * first;
  const float* const weights = layer.weights + place(row) + 4 * t;
  const auto load = [&](int p, int j, float(&w)[4]) {
    context.LoadFour(weights + place(2 * p) + j * kWarpSize * 4, w);
  };
  float rests[kFactors == FactorsAre::kSplit ? kOut : 1][4] = {};
  DEEPPCR_UNROLL
  for (int p = 0; p < kOut; ++p) {
    DEEPPCR_UNROLL
    for (int r = 0; r < 4; ++r) y[p][r] = 0.0F;
  }
  DEEPPCR_UNROLL
  for (int j = 0; j < kGroups; ++j) {
    const TangentFactors x = factors(j);
    float a[2][4];
    DEEPPCR_UNROLL
    for (int h = 0; h < 2; ++h) {
      a[h][0] = x.at[h][0];
      a[h][1] = x.at[h][2];
      a[h][2] = x.at[h][1];
      a[h][3] = x.at[h][3];
    }
    if constexpr (kFactors == FactorsAre::kSplit) {
      AddSplitProducts<kOut>(context, a, load, j, rests, y);
    } else {
      AddTf32Products<kOut>(context, a, load, j, y);
    }
  }
  DEEPPCR_UNROLL
  for (int p = 0; p < kOut && kFactors == FactorsAre::kSplit; ++p) {
    DEEPPCR_UNROLL
    for (int r = 0; r < 4; ++r) y[p][r] += rests[p][r];
  }
}

// The same of all tiles, of tangents in registers.
template <int kIn, int kOut, FactorsAre kFactors = FactorsAre::kTf32, class Context>
DEEPPCR_DEVICE void MultiplyTiles(Context& context, const PanelLayer& layer,
                                  const TangentTiles<kIn>& x, TangentTiles<kOut>& y) {
  MultiplyFactors<kIn, kOut, kOut, kFactors>(
      context, layer, 0,
      [&](int j) {
        TangentFactors factors;
        DEEPPCR_UNROLL
        for (int r = 0; r < 4; ++r) {
          factors.at[0][r] = x.at[2 * j][r];
          factors.at[1][r] = x.at[2 * j + 1][r];
        }
        return factors;
      },
      y.at);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_TANGENT_TILES_H_
