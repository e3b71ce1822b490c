// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_RESIDENT_PROBES_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_RESIDENT_PROBES_H_

// The probes of all intervals of a block through a step whose layers lie in shared memory. The four
// probes of four intervals are the sixteen rows of a product on the tensor cores
// (math/tangent_tiles.h), and four warps share its columns: each makes a quarter of every layer's
// output, for all sixteen probes. Between layers the block exchanges the vectors in shared memory.
//
// In lane 4 g + t, rows g and g + 8 are probe g % 4 of intervals g / 4 and g / 4 + 2 of the four.
// What an element needs once for all probes of an interval, the four lanes of these probes make for
// one another: accumulators 0 to 3 of a tile are that many elements, of which lane g has number g
// % 4.

#include <cstdint>

#include "kernels/cuda/diffusion/resident_block.h"
#include "kernels/cuda/diffusion/tangent.h"
#include "kernels/cuda/math/layer_norm.h"
#include "kernels/cuda/math/tangent_tiles.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

// Intervals whose probes are the rows of a product, and warps that share its columns.
inline constexpr int kProbeIntervals = kTileTangents / kNumProbes, kProbeWarps = 4;
static_assert(kNumProbes == kSegments && kProbeIntervals == 4, "probes of four lanes");
static_assert(kResidentIntervals <= kResidentWarps / kProbeWarps * kProbeIntervals,
              "a warp for every quarter of a layer");

// Vectors of probes in shared memory, sixteen for every four intervals. Behind every quarter there
// are four unused floats, so that the lanes of a load find theirs in different banks.
struct ProbeVectors {
  float* at;
  int quarter;  // elements of a quarter

  DEEPPCR_DEVICE ProbeVectors(float* memory, int cols) : at(memory), quarter(cols / kSegments) {}
  static constexpr int64_t Floats(int cols, int intervals) {
    const int products = (intervals + kProbeIntervals - 1) / kProbeIntervals;
    return int64_t{products} * kTileTangents * (cols + 4 * kSegments);
  }
  // Quarter t of the vector of row r.
  DEEPPCR_DEVICE float* Quarter(int r, int t) const {
    return at + (r * kSegments + t) * (quarter + 4);
  }
};

// Floats of shared memory for the probes of `intervals`.
constexpr int64_t ResidentProbeFloats(const DenoiserView& d, int intervals) {
  return ProbeVectors::Floats(d.hidden_width, intervals) + int64_t{intervals} * (d.num_blocks + 2);
}

// A state has 8 kStateTiles elements with its padding, a layer of a block 8 kHiddenTiles.
template <int kStateTiles, int kHiddenTiles, class Context>
class ResidentProbes {
 public:
  // `memory`: ResidentProbeFloats, aligned to 16 bytes.
  DEEPPCR_DEVICE ResidentProbes(const ResidentBlock<Context>& block, float* memory)
      : block_(block),
        context_(block.context),
        d_(block.d),
        row_(context_.lane() / kSegments),
        quarter_(context_.lane() % kSegments),
        first_(context_.warp() / kProbeWarps * kProbeIntervals),
        part_(context_.warp() % kProbeWarps),
        vectors_(memory, d_.hidden_width),
        lengths_(memory + ProbeVectors::Floats(d_.hidden_width, block.args.together)) {}

  // Takes the probes of the first `active` intervals through step l of theirs.
  DEEPPCR_DEVICE void Step(const SampleSteps& steps, int32_t l, int active) {
    active_ = active;
    MeasureLengths();
    upper_draw_ = steps.At(block_.Interval(Clamped(0)).begin + l).draw;
    lower_draw_ = steps.At(block_.Interval(Clamped(1)).begin + l).draw;
    context_.SyncBlock(kAfterLengths);
    float hidden[kOfPart][4];  // the warp's part of the hidden vectors
    if (first_ < active) {
      EnterInput(l, hidden);
      PutHidden(hidden);
    }
    context_.SyncBlock(kAfterProbes);
    for (int b = 0; b < d_.num_blocks; ++b) {
      if (first_ < active) Block(b, hidden);
      context_.SyncBlock(kBeforeProbes);
      if (first_ < active) PutHidden(hidden);
      context_.SyncBlock(kAfterProbes);
    }
    if (first_ < active && part_ < kStateTiles) Reverse(steps, l);
  }

 private:
  static constexpr int kOfPart = kHiddenTiles / kProbeWarps;  // tiles of a warp
  static constexpr int kWidth = 8 * kHiddenTiles, kStateCols = 8 * kStateTiles;
  static_assert(kStateTiles <= kProbeWarps, "a tile of the output layer for a warp");

  // ---- Rows, elements and what a lane makes of them for others
  DEEPPCR_DEVICE int Probe() const { return row_ % kNumProbes; }
  // Interval of row g + 8 h.
  DEEPPCR_DEVICE int IntervalOf(int h) const { return first_ + row_ / kNumProbes + 2 * h; }
  // The same where there is one; else another.
  DEEPPCR_DEVICE int Clamped(int h) const {
    return IntervalOf(h) < active_ ? IntervalOf(h) : active_ - 1;
  }
  // Element e of tile p of the warp's part of a hidden vector.
  DEEPPCR_DEVICE int ElementOf(int p, int e) const {
    return TileElements(context_, kWidth).At(kOfPart * part_ + p, e);
  }
  // Element of tile p, and interval, that the lane makes numbers for.
  DEEPPCR_DEVICE int OwnElement(int p) const { return ElementOf(p, Probe() % 2); }
  DEEPPCR_DEVICE int OwnInterval() const { return IntervalOf(Probe() / 2); }
  // True where these are no padding.
  DEEPPCR_DEVICE bool IsOwn(int p) const {
    return OwnElement(p) < d_.hidden_dim && OwnInterval() < active_;
  }
  // Number of accumulator r, of those that the lanes of an interval have made for a tile.
  DEEPPCR_DEVICE float OfAccumulator(float own, int r) const {
    const int others = context_.lane() % kSegments + row_ / kNumProbes * kNumProbes * kSegments;
    return context_.Shuffle(own, others + r * kSegments);
  }
  // The largest absolute value of the probes, for the lane's own element of each tile.
  DEEPPCR_DEVICE void LargestOfProbes(const float (&x)[kOfPart][4], float (&to)[kOfPart]) const {
    const bool odd = Probe() % 2 != 0, upper = Probe() / 2 != 0;
    DEEPPCR_UNROLL
    for (int p = 0; p < kOfPart; ++p) {
      float of_row[2];
      DEEPPCR_UNROLL
      for (int h = 0; h < 2; ++h) {
        const float even_element = fabsf(x[p][2 * h]), odd_element = fabsf(x[p][2 * h + 1]);
        of_row[h] = fmaxf(odd ? odd_element : even_element,
                          context_.ShuffleXor(odd ? even_element : odd_element, kSegments));
      }
      to[p] = fmaxf(upper ? of_row[1] : of_row[0],
                    context_.ShuffleXor(upper ? of_row[0] : of_row[1], 2 * kSegments));
    }
  }
  // Reads what the lane's own elements have in a vector of a layer, or of the interval's tape; zero
  // beyond.
  DEEPPCR_DEVICE void ReadOwn(const float* from, float (&to)[kOfPart]) const {
    DEEPPCR_UNROLL
    for (int p = 0; p < kOfPart; ++p) {
      const float x = from[OwnElement(p)];
      to[p] = IsOwn(p) ? x : 0.0F;
    }
  }
  DEEPPCR_DEVICE DenoiserTape OwnTape() const { return block_.TapeOf(Clamped(Probe() / 2)); }
  DEEPPCR_DEVICE float RoundingOf(int place, float size, int h, int i) const {
    return RoundingAt(d_, h == 0 ? upper_draw_ : lower_draw_, place, size, Probe(), i);
  }

  // ---- Lengths of an interval's vectors: of its state, and of what enters the blocks and the
  // output layer
  DEEPPCR_DEVICE float& Length(int interval, int vector) const {
    return lengths_[interval * (d_.num_blocks + 2) + vector];
  }
  DEEPPCR_DEVICE void MeasureLengths() const {
    constexpr int kTogether = 4, kOfLane = kWidth / kWarpSize;
    const int lane = context_.lane();
    block_.ForIntervals(active_, [&](int r) {
      const DenoiserTape tape = block_.TapeOf(r);
      const float state = tape.State(d_, 0)[lane < d_.state_dim ? lane : 0];
      const float z = lane < d_.state_dim ? state : 0.0F;
      for (int first = 0; first <= d_.num_blocks; first += kTogether) {
        float squares[kTogether] = {};
        DEEPPCR_UNROLL
        for (int v = 0; v < kTogether; ++v) {
          const float* const hidden =
              tape.Hidden(d_, 0, first + v <= d_.num_blocks ? first + v : d_.num_blocks);
          DEEPPCR_UNROLL
          for (int k = 0; k < kOfLane; ++k) {
            const int i = lane + k * kWarpSize;
            const float x = hidden[i], h = i < d_.hidden_dim ? x : 0.0F;
            squares[v] = fmaf(h, h, squares[v]);
          }
        }
        DEEPPCR_UNROLL
        for (int v = 0; v < kTogether; ++v) {
          const float length = sqrtf(SumOfWarp(context_, squares[v]));
          if (lane == 0 && first + v <= d_.num_blocks) Length(r, 1 + first + v) = length;
        }
      }
      const float length = sqrtf(SumOfWarp(context_, z * z));
      if (lane == 0) Length(r, 0) = length;
    });
  }

  // ---- Layers
  DEEPPCR_DEVICE void PutHidden(const float (&hidden)[kOfPart][4]) const {
    const int elements = kOfPart * 2 * part_;  // of a quarter, those of other parts
    DEEPPCR_UNROLL
    for (int h = 0; h < 2; ++h) {
      float* const to = vectors_.Quarter(kNumProbes * first_ + row_ + 8 * h, quarter_) + elements;
      if constexpr (kOfPart == 1) {
        to[0] = hidden[0][2 * h];
        to[1] = hidden[0][2 * h + 1];
      } else {
        DEEPPCR_UNROLL
        for (int p = 0; p < kOfPart; p += 2)
          context_.StoreFour({hidden[p][2 * h], hidden[p][2 * h + 1], hidden[p + 1][2 * h],
                              hidden[p + 1][2 * h + 1]},
                             to + 2 * p);
      }
    }
  }
  template <int kTiles, int kOut>
  DEEPPCR_DEVICE void MultiplyHidden(const PanelLayer& layer, int first,
                                     float (&y)[kOut][4]) const {
    const float* const upper = vectors_.Quarter(kNumProbes * first_ + row_, quarter_);
    const float* const lower = vectors_.Quarter(kNumProbes * first_ + row_ + 8, quarter_);
    MultiplyFactors<kHiddenTiles, kTiles>(
        context_, layer, first,
        [&](int j) {
          float g[4], below[4];
          context_.LoadFour(upper + 4 * j, g);
          context_.LoadFour(lower + 4 * j, below);
          return TangentFactors{
              {{g[0], g[1], below[0], below[1]}, {g[2], g[3], below[2], below[3]}}};
        },
        y);
  }

  // Between the steps of an interval, probes lie behind its state, whose padding is theirs.
  DEEPPCR_DEVICE float Stored(const BlockInterval& at, int i) const {
    return at.memory.Propagated(at.local)[(1 + Probe()) * block_.width() + i];
  }
  DEEPPCR_DEVICE void EnterInput(int32_t l, float (&hidden)[kOfPart][4]) const {
    float h[kOfPart], spreads[kOfPart], sizes[kOfPart];
    ReadOwn(OwnTape().Hidden(d_, 0, 0), h);
    ReadOwn(d_.input.spreads, spreads);
    if (l == 0) {
      DEEPPCR_UNROLL
      for (int p = 0; p < kOfPart; ++p) {
        DEEPPCR_UNROLL
        for (int r = 0; r < 4; ++r) hidden[p][r] = 0.0F;
      }
    } else {
      const BlockInterval upper = block_.Interval(Clamped(0)), lower = block_.Interval(Clamped(1));
      const int quarter = kStateCols / kSegments * quarter_;
      MultiplyFactors<kStateTiles, kHiddenTiles>(
          context_, d_.input, kOfPart * part_,
          [&](int j) {
            TangentFactors factors;
            DEEPPCR_UNROLL
            for (int k = 0; k < 4; ++k) {
              const int i = quarter + 4 * j + k;
              const bool has = i < block_.width();
              factors.at[k / 2][k % 2] = has ? Stored(upper, i) : 0.0F;
              factors.at[k / 2][2 + k % 2] = has ? Stored(lower, i) : 0.0F;
            }
            return factors;
          },
          hidden);
    }
    const float length = Length(Clamped(Probe() / 2), 0);
    DEEPPCR_UNROLL
    for (int p = 0; p < kOfPart; ++p)
      sizes[p] = IsOwn(p) ? SizeOfSum(spreads[p] * length, h[p]) : 0.0F;
    DEEPPCR_UNROLL
    for (int p = 0; p < kOfPart; ++p) {
      DEEPPCR_UNROLL
      for (int r = 0; r < 4; ++r)
        hidden[p][r] += RoundingOf(0, OfAccumulator(sizes[p], r), r / 2, ElementOf(p, r % 2));
    }
  }

  // hidden <- hidden + slope (first hidden), with the slopes nearby and the rounding that probes
  // pick up.
  DEEPPCR_DEVICE void Block(int block, float (&hidden)[kOfPart][4]) const {
    const PanelLayer layer = d_.first.Next(block);
    // Read ahead of the product.
    float a[kOfPart], value[kOfPart], spreads[kOfPart];
    ReadOwn(OwnTape().PreActivation(d_, 0, block), a);
    ReadOwn(OwnTape().Hidden(d_, 0, block + 1), value);
    ReadOwn(layer.spreads, spreads);
    float product[kOfPart][4];
    MultiplyHidden<kHiddenTiles>(layer, kOfPart * part_, product);
    const float length = Length(Clamped(Probe() / 2), 1 + block);
    float reach[kOfPart], sizes[kOfPart];
    LargestOfProbes(product, reach);
    DEEPPCR_UNROLL
    for (int p = 0; p < kOfPart; ++p) reach[p] = ReachOf(spreads[p] * length, reach[p]);
    SlopeRange near[kOfPart];
    AllSlopesNear(d_.activation, a, reach, near);
    DEEPPCR_UNROLL
    for (int p = 0; p < kOfPart; ++p) {
      const float size = SizeOfBranch(spreads[p] * length, near[p].Largest(), a[p], value[p]);
      sizes[p] = IsOwn(p) ? size : 0.0F;
      if (!IsOwn(p)) near[p] = {};
    }
    DEEPPCR_UNROLL
    for (int p = 0; p < kOfPart; ++p) {
      DEEPPCR_UNROLL
      for (int r = 0; r < 4; ++r) {
        const SlopeRange of_element = {OfAccumulator(near[p].low, r),
                                       OfAccumulator(near[p].high, r)};
        hidden[p][r] =
            of_element.Carry(product[p][r], hidden[p][r]) +
            RoundingOf(2 * block + 1, OfAccumulator(sizes[p], r), r / 2, ElementOf(p, r % 2));
      }
    }
  }

  // Makes the reverse step of the probes, of the elements of a tile of the output layer.
  DEEPPCR_DEVICE void Reverse(const SampleSteps& steps, int32_t l) const {
    // Read ahead of the product.
    const TileElements elements(context_, kStateCols);
    float z[4], m[4], next[4], spreads[2];
    DEEPPCR_UNROLL
    for (int r = 0; r < 4; ++r) {
      const int i = elements.At(part_, r % 2);
      const bool real = i < d_.state_dim;
      const DenoiserTape tape = block_.TapeOf(Clamped(r / 2));
      const BlockInterval at = block_.Interval(Clamped(r / 2));
      const float state = tape.State(d_, 0)[i], output = tape.Prediction(d_, 0)[i];
      z[r] = real ? state : 0.0F;
      m[r] = real ? output : 0.0F;
      next[r] = real ? at.memory.Propagated(at.local)[i] : 0.0F;
      if (r < 2) spreads[r] = real ? d_.output.spreads[i] : 0.0F;
    }
    float prediction[1][4];
    MultiplyHidden<kStateTiles>(d_.output, part_, prediction);
    DEEPPCR_UNROLL
    for (int h = 0; h < 2; ++h) {
      if (IntervalOf(h) >= active_) continue;
      const BlockInterval at = block_.Interval(IntervalOf(h));
      const ReverseCoefficients c = steps.At(at.begin + l).coefficients;
      const float length = Length(IntervalOf(h), 1 + d_.num_blocks);
      float* const propagated = at.memory.Propagated(at.local);
      float* const residual = block_.ResidualOf(at);
      DEEPPCR_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int i = elements.At(part_, e), place = (1 + Probe()) * block_.width() + i,
                  r = 2 * h + e;
        if (i >= block_.width()) continue;
        const float before = l == 0 ? 0.0F : propagated[place];
        const ReverseOfProbes probes(c, d_, m[r], z[r], next[r], spreads[e] * length);
        const float value = probes.Carry(c, prediction[0][r], before) +
                            RoundingOf(2 * d_.num_blocks + 1, probes.size, h, i);
        propagated[place] = residual[place] = i < d_.state_dim ? value : 0.0F;
      }
    }
  }

  const ResidentBlock<Context>& block_;
  Context& context_;
  const DenoiserView& d_;
  const int row_, quarter_;  // g and t
  const int first_;          // first interval of the warp's product
  const int part_;           // quarter of the layers that the warp makes
  const ProbeVectors vectors_;
  float* const lengths_;
  int active_ = 0;
  int64_t upper_draw_ = 0, lower_draw_ = 0;  // of rows g and g + 8
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_RESIDENT_PROBES_H_
