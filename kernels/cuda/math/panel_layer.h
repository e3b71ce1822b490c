// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_PANEL_LAYER_H_
#define DEEPPCR_KERNELS_CUDA_MATH_PANEL_LAYER_H_

// A matrix times a few vectors, by a team of threads (team.h): the layers of denoisers and of wide
// stacks.
//
// Four lanes share a row of the matrix, a quarter of its columns each; a warp has eight rows, a
// panel, whose weights lie in the order in which its lanes read them. The bits of a product depend
// neither on the other vectors nor on the number of warps.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

inline constexpr int kPanelRows = 8;
inline constexpr int kSegments = 4;  // segments of a row
inline constexpr int kPanelCols = 4 * kSegments;

constexpr int PanelWidth(int64_t dim) {
  return static_cast<int>((dim + kPanelCols - 1) / kPanelCols * kPanelCols);
}

// A vector of K elements, K a multiple of kPanelCols, lies in shared memory with four unused floats
// behind every quarter, so that the lanes of a row do not ask for the same bank.
constexpr int VectorFloats(int cols) { return cols + 4 * kSegments; }
constexpr int VectorPlace(int cols, int k) {
  const int quarter = cols / kSegments;
  return k + 4 * ((k >= quarter) + (k >= 2 * quarter) + (k >= 3 * quarter));
}

struct PanelLayer {
  const float* weights;  // [rows / 8, cols / 16, 32 lanes, 4]: see PanelPlace
  const float* bias;     // [rows], or null for none
  const float* spreads;  // [rows]: RoundingSpread of backend/common.h
  int32_t rows;          // a multiple of kPanelRows, zeros beyond the matrix
  int32_t cols;          // a multiple of kPanelCols, zeros beyond the matrix
};

// Place of element (row, col) of the matrix.
constexpr int64_t PanelPlace(int64_t cols, int64_t row, int64_t col) {
  const int64_t quarter = cols / kSegments;
  const int64_t lane = row % kPanelRows * kSegments + col / quarter;
  const int64_t group = (row / kPanelRows * (cols / kPanelCols) + col % quarter / 4) * 32 + lane;
  return group * 4 + col % 4;
}

// Squares that are summed up beside the products: none, those of the elements of the first vector,
// or those of the terms of its products.
enum class Squares : uint8_t { kNone, kOfVector, kOfTerms };

// Sums that a lane has of one row of the matrix after a product with S vectors: of every four
// vectors the sum of one, vector 4 q + lane % 4, and the sum of the first vector.
template <int S>
struct PanelSums {
  static constexpr int kQuads = (S + kSegments - 1) / kSegments;
  float mine[kQuads];  // without the bias
  float first;
  float squares;  // sum of the squares that were asked for
};

// Weights of a lane in a panel, in global memory: group j is four weights of the lane's quarter of
// a row.
template <class Context>
class StreamedPanel {
 public:
  static constexpr int kMostGroups = 0;  // any number
  DEEPPCR_DEVICE StreamedPanel(Context& context, const PanelLayer& layer, int panel)
      : context_(context),
        weights_(layer.weights +
                 (int64_t{panel} * (layer.cols / kPanelCols) * kWarpSize + context.lane()) * 4) {}
  DEEPPCR_DEVICE void Load(int j, float (&w)[4]) const {
    context_.LoadConstants(weights_ + int64_t{j} * kWarpSize * 4, w);
  }

 private:
  Context& context_;
  const float* const weights_;
};

// Weights of a lane in a panel, in registers once Hold has put them there.
template <int kGroups>
class HeldPanel {
 public:
  static constexpr int kMostGroups = kGroups;
  template <class Context>
  DEEPPCR_DEVICE void Hold(Context& context, const PanelLayer& layer, int panel) {
    const StreamedPanel<Context> from(context, layer, panel);
    DEEPPCR_UNROLL
    for (int j = 0; j < kGroups; ++j) {
      if (j < layer.cols / kPanelCols) from.Load(j, weights_[j]);
    }
  }
  DEEPPCR_DEVICE void Load(int j, float (&w)[4]) const {
    DEEPPCR_UNROLL
    for (int i = 0; i < 4; ++i) w[i] = weights_[j][i];
  }

 private:
  float weights_[kGroups][4];
};

// Calls f(0), ..., f(count - 1); unrolled where kMost is not 0, so that registers have fixed names.
template <int kMost, class F>
DEEPPCR_DEVICE void ForGroups(int count, const F& f) {
  if constexpr (kMost == 0) {
    for (int j = 0; j < count; ++j) f(j);
  } else {
    DEEPPCR_UNROLL
    for (int j = 0; j < kMost; ++j) {
      if (j < count) f(j);
    }
  }
}

// Computes the lane's part of the sums with every vector, over its quarter of a row of `cols`
// elements.
template <int S, class Context, class Panel>
DEEPPCR_DEVICE float SumQuarter(Context& context, const Panel& panel, int cols,
                                const float* vectors, int stride, int count, Squares squares,
                                float (&sums)[S]) {
  const float* from = vectors + context.lane() % kSegments * (cols / kSegments + 4);
  float odd[S] = {}, square = 0.0F;
  ForGroups<Panel::kMostGroups>(cols / kPanelCols, [&](int j) {
    float w[4];
    panel.Load(j, w);
    DEEPPCR_UNROLL
    for (int r = 0; r < S; ++r) {
      if (r >= count) break;
      float x[4];
      context.LoadFour(from + r * stride + 4 * j, x);
      sums[r] = fmaf(w[0], x[0], sums[r]);
      odd[r] = fmaf(w[1], x[1], odd[r]);
      sums[r] = fmaf(w[2], x[2], sums[r]);
      odd[r] = fmaf(w[3], x[3], odd[r]);
      if (r > 0 || squares == Squares::kNone) continue;
      DEEPPCR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float term = squares == Squares::kOfTerms ? w[i] * x[i] : x[i];
        square = fmaf(term, term, square);
      }
    }
  });
  DEEPPCR_UNROLL
  for (int r = 0; r < S; ++r) sums[r] += odd[r];
  return square;
}

// Adds up pairs of values over the two lanes of a pair; each lane keeps one value of a pair. The
// last value of an odd number has no partner.
template <int S, class Context>
DEEPPCR_DEVICE void AddPairs(Context& context, int mask, const float (&values)[S],
                             float (&kept)[(S + 1) / 2]) {
  const bool upper = (context.lane() & mask) != 0;
  DEEPPCR_UNROLL
  for (int h = 0; h < (S + 1) / 2; ++h) {
    const float even = values[2 * h],
                odd = 2 * h + 1 < S ? values[2 * h + 1 < S ? 2 * h + 1 : 0] : 0.0F;
    kept[h] = (upper ? odd : even) + context.ShuffleXor(upper ? even : odd, mask);
  }
}

// The products of one panel with `count` <= S vectors of `cols` elements, `stride` apart.
template <int S, class Context, class Panel>
DEEPPCR_DEVICE PanelSums<S> MultiplyPanel(Context& context, const Panel& panel, int cols,
                                          const float* vectors, int stride, int count,
                                          Squares squares) {
  float sums[S] = {}, halves[(S + 1) / 2];
  PanelSums<S> result;
  result.squares = SumQuarter(context, panel, cols, vectors, stride, count, squares, sums);
  AddPairs(context, 1, sums, halves);
  AddPairs(context, 2, halves, result.mine);
  result.first = context.Shuffle(result.mine[0], context.lane() / kSegments * kSegments);
  if (squares == Squares::kNone) return result;
  DEEPPCR_UNROLL
  for (int mask = 1; mask < kSegments; mask *= 2)
    result.squares += context.ShuffleXor(result.squares, mask);
  return result;
}

// Calls f(row, sums) for every row of the layer, by the four lanes that share the row.
template <int S, class Team, class F>
DEEPPCR_DEVICE void ForRows(const Team& team, const PanelLayer& layer, const float* vectors,
                            int stride, int count, Squares squares, const F& f) {
  auto& context = team.context();
  for (int panel = team.warp(); panel < layer.rows / kPanelRows; panel += team.num_warps()) {
    const StreamedPanel weights(context, layer, panel);
    const PanelSums<S> sums =
        MultiplyPanel<S>(context, weights, layer.cols, vectors, stride, count, squares);
    f(panel * kPanelRows + context.lane() / kSegments, sums);
  }
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_PANEL_LAYER_H_
