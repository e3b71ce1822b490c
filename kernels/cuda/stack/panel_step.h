// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_PANEL_STEP_H_
#define DEEPPCR_KERNELS_CUDA_STACK_PANEL_STEP_H_

// A dense stack whose layers are multiplied by a team of threads (team.h), for states that a warp
// cannot hold and for GPUs without clusters: a Process of block_recurrence.h.

#include <math.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/math/panel_layer.h"
#include "kernels/cuda/math/rounding_source.h"
#include "kernels/cuda/math/slope_near.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/stack/jacobian.h"
#include "kernels/cuda/stack/warp_step.h"
#include "kernels/cuda/tuning.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

class PanelLayers;
struct PanelStackView;
template <int S, class Team, template <int, class> class Panels = StreamedPanels,
          class Stack = PanelStackView>
class PanelStackStep;

// z_l = act(W_l z + b_l), or z + scale act(W_l z + b_l), for states padded to W with zeros.
// Pointers are to device memory.
struct PanelStackView {
  static constexpr bool kHasDiagonals = true;

  int64_t num_steps;     // L >= 1
  int32_t state_dim;     // D in [1, W]
  int32_t width;         // W, a multiple of kPanelCols
  const float* weights;  // [L, W * W]: each as PanelPlace says
  const float* biases;   // [L, W]
  float scale;
  bool residual;
  Activation activation;
  bool in_sequence;  // the sequential solver has a kernel of its own (panel_sequential_kernel.h)

  DEEPPCR_DEVICE PanelLayers StepsOf(int64_t sample, int32_t draw = 0) const;
  constexpr int64_t StepFloats(int rows) const {
    return 2 * VectorShape::For(width, rows).floats();
  }
  template <class Team>
  DEEPPCR_DEVICE auto NewSoleStep(const Team& team, float* memory) const {
    return NewStep<1>(team, memory, 1, false);
  }
  template <int S, class Team>
  DEEPPCR_DEVICE PanelStackStep<S, Team> NewStep(const Team& team, float* memory, int rows,
                                                 bool probes) const {
    return {team, *this, memory, rows, probes};
  }
};

// Layers of a stack, the same for all samples.
class PanelLayers {
 public:
  struct Layer {
    PanelLayer layer;
    int64_t draw;  // see DrawOfSigns
  };

  DEEPPCR_DEVICE PanelLayers(const PanelStackView& stack, int32_t draw)
      : stack_(stack), signs_(DrawOfSigns(0, draw, stack.num_steps)) {}

  DEEPPCR_DEVICE Layer At(int64_t l) const {
    return {{stack_.weights + l * Floats(), stack_.biases + l * stack_.width, nullptr, stack_.width,
             stack_.width},
            signs_ + l};
  }
  // Prefetches a layer ahead: each layer is used only once, by a team that waits for the layer.
  template <class Team>
  DEEPPCR_DEVICE void Prefetch(const Team& team, int64_t l) const {
    constexpr int kLineFloats = 32;
    if (l + kLayersPrefetched >= stack_.num_steps) return;
    const float* const layer = stack_.weights + (l + kLayersPrefetched) * Floats();
    // A warp asks for the weights of its panels.
    const int64_t panel = int64_t{kPanelRows} * stack_.width;
    for (int64_t p = team.warp(); p < stack_.width / kPanelRows; p += team.num_warps()) {
      for (int64_t at = team.context().lane() * kLineFloats; at < panel; at += 32 * kLineFloats)
        team.context().Prefetch(layer + p * panel + at);
    }
  }

 private:
  DEEPPCR_DEVICE int64_t Floats() const { return int64_t{stack_.width} * stack_.width; }
  const PanelStackView& stack_;
  const int64_t signs_;  // draws the signs of the first step
};

DEEPPCR_DEVICE PanelLayers PanelStackView::StepsOf(int64_t, int32_t draw) const {
  return {*this, draw};
}

// The barrier call of a step.
enum PanelStackSite : int { kAfterStackLayer = 48, kNumPanelStackSites };

// A StepRule (warp_step.h) of states of a width, in place of a PanelStackView.
template <class Rule>
struct PanelRule : Rule {
  int32_t width;
};

// Panels: how a warp reads the weights of its panels (panel_layer.h). Stack: PanelStackView, or a
// PanelRule where the step is compiled for an activation.
template <int S, class Team, template <int, class> class Panels, class Stack>
class PanelStackStep {
 public:
  DEEPPCR_DEVICE PanelStackStep(const Team& team, const Stack& stack, float* memory, int rows,
                                bool probes)
      : team_(team),
        context_(team.context()),
        stack_(stack),
        rows_(S == 1 ? 1 : rows),
        probes_(probes ? kNumProbes : 0),
        shape_(VectorShape::For(stack.width, rows_)),
        state_(memory),
        next_(state_ + shape_.floats()) {}

  DEEPPCR_DEVICE int cols() const { return stack_.width; }
  DEEPPCR_DEVICE float& State(int r, int i) const { return At(state_, r, i); }
  // Writes the diagonal of the Jacobian of the steps to come, [W], to `to`; null: no diagonal.
  DEEPPCR_DEVICE void KeepDiagonal(float* to) { diagonal_ = to; }
  // Writes the slopes of the activations of the steps to come, [W], to `to`; null: no slopes.
  DEEPPCR_DEVICE void KeepSlopes(float* to) { slopes_ = to; }

  DEEPPCR_DEVICE void Run(const PanelLayers::Layer& step) {
    // Squares of small and of large states would not be floats: those of terms have a common unit.
    unit_ = probes_ > 0 ? PowerOfTwoBelow(LargestOfState()) : 1.0F;
    const PanelVectors vectors = {state_, shape_, rows_, 1.0F / unit_};
    ForRows<S, Tile, kSquares, Panels>(
        team_, step.layer, vectors, [&](int i) { return step.layer.bias[i]; },
        [&](int i, float bias, const auto& p) { FinishRow(step, i, bias, p); });
    team_.Sync(kAfterStackLayer);
    float* const read = state_;
    state_ = next_;
    next_ = read;
  }

 private:
  static constexpr Squares kSquares = S == 1 ? Squares::kNone : Squares::kOfTerms;
  // With columns two panels share what is read of a vector; all probes are in the first part.
  using Tile =
      std::conditional_t<(S > 1 + kNumProbes), PanelTile<2, S <= 21 ? 2 : 6>, PanelTile<1, 1>>;

  DEEPPCR_DEVICE float& At(float* vectors, int r, int i) const {
    return vectors[shape_.Place(r, i)];
  }
  DEEPPCR_DEVICE float LargestOfState() {
    float largest = 0.0F;
    for (int i = context_.lane(); i < cols(); i += kWarpSize)
      largest = fmaxf(largest, fabsf(State(0, i)));
    return context_.LargestOfWarp(largest);
  }
  // sqrt(a^2 + b^2 + c^2), whatever their unit; at most the largest float.
  static DEEPPCR_DEVICE float Length(float a, float b, float c) {
    const float unit = PowerOfTwoBelow(fmaxf(fabsf(a), fmaxf(fabsf(b), fabsf(c))));
    const float inverse = 1.0F / unit;
    a *= inverse;
    b *= inverse;
    c *= inverse;
    return fminf(sqrtf(fmaf(a, a, fmaf(b, b, c * c))) * unit, kLargestFloat);
  }
  // Finishes element i of all rows: the rounding has parts from the new state, the branch, and the
  // terms of the dot product with the bias, which cancel in the state but not in the rounding.
  template <int N>
  DEEPPCR_DEVICE void FinishRow(const PanelLayers::Layer& step, int i, float bias,
                                const PanelSums<N>& p) {
    const float a = p.first + bias;
    const float next = FinishStep(stack_, i, a, State(0, i));
    const bool linearizes = rows_ > 1 || diagonal_ != nullptr || slopes_ != nullptr;
    const float slope = linearizes ? SlopeAt(stack_, a) : 0.0F;
    const float branch = stack_.residual ? next - State(0, i) : 0.0F;
    const float squared = p.squares * SquaredRoundingOfSum(stack_.state_dim);
    const float length = Length(sqrtf(fminf(squared, kLargestFloat)) * unit_,
                                sqrtf(SquaredRoundingOfSum(stack_.state_dim)) * bias, 0.0F);
    SlopeRange near = {slope, slope};
    if constexpr (N > kNumProbes) {
      if (probes_ > 0 && p.skipped == 0) {
        const float reach = ReachOf(length, LargestProbe(context_, p, probes_));
        const float factor = stack_.residual ? stack_.scale : 1.0F;
        near = SlopesOfRow(context_, stack_.activation, factor, a, reach).near;
      }
    }
    const float terms = near.Largest() * length;
    const float size = Length(next, branch, terms);
    const bool real = i < stack_.state_dim;
    if (slopes_ != nullptr && context_.lane() % kSegments == 0) slopes_[i] = real ? slope : 0.0F;
    if (diagonal_ != nullptr && context_.lane() % kSegments == 0 && p.skipped == 0) {
      const float weight = step.layer.weights[PanelPlace(stack_.width, i, i)];
      diagonal_[i] = real ? fmaf(slope, weight, stack_.residual ? 1.0F : 0.0F) : 0.0F;
    }
    p.ForMine(context_.lane(), rows_, [&](int r, float product) {
      const bool probe = r >= 1 && r <= probes_;
      const float beside = stack_.residual ? State(r, i) : 0.0F;
      const float carried = probe ? near.Carry(product, beside) : fmaf(slope, product, beside);
      float value = r == 0 ? next : carried;
      if (probe) value += RoundingSource(size, r - 1, i, step.draw);
      team_.Put(&At(next_, r, i), real ? value : 0.0F);
    });
  }

  const Team team_;
  typename Team::Context& context_;
  const Stack& stack_;
  const int rows_, probes_;
  const VectorShape shape_;
  float *state_, *next_;  // of shape_
  float unit_ = 1.0F;     // of the squares of terms
  float* diagonal_ = nullptr;
  float* slopes_ = nullptr;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_PANEL_STEP_H_
