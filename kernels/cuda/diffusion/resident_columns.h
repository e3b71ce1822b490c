// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_RESIDENT_COLUMNS_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_RESIDENT_COLUMNS_H_

// Columns of an interval's matrix through a step whose layers lie in shared memory: a warp takes a
// tile of them (math/tangent_tiles.h) through all layers, in registers.

#include <cstdint>

#include "kernels/cuda/diffusion/resident_block.h"
#include "kernels/cuda/diffusion/tangent.h"
#include "kernels/cuda/math/activation.h"
#include "kernels/cuda/math/tangent_tiles.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

// Numbers of the elements of a vector that the lanes of a warp make for one another. Behind every
// quarter there are two unused floats, so that the lanes of a row read different banks.
struct ElementNumbers {
  float* at;
  int quarter;  // elements of a quarter

  static constexpr int Floats(int cols) { return cols + 2 * kSegments; }
  DEEPPCR_DEVICE ElementNumbers(float* memory, int cols) : at(memory), quarter(cols / kSegments) {}
  DEEPPCR_DEVICE float& operator[](int i) const { return at[i + 2 * (i / quarter)]; }
};

// kTileTangents columns from `first` on of interval r. A state has 8 kStateTiles elements with its
// padding, a layer of a block 8 kHiddenTiles.
template <int kStateTiles, int kHiddenTiles, class Context>
class ColumnTile {
 public:
  // `numbers`: the warp's.
  DEEPPCR_DEVICE ColumnTile(const ResidentBlock<Context>& block, int r, int first, float* numbers)
      : block_(block),
        context_(block.context),
        d_(block.d),
        tape_(block.TapeOf(r)),
        at_(block.Interval(r)),
        first_(first),
        slopes_(numbers, kWidth) {}

  // Takes the columns through step l of the interval.
  DEEPPCR_DEVICE void Run(const StepView& step, int32_t l) {
    State state;
    l == 0 ? Enter(state) : Load(state);
    Hidden hidden;
    MultiplyTiles(context_, d_.input, state, hidden);
    for (int b = 0; b < d_.num_blocks; ++b) Block(b, hidden);
    Reverse(step.coefficients, hidden, state);
    Store(state);
  }

 private:
  static constexpr int kStateCols = 8 * kStateTiles, kWidth = 8 * kHiddenTiles;
  static constexpr int kOfLane = kWidth / kWarpSize;  // elements of a layer that a lane has
  using State = TangentTiles<kStateTiles>;
  using Hidden = TangentTiles<kHiddenTiles>;

  // The column of accumulator r, from `first` on.
  DEEPPCR_DEVICE int ColumnOf(int r) const { return context_.lane() / kSegments + 8 * (r / 2); }
  // Calls f(i, p, e) for the elements i = 2 p + e of a state that the lane has.
  template <class F>
  DEEPPCR_DEVICE void ForElements(const F& f) const {
    const TileElements elements(context_, kStateCols);
    DEEPPCR_UNROLL
    for (int p = 0; p < kStateTiles; ++p) {
      DEEPPCR_UNROLL
      for (int e = 0; e < 2; ++e) f(elements.At(p, e), p, e);
    }
  }

  // ---- The columns that enter and leave
  DEEPPCR_DEVICE void Enter(State& state) const {
    ForElements([&](int i, int p, int e) {
      const auto unit = [&](int r) {
        const int column = first_ + ColumnOf(r);
        return i == column && column < d_.state_dim ? 1.0F : 0.0F;
      };
      state.at[p][e] = unit(0);
      state.at[p][e + 2] = unit(2);
    });
  }
  DEEPPCR_DEVICE float* Matrix() const {
    return at_.memory.Matrix(block_.view.tree.index_of(0, at_.interval)) + first_;
  }
  DEEPPCR_DEVICE bool Has(int r, int i) const {
    return first_ + ColumnOf(r) < block_.width() && i < block_.width();
  }
  // Between the steps of an interval, columns lie in the matrix.
  DEEPPCR_DEVICE void Load(State& state) const {
    const float* const matrix = Matrix();
    ForElements([&](int i, int p, int e) {
      const auto load = [&](int r) {
        return Has(r, i) ? matrix[i * block_.width() + ColumnOf(r)] : 0.0F;
      };
      state.at[p][e] = load(0);
      state.at[p][e + 2] = load(2);
    });
  }
  DEEPPCR_DEVICE void Store(const State& state) const {
    float* const matrix = Matrix();
    ForElements([&](int i, int p, int e) {
      float* const row = matrix + i * block_.width();
      if (Has(0, i)) row[ColumnOf(0)] = state.at[p][e];
      if (Has(2, i)) row[ColumnOf(2)] = state.at[p][e + 2];
    });
  }

  // hidden <- hidden + slope (first hidden).
  DEEPPCR_DEVICE void Block(int block, Hidden& hidden) const {
    const auto element = [&](int k) { return context_.lane() + k * kWarpSize; };
    // Read ahead of the product.
    const float* const pre_activations = tape_.PreActivation(d_, 0, block);
    float slopes[kOfLane];
    DEEPPCR_UNROLL
    for (int k = 0; k < kOfLane; ++k) {
      const float a = pre_activations[element(k)];
      slopes[k] = element(k) < d_.hidden_dim ? a : 0.0F;
    }
    Hidden product;
    MultiplyTiles(context_, d_.first.Next(block), hidden, product);
    DifferentiateAll(d_.activation, slopes);
    context_.SyncWarp(kBeforeElements);
    DEEPPCR_UNROLL
    for (int k = 0; k < kOfLane; ++k)
      slopes_[element(k)] = element(k) < d_.hidden_dim ? slopes[k] : 0.0F;
    context_.SyncWarp(kAfterElements);
    const TileElements elements(context_, kWidth);
    DEEPPCR_UNROLL
    for (int p = 0; p < kHiddenTiles; ++p) {
      DEEPPCR_UNROLL
      for (int r = 0; r < 4; ++r)
        hidden.at[p][r] = fmaf(slopes_[elements.At(p, r % 2)], product.at[p][r], hidden.at[p][r]);
    }
  }

  // state <- the reverse step's tangents, from those of the network's output.
  DEEPPCR_DEVICE void Reverse(const ReverseCoefficients& c, const Hidden& hidden,
                              State& state) const {
    // Read ahead of the product.
    float z[kStateTiles][2], m[kStateTiles][2];
    ForElements([&](int i, int p, int e) {
      const float before = tape_.State(d_, 0)[i], output = tape_.Prediction(d_, 0)[i];
      z[p][e] = i < d_.state_dim ? before : 0.0F;
      m[p][e] = i < d_.state_dim ? output : 0.0F;
    });
    State prediction;
    MultiplyTiles(context_, d_.output, hidden, prediction);
    ForElements([&](int, int p, int e) {
      const ReverseTangent tangent(c, BeyondClip(c, d_.clip_range, m[p][e], z[p][e]) > 0.0F);
      DEEPPCR_UNROLL
      for (int r = e; r < 4; r += 2)
        state.at[p][r] = tangent.Of(prediction.at[p][r], state.at[p][r]);
    });
  }

  const ResidentBlock<Context>& block_;
  Context& context_;
  const DenoiserView& d_;
  const DenoiserTape tape_;
  const BlockInterval at_;
  const int first_;
  const ElementNumbers slopes_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_RESIDENT_COLUMNS_H_
