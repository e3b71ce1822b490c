// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_HALF_DENOISER_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_HALF_DENOISER_H_

// A residual denoiser by one block of threads, for guesses: its layers are half-precision numbers
// (math/half_layer.h). A warp has sixteen rows of every layer and keeps what these rows are of the
// hidden vector, in floats; only the products are of halves. Weights of the first kHalfBlocks
// blocks stay in registers from evaluation to evaluation, those of others are read while the block
// before is evaluated. Where the hidden vector leaves what halves can be, the output is not finite.

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cuda/diffusion/coarse_guess.h"
#include "kernels/cuda/diffusion/kernel.h"
#include "kernels/cuda/diffusion/view.h"
#include "kernels/cuda/loop/newton_shape.h"
#include "kernels/cuda/math/activation.h"
#include "kernels/cuda/math/half_layer.h"
#include "kernels/cuda/math/team.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

inline constexpr int kHalfWarps = kMostHalfCols / kHalfRows;

// A step for GuessSample (coarse_guess.h) whose network has hidden layers of 16 kSteps elements.
template <int kSteps, class Team>
class HalfDenoiser {
 public:
  using Context = typename Team::Context;

  // Floats of shared memory, which a step of one state has as well (DenoiserFloats).
  static constexpr int kFloats = 2 * kMaxWarpStateDim + 2 * HalfVector::kFloats;

  // `memory`: kFloats of a block's shared memory, aligned to 16 bytes.
  DEEPPCR_DEVICE HalfDenoiser(const Team& team, const DenoiserView& d, float* memory)
      : team_(team),
        context_(team.context()),
        d_(d),
        tile_(context_.warp()),
        row_(RowOfLane(context_, tile_)),
        state_(memory),
        prediction_(state_ + kMaxWarpStateDim),
        vectors_(reinterpret_cast<uint16_t*>(prediction_ + kMaxWarpStateDim)) {
    if (HasRows()) {
      input_.Load(context_, d.halves.input, tile_, row_);
      input_bias_ = d.input.bias[row_];
      DEEPPCR_UNROLL
      for (int b = 0; b < kHalfBlocks; ++b)
        if (b < d.num_blocks) blocks_[b].Load(context_, d.halves.first.Next(b), tile_, row_);
    }
    if (IsOutput()) {
      output_.Load(context_, d.halves.output, tile_, row_);
      output_bias_ = d.output.bias[row_];
    }
  }

  DEEPPCR_DEVICE int cols() const { return d_.state_cols; }
  // Element i < cols() of the state. Elements beyond D are to be zero.
  DEEPPCR_DEVICE float& State(int, int i) const { return state_[i]; }

  // Evaluates the denoiser: its output is Prediction(i), until the next evaluation. The caller has
  // synchronised the block after writing the state; Predict has synchronised it when it returns.
  // Warps without a row of the output layer call beside() meanwhile; all threads call await()
  // before the last barrier.
  static constexpr bool kCopiesAhead = true;
  DEEPPCR_DEVICE LaterWarps<Context> CopyingThreads(Context& context) const {
    return {context, d_.state_cols / kHalfRows};
  }
  template <class Beside, class Await>
  DEEPPCR_DEVICE void Predict(const StepView& step, const Beside& beside, const Await& await) {
    modulation_ = step.modulation + row_;
    float of_row[kHalfBlocks];
    DEEPPCR_UNROLL
    for (int b = 0; b < kHalfBlocks; ++b)
      of_row[b] = HasRows() && b < d_.num_blocks ? modulation_[b * kWidth] : 0.0F;
    if (HasRows()) Input();
    team_.Sync(kAfterInputLayer);
    HeldBlocks(of_row, std::make_integer_sequence<int, kHalfBlocks>());
    if (d_.num_blocks > kHalfBlocks) StreamedBlocks();
    if (IsOutput()) {
      const float sum = MultiplyHalves(context_, output_, Vector(d_.num_blocks));
      if (StoresRow(context_)) prediction_[row_] = sum + output_bias_;
    } else {
      beside();
    }
    await();
    team_.Sync(kAfterPrediction);
  }
  DEEPPCR_DEVICE float Prediction(int i) const { return prediction_[i]; }

  DEEPPCR_DEVICE float Clip(float x0) const { return ClipTo(d_.clip_range, x0); }

 private:
  static constexpr int kWidth = kSteps * kPanelCols, kStateSteps = kMaxWarpStateDim / kPanelCols;

  // True if the warp has rows of hidden layers, or of the output layer.
  DEEPPCR_DEVICE bool HasRows() const { return kSteps >= kHalfWarps || tile_ < kSteps; }
  DEEPPCR_DEVICE bool IsOutput() const { return tile_ * kHalfRows < d_.state_cols; }
  // What enters a block, or the output layer.
  DEEPPCR_DEVICE HalfVector Vector(int block) const {
    return {vectors_ + block % 2 * 2 * HalfVector::kFloats};
  }
  // Puts the lane's element of what enters a block. Elements beyond H are zero.
  DEEPPCR_DEVICE void PutHidden(int block) const {
    if (StoresRow(context_))
      Vector(block).template Put<kWidth, Context>(row_, row_ < d_.hidden_dim ? hidden_ : 0.0F);
  }

  DEEPPCR_DEVICE void Input() {
    const int lane = context_.lane();
    const float* const quarter = state_ + lane % kSegments * (d_.state_cols / kSegments);
    const bool rests = lane / kSegments % 2 != 0;
    const float sum = MultiplyHalves(context_, input_, d_.state_cols, [&](int j) {
      float four[4];
      context_.LoadFour(quarter + 4 * j, four);
      uint32_t halves[4];
      DEEPPCR_UNROLL
      for (int k = 0; k < 4; ++k) {
        const uint16_t nearest = Context::ToHalf(four[k]);
        halves[k] = rests ? Context::ToHalf(four[k] - Context::OfHalf(nearest)) : nearest;
      }
      return HalfFactor{{halves[0] | halves[1] << 16, halves[2] | halves[3] << 16}};
    });
    hidden_ = sum + input_bias_;
    PutHidden(0);
  }

  // h <- h + act(a), where a is first h + mu and the bias.
  DEEPPCR_DEVICE void TakeBranch(int block, float a) {
    hidden_ += Activate(d_.activation, a);
    PutHidden(block + 1);
  }
  template <int... kBlocks>
  DEEPPCR_DEVICE void HeldBlocks(const float (&of_row)[kHalfBlocks],
                                 std::integer_sequence<int, kBlocks...>) {
    (HeldBlock<kBlocks>(of_row[kBlocks]), ...);
  }
  template <int kBlock>
  DEEPPCR_DEVICE void HeldBlock(float of_row) {
    if (kBlock >= d_.num_blocks) return;
    if (HasRows())
      TakeBranch(kBlock, MultiplyHalves(context_, blocks_[kBlock], Vector(kBlock)) + of_row);
    team_.Sync(kAfterResidualBlock);
  }
  DEEPPCR_DEVICE void StreamedBlocks() {
    HalfWeights<kSteps> weights;
    if (HasRows()) weights.Load(context_, d_.halves.first.Next(kHalfBlocks), tile_, row_);
    for (int b = kHalfBlocks; b < d_.num_blocks; ++b) {
      if (HasRows()) {
        const float a = MultiplyHalves(context_, weights, Vector(b)) + modulation_[b * kWidth];
        if (b + 1 < d_.num_blocks) weights.Load(context_, d_.halves.first.Next(b + 1), tile_, row_);
        TakeBranch(b, a);
      }
      team_.Sync(kAfterResidualBlock);
    }
  }

  const Team team_;
  Context& context_;
  const DenoiserView& d_;
  const int tile_, row_;
  float* const state_;
  float* const prediction_;
  uint16_t* const vectors_;            // two
  const float* modulation_ = nullptr;  // that of the lane's row
  float hidden_ = 0.0F;                // element row_ of the hidden vector
  HalfWeights<kStateSteps> input_;
  HalfWeights<kSteps> blocks_[kHalfBlocks], output_;
  float input_bias_ = 0.0F, output_bias_ = 0.0F;
};

// Calls f(std::integral_constant<int, kSteps>) for the hidden layers of a denoiser.
template <class F>
auto WithHalfSteps(const DenoiserView& d, const F& f) {
  if (d.hidden_width <= 32) return f(std::integral_constant<int, 2>{});
  if (d.hidden_width <= 64) return f(std::integral_constant<int, 4>{});
  return f(std::integral_constant<int, 8>{});
}

// Body of a launch of one block of kHalfWarps per sample: GuessSample with a HalfDenoiser. Shared
// memory as for GuessCoarsely.
template <int kSteps, class Team>
DEEPPCR_DEVICE void GuessWithHalves(const Team& team, const CoarseArgs<DiffusionView>& args) {
  HalfDenoiser<kSteps, Team> step(team, args.process.denoiser, SharedFloats(team.context()));
  GuessSample(team, args, step);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_HALF_DENOISER_H_
