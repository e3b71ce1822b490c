// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_HALF_LAYER_H_
#define DEEPPCR_KERNELS_CUDA_MATH_HALF_LAYER_H_

// A matrix times one vector on the tensor cores, for guesses: weights are half-precision numbers,
// whose rows are scaled so that the largest is between 1 and 2; of an element of the vector there
// are two, the nearest and that of the rest. Sums are floats. A weight is wrong by 2^-11 of itself
// at most, or by 2^-25 of its row's largest; an element by 2^-22 of itself, or by 2^-25. One beyond
// 65504 is infinite.
//
// A warp has sixteen rows. mma.m16n8k16 (runtime/device_context.h) takes sixteen columns at a time;
// which these are is free: here four from each quarter of the row, so that a lane's weights of
// them, and its elements, lie one after another. The columns of its other factor are all the
// vector, the nearest numbers in even ones and the rests in odd ones: every lane has sums.

#include <cstdint>

#include "kernels/cuda/math/panel_layer.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

inline constexpr int kHalfRows = 16;              // rows of a warp
inline constexpr int kMostHalfCols = kHeldWidth;  // columns of a layer
inline constexpr int kMostHalfSteps = kMostHalfCols / kPanelCols;

struct HalfLayer {
  // [rows / 16, cols / 16, 32 lanes, 8] halves: see HalfPlace.
  const uint16_t* weights;
  // [rows]: powers of two, by which what the halves of a row say is to be multiplied.
  const float* scales;
  int32_t rows, cols;  // multiples of 16, zeros beyond the matrix

  // Layer i of layers of one shape, of which this is the first.
  DEEPPCR_DEVICE HalfLayer Next(int i) const {
    return {weights + int64_t{i} * rows * cols, scales + int64_t{i} * rows, rows, cols};
  }
};

// The half of a layer's weights that is of row i and column k.
constexpr int64_t HalfPlace(int64_t cols, int64_t i, int64_t k) {
  const int64_t quarter = cols / kSegments, t = k / quarter, in_quarter = k % quarter;
  const int64_t step = in_quarter / 4, lane = i % 8 * kSegments + t;
  const int64_t word = in_quarter % 4 / 2 * 2 + i % kHalfRows / 8;
  return (((i / kHalfRows * (cols / kPanelCols) + step) * 32 + lane) * 4 + word) * 2 + k % 2;
}

// A vector as halves in shared memory, of any length up to kMostHalfCols: quarters, and rests
// behind the nearest numbers, so that the lanes of a load find theirs in different banks.
struct HalfVector {
  static constexpr int kQuarter = kMostHalfCols / kSegments + 8, kRests = kSegments * kQuarter;
  static constexpr int kFloats = kRests;  // that it takes, two halves each

  uint16_t* at;

  // Puts element k of a vector of kCols.
  template <int kCols, class Context>
  DEEPPCR_DEVICE void Put(int k, float x) const {
    constexpr int quarter = kCols / kSegments;
    uint16_t* const to = at + k / quarter * kQuarter + k % quarter;
    const uint16_t nearest = Context::ToHalf(x);
    to[0] = nearest;
    to[kRests] = Context::ToHalf(x - Context::OfHalf(nearest));
  }
};

// A lane's weights of its warp's rows, kSteps x 16 columns of them.
template <int kSteps>
struct HalfWeights {
  uint32_t at[kSteps][4];
  float scale;

  // Rows from kHalfRows `tile` on. `row`: RowOfLane.
  template <class Context>
  DEEPPCR_DEVICE void Load(Context& context, const HalfLayer& layer, int tile, int row) {
    scale = layer.scales[row];
    const uint16_t* const from = layer.weights + tile * kHalfRows * layer.cols + 8 * context.lane();
    DEEPPCR_UNROLL
    for (int j = 0; j < kSteps; ++j) {
      if (j == 0 || j * kPanelCols < layer.cols)
        context.LoadHalves(from + j * kWarpSize * 8, at[j]);
    }
  }
};

// The row of a tile whose sum a lane has: that of lane / 4 or eight rows behind it, in two lanes
// each.
template <class Context>
DEEPPCR_DEVICE int RowOfLane(Context& context, int tile) {
  return kHalfRows * tile + context.lane() / kSegments + 8 * (context.lane() % 2);
}
// True for the lane of a row's two that stores for it.
template <class Context>
DEEPPCR_DEVICE bool StoresRow(Context& context) {
  return context.lane() % kSegments < 2;
}

// The lane's words of 16 columns of a vector: elements 4 step and the next three of quarter
// lane % 4.
struct HalfFactor {
  uint32_t at[2];
};

// The sum of the lane's row, of a layer of `cols` <= 16 kSteps columns. load(j): HalfFactor of step
// j.
template <int kSteps, class Context, class Load>
DEEPPCR_DEVICE float MultiplyHalves(Context& context, const HalfWeights<kSteps>& weights, int cols,
                                    const Load& load) {
  float sums[2][4] = {};
  DEEPPCR_UNROLL
  for (int j = 0; j < kSteps; ++j) {
    if (j == 0 || j * kPanelCols < cols)
      context.AddHalfProduct(weights.at[j], load(j).at, sums[j % 2]);
  }
  const bool lower = context.lane() % 2 != 0;
  const float even = lower ? sums[0][2] + sums[0][3] : sums[0][0] + sums[0][1];
  const float odd = lower ? sums[1][2] + sums[1][3] : sums[1][0] + sums[1][1];
  return (even + odd) * weights.scale;
}

// The factors of a vector in shared memory.
template <int kSteps, class Context>
DEEPPCR_DEVICE float MultiplyHalves(Context& context, const HalfWeights<kSteps>& weights,
                                    const HalfVector& x) {
  static_assert(kSteps % 2 == 0, "two steps a load");
  const int lane = context.lane();
  const uint16_t* const from =
      x.at + lane / kSegments % 2 * HalfVector::kRests + lane % kSegments * HalfVector::kQuarter;
  uint32_t words[kSteps / 2][4];
  DEEPPCR_UNROLL
  for (int j = 0; j < kSteps; j += 2) context.LoadHalves(from + 4 * j, words[j / 2]);
  return MultiplyHalves(context, weights, kSteps * kPanelCols, [&](int j) {
    return HalfFactor{{words[j / 2][j % 2 * 2], words[j / 2][j % 2 * 2 + 1]}};
  });
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_HALF_LAYER_H_
