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

#include "kernels/cuda/math/layer_norm.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

inline constexpr int kPanelRows = 8;
inline constexpr int kSegments = 4;  // segments of a row
inline constexpr int kPanelCols = 4 * kSegments;

constexpr int PanelWidth(int64_t dim) {
  return static_cast<int>((dim + kPanelCols - 1) / kPanelCols * kPanelCols);
}

inline constexpr int kUnusedRows = kMostStepRows;

// R vectors of K elements, K a multiple of kPanelCols, in shared memory: four elements of each
// vector in turn, so that a lane reads any number of vectors from one address and constants. Behind
// every quarter there are four unused floats, so that the lanes of a row do not ask for the same
// bank, as long as R is 1 or even.
struct VectorShape {
  static constexpr bool kMayBeOdd = false;
  int cols, rows;

  // A shape with room for `rows` vectors.
  static constexpr VectorShape For(int cols, int rows) {
    return {cols, rows == 1 ? 1 : rows + rows % 2};
  }
  // Floats from four elements of a vector to the next four.
  constexpr int stride() const { return 4 * rows; }
  constexpr int quarter() const { return cols / kSegments * rows + 4; }
  // Floats of all vectors. A lane may load vectors that do not exist, whose sums nobody takes:
  // behind the last ones there are kUnusedRows unused places, so that it does not read what other
  // warps write meanwhile.
  constexpr int floats() const { return kSegments * quarter() + 4 * kUnusedRows; }
  // Place of element k of vector r.
  constexpr int Place(int r, int k) const {
    const int fours = cols / kSegments;
    return k / 4 * stride() + 4 * r + k % 4 +
           4 * ((k >= fours) + (k >= 2 * fours) + (k >= 3 * fours));
  }
};

// Places of the elements of a vector alone, as VectorShape{cols, 1} has them, with a multiplication
// for the three comparisons.
class SolePlaces {
 public:
  static constexpr bool kMayBeOdd = false;
  explicit constexpr SolePlaces(int cols_)
      : cols(cols_), inverse_(0xFFFFFFFFU / static_cast<uint32_t>(cols_ / kSegments) + 1) {}
  // cols < 2^16, a multiple of kPanelCols: the quotient of k < cols is exact.
  constexpr int Place(int, int k) const {
    return k + 4 * static_cast<int>(uint64_t{static_cast<uint32_t>(k)} * inverse_ >> 32);
  }
  // ForLaneAhead (layer_norm.h) over the elements lane, lane + 32, ... below dim of a vector:
  // quarter by quarter, within which places are as far apart as elements.
  template <class F>
  DEEPPCR_DEVICE void ForLanes(int lane, int dim, const float* vector, const F& f) const {
    const int quarter = cols / kSegments;
    int i = lane;
    DEEPPCR_UNROLL
    for (int q = 0; q < kSegments; ++q) {
      const int end = (q + 1) * quarter < dim ? (q + 1) * quarter : dim;
      const float* const from = vector + 4 * q;
      ForLaneAhead(
          i, end, [&](int k) { return from[k]; }, f);
      if (i < end) i += (end - i + kWarpSize - 1) / kWarpSize * kWarpSize;
    }
  }
  const int cols;

 private:
  const uint32_t inverse_;  // 2^32 over the elements of a quarter, rounded up
};

struct PanelLayer {
  const float* weights;  // [rows / 8, cols / 16, 32 lanes, 4]: see PanelPlace
  const float* bias;     // [rows]
  const float* spreads;  // [rows]: RoundingSpread of backend/common.h
  int32_t rows;          // a multiple of kPanelCols, zeros beyond the matrix
  int32_t cols;          // a multiple of kPanelCols, zeros beyond the matrix

  // Layer i of layers of one shape, of which this is the first.
  DEEPPCR_DEVICE PanelLayer Next(int i) const {
    return {weights + int64_t{i} * rows * cols, bias + int64_t{i} * rows,
            spreads + int64_t{i} * rows, rows, cols};
  }
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

// Share of a product that a warp takes at a time: kPanels panels, so that what it reads of a vector
// serves all of them, and one of kParts parts of the vectors. The first vector, which the others
// are finished with, is in all parts.
// kStops: a part may have far fewer vectors than it has room for.
template <int kPanels_, int kParts_, bool kStops_ = false>
struct PanelTile {
  static constexpr int kPanels = kPanels_, kParts = kParts_;
  static constexpr bool kStops = kStops_;
  // Vectors of a part, of S in all.
  template <int S>
  static constexpr int kVectors = 1 + (S - 1 + kParts - 1) / kParts;
};

// Sums that a lane has of one row of the matrix after a product with N vectors: of every four
// vectors the sum of one, and the sum of the first vector.
template <int N>
struct PanelSums {
  static constexpr int kQuads = (N + kSegments - 1) / kSegments;
  float mine[kQuads];  // without the bias: vector 4 q + lane % 4 of the part
  float first;
  float squares;  // sum of the squares that were asked for
  int skipped;    // vectors of other parts between the first vector and the others

  // Calls f(r, sum) for the vectors r < count that this lane has, the first one in one part only.
  template <class F>
  DEEPPCR_DEVICE void ForMine(int lane, int count, const F& f) const {
    DEEPPCR_UNROLL
    for (int q = 0; q < kQuads; ++q) {
      const int k = q * kSegments + lane % kSegments, r = k == 0 ? 0 : skipped + k;
      if (k < N && r < count && (k > 0 || skipped == 0)) f(r, mine[q]);
    }
  }
};

// Weights of a lane in P panels, in global memory: group j is four weights of the lane's quarter of
// a row.
template <int P, class Context>
class StreamedPanels {
 public:
  DEEPPCR_DEVICE StreamedPanels(Context& context, const PanelLayer& layer, int panel)
      : context_(context),
        groups_(layer.cols / kPanelCols),
        weights_(layer.weights +
                 (int64_t{panel} * (layer.cols / kPanelCols) * kWarpSize + context.lane()) * 4) {}
  DEEPPCR_DEVICE void Load(int j, float (&w)[P][4]) const {
    DEEPPCR_UNROLL
    for (int p = 0; p < P; ++p)
      context_.LoadConstants(weights_ + (int64_t{p} * groups_ + j) * kWarpSize * 4, w[p]);
  }
  // Calls f(j, weights of group j) for all groups. A group is loaded while the one before it is
  // multiplied.
  template <class F>
  DEEPPCR_DEVICE void ForGroups(const F& f) const {
    float w[P][4] = {}, next[P][4] = {};
    Load(0, w);
    for (int j = 0; j < groups_; ++j) {
      Load(j + 1 < groups_ ? j + 1 : j, next);
      f(j, w);
      DEEPPCR_UNROLL
      for (int p = 0; p < P; ++p) {
        DEEPPCR_UNROLL
        for (int i = 0; i < 4; ++i) w[p][i] = next[p][i];
      }
    }
  }

 private:
  Context& context_;
  const int groups_;
  const float* const weights_;
};

// The same in shared memory, where a group takes no longer than what it is multiplied with.
template <int P, class Context>
class ResidentPanels {
 public:
  DEEPPCR_DEVICE ResidentPanels(Context& context, const PanelLayer& layer, int panel)
      : context_(context),
        groups_(layer.cols / kPanelCols),
        weights_(layer.weights + (panel * groups_ * kWarpSize + context.lane()) * 4) {}
  template <class F>
  DEEPPCR_DEVICE void ForGroups(const F& f) const {
    DEEPPCR_AS_WRITTEN
    for (int j = 0; j < groups_; ++j) {
      float w[P][4];
      DEEPPCR_UNROLL
      for (int p = 0; p < P; ++p)
        context_.LoadFour(weights_ + (p * groups_ + j) * kWarpSize * 4, w[p]);
      f(j, w);
    }
  }

 private:
  Context& context_;
  const int groups_;
  const float* const weights_;
};

// The same of layers with kGroups groups, of which all are loaded before the first product.
template <int kGroups>
struct WholeRows {
  template <int P, class Context>
  class Panels {
   public:
    DEEPPCR_DEVICE Panels(Context& context, const PanelLayer& layer, int panel)
        : context_(context),
          weights_(layer.weights + (panel * kGroups * kWarpSize + context.lane()) * 4) {}
    template <class F>
    DEEPPCR_DEVICE void ForGroups(const F& f) const {
      float w[kGroups][P][4];
      DEEPPCR_UNROLL
      for (int j = 0; j < kGroups; ++j) {
        DEEPPCR_UNROLL
        for (int p = 0; p < P; ++p)
          context_.LoadFour(weights_ + (p * kGroups + j) * kWarpSize * 4, w[j][p]);
      }
      DEEPPCR_UNROLL
      for (int j = 0; j < kGroups; ++j) f(j, w[j]);
    }

   private:
    Context& context_;
    const float* const weights_;
  };
};

// Weights of a lane in a panel, in registers once Hold has put them there.
template <int kGroups>
class HeldPanel {
 public:
  static constexpr int kMostGroups = kGroups;
  template <class Context>
  DEEPPCR_DEVICE void Hold(Context& context, const PanelLayer& layer, int panel) {
    const StreamedPanels<1, Context> from(context, layer, panel);
    DEEPPCR_UNROLL
    for (int j = 0; j < kGroups; ++j) {
      if (j < layer.cols / kPanelCols) from.Load(j, weights_[j]);
    }
  }
  DEEPPCR_DEVICE const float (&Group(int j) const)[1][4] { return weights_[j]; }

 private:
  float weights_[kGroups][1][4];
};

// The first `count` of vectors in shared memory. The squares of terms are those of `inverse` times
// the first vector.
struct PanelVectors {
  const float* at;
  VectorShape shape;
  int count;
  float inverse = 1.0F;
};
// Vectors that are loaded together, before the first product with one of them.
inline constexpr int kVectorsLoaded = 4;

// Adds w x to the sums of a row with one vector, four elements at a time.
DEEPPCR_DEVICE void AddFour(const float (&w)[4], const float (&x)[4], float* even, float* odd) {
  *even = fmaf(w[0], x[0], *even);
  *odd = fmaf(w[1], x[1], *odd);
  *even = fmaf(w[2], x[2], *even);
  *odd = fmaf(w[3], x[3], *odd);
}
template <Squares kSquares>
DEEPPCR_DEVICE float AddSquares(const float (&w)[4], const float (&x)[4], float inverse,
                                float sum) {
  DEEPPCR_UNROLL
  for (int i = 0; i < 4 && kSquares != Squares::kNone; ++i) {
    const float term = kSquares == Squares::kOfTerms ? w[i] * (x[i] * inverse) : x[i];
    sum = fmaf(term, term, sum);
  }
  return sum;
}

// A lane's part of the sums of P rows of the matrix with N vectors, over its quarter of a row.
template <int P, int N, Squares kSquares>
class QuarterSums {
 public:
  // Takes vectors 0 and skipped + 1, ..., skipped + N - 1, whether or not there are as many.
  DEEPPCR_DEVICE QuarterSums(int lane, const PanelVectors& vectors, int skipped)
      : stride_(vectors.shape.stride()),
        first_(vectors.at + lane % kSegments * vectors.shape.quarter()),
        others_(first_ + 4 * skipped),
        inverse_(vectors.inverse) {}

  // Adds the products with group j of the weights. Beyond `count` vectors it may stop.
  template <bool kStops, class Context>
  DEEPPCR_DEVICE void Add(Context& context, int j, int count, const float (&w)[P][4]) {
    DEEPPCR_UNROLL
    for (int begin = 0; begin < N; begin += kVectorsLoaded) {
      if (kStops && begin >= count) break;
      float x[kVectorsLoaded][4];
      DEEPPCR_UNROLL
      for (int k = begin; k < begin + kVectorsLoaded && k < N; ++k)
        context.LoadFour((k == 0 ? first_ : others_ + 4 * k) + j * stride_, x[k - begin]);
      DEEPPCR_UNROLL
      for (int k = begin; k < begin + kVectorsLoaded && k < N; ++k) {
        DEEPPCR_UNROLL
        for (int p = 0; p < P; ++p) {
          AddFour(w[p], x[k - begin], &even_[p][k], &odd_[p][k]);
          if (k == 0 && (kSquares == Squares::kOfTerms || p == 0))
            squares_[p] = AddSquares<kSquares>(w[p], x[0], inverse_, squares_[p]);
        }
      }
    }
  }
  // Sums of row p with all vectors.
  DEEPPCR_DEVICE void Finish(int p, float (&sums)[N], float* squares) const {
    DEEPPCR_UNROLL
    for (int k = 0; k < N; ++k) sums[k] = even_[p][k] + odd_[p][k];
    *squares = squares_[kSquares == Squares::kOfTerms ? p : 0];
  }

 private:
  const int stride_;
  const float* const first_;
  const float* const others_;
  const float inverse_;
  float even_[P][N] = {}, odd_[P][N] = {}, squares_[P] = {};
};

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

// The products of a panel's rows: the sums of the lanes that share a row.
template <Squares kSquares, int N, class Context>
DEEPPCR_DEVICE PanelSums<N> SumsOfRow(Context& context, int skipped, const float (&sums)[N],
                                      float squares) {
  float halves[(N + 1) / 2];
  PanelSums<N> result;
  result.skipped = skipped;
  result.squares = squares;
  AddPairs(context, 1, sums, halves);
  AddPairs(context, 2, halves, result.mine);
  result.first = context.Shuffle(result.mine[0], context.lane() / kSegments * kSegments);
  if constexpr (kSquares != Squares::kNone) {
    DEEPPCR_UNROLL
    for (int mask = 1; mask < kSegments; mask *= 2)
      result.squares += context.ShuffleXor(result.squares, mask);
  }
  return result;
}

// The product of the one panel in a lane's registers with one vector.
template <class Context, class Panel>
DEEPPCR_DEVICE PanelSums<1> MultiplyHeld(Context& context, const Panel& panel,
                                         const PanelVectors& vectors) {
  QuarterSums<1, 1, Squares::kNone> quarter(context.lane(), vectors, 0);
  DEEPPCR_UNROLL
  for (int j = 0; j < Panel::kMostGroups; ++j) {
    if (j < vectors.shape.cols / kPanelCols)
      quarter.template Add<false>(context, j, 1, panel.Group(j));
  }
  float sums[1], squares;
  quarter.Finish(0, sums, &squares);
  return SumsOfRow<Squares::kNone>(context, 0, sums, squares);
}

// Calls f(row, loaded, sums) for every tile of rows of the layer, by the four lanes that share its
// rows row + p kPanelRows, p < P: loaded[p] is load of such a row, called before the product, so
// that what it loads arrives meanwhile; sums(p) makes its PanelSums. Panels: StreamedPanels or
// ResidentPanels.
template <int S, class Tile, Squares kSquares, template <int, class> class Panels = StreamedPanels,
          class Team, class Load, class F>
DEEPPCR_DEVICE void ForTiles(const Team& team, const PanelLayer& layer, const PanelVectors& vectors,
                             const Load& load, const F& f) {
  constexpr int P = Tile::kPanels, N = Tile::template kVectors<S>;
  auto& context = team.context();
  const int panels = layer.rows / kPanelRows / P;
  for (int tile = team.warp(); tile < panels * Tile::kParts; tile += team.num_warps()) {
    int group = tile, skipped = 0;
    for (; Tile::kParts > 1 && group >= panels; group -= panels) skipped += N - 1;
    if (skipped > 0 && skipped + 1 >= vectors.count) continue;
    const int row = group * P * kPanelRows + context.lane() / kSegments;
    decltype(load(row)) loaded[P];
    DEEPPCR_UNROLL
    for (int p = 0; p < P; ++p) loaded[p] = load(row + p * kPanelRows);
    const Panels<P, typename Team::Context> weights(context, layer, group * P);
    QuarterSums<P, N, kSquares> quarter(context.lane(), vectors, skipped);
    weights.ForGroups([&](int j, const float(&w)[P][4]) {
      quarter.template Add<Tile::kStops>(context, j, vectors.count, w);
    });
    f(row, loaded, [&](int p) {
      float sums[N], squares;
      quarter.Finish(p, sums, &squares);
      return SumsOfRow<kSquares>(context, skipped, sums, squares);
    });
  }
}
// Calls f(row, load(row), sums) for every row of the layer.
template <int S, class Tile, Squares kSquares, template <int, class> class Panels = StreamedPanels,
          class Team, class Load, class F>
DEEPPCR_DEVICE void ForRows(const Team& team, const PanelLayer& layer, const PanelVectors& vectors,
                            const Load& load, const F& f) {
  ForTiles<S, Tile, kSquares, Panels>(team, layer, vectors, load,
                                      [&](int row, const auto& loaded, const auto& sums) {
                                        DEEPPCR_UNROLL
                                        for (int p = 0; p < Tile::kPanels; ++p)
                                          f(row + p * kPanelRows, loaded[p], sums(p));
                                      });
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_PANEL_LAYER_H_
