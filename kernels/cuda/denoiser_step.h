// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DENOISER_STEP_H_
#define DEEPPCR_KERNELS_CUDA_DENOISER_STEP_H_

// THE reverse step of a diffusion model on a GPU, by a team of threads (team.h): every solver takes
// its states through it, so that they agree bit for bit. The state may bring tangent vectors along,
// probes that pick up the rounding and columns of the Jacobian; they pass through each layer
// together with it and change nothing about its bits.
//
// The network is that of DenoiserSpec (kernels/backend/system_spec.h), the reverse step that of
// kernels/backend/reverse_step.h, the sizes of rounding errors those of
// kernels/cpu/reverse_step_kernels.h.

#include <math.h>

#include <cstdint>

#include "kernels/backend/iteration.h"
#include "kernels/backend/reverse_step.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/panel_layer.h"
#include "kernels/cuda/rounding_source.h"
#include "kernels/cuda/team.h"

namespace deeppcr::cuda {

// A modulation row holds, for one step (and condition), H' floats each:
//   residual MLP  per block: the bias of its layer plus its part of mu
//   adaLN MLP     per block: gain  = norm weight (1 + scale)
//                            shift = norm bias (1 + scale) + shift
//                            gate
//                 at the end: gain = 1 + scale, shift
struct DenoiserView {
  bool ada_ln;  // else residual MLP
  Activation activation;
  int32_t state_dim;     // D
  int32_t state_cols;    // of a state as the layers take it: a multiple of kPanelCols
  int32_t hidden_dim;    // H
  int32_t hidden_width;  // H', a multiple of kPanelCols
  int32_t num_blocks;    // N
  PanelLayer input, output;
  const PanelLayer* first;   // [N]
  const PanelLayer* second;  // [N], adaLN only
  float clip_range;          // may be infinite
  float norm_epsilon;

  constexpr int32_t modulation_floats() const {
    return (ada_ln ? 3 * num_blocks + 2 : num_blocks) * hidden_width;
  }
};

// What a step needs beside its state.
struct StepView {
  ReverseCoefficients coefficients;
  const float* modulation;
  const float* noise;  // [D], or null where sigma is 0
  int64_t step;        // 0-based: of the signs of the rounding probes

  // Of a row: the state's, whose tangents the others are.
  DEEPPCR_DEVICE const StepView& Row(int) const { return *this; }
};

// The barrier calls of a step.
enum DenoiserSite : int {
  kAfterInputLayer = 32,  // beyond those of the kernels that make the steps
  kAfterResidualBlock,
  kAfterModulation,
  kAfterInnerLayer,
  kBeforeGatedSum,
  kAfterOuterLayer,
  kAfterPrediction,
  kAfterReverseStep,
  kNumDenoiserSites,
};

// Floats of shared memory for steps of so many rows.
constexpr int64_t DenoiserFloats(const DenoiserView& d, int rows) {
  return int64_t{rows} * (2 * VectorFloats(d.state_cols) + 3 * VectorFloats(d.hidden_width));
}

// What the rows of a step are, at most S of them.
enum class StepRowsAre : uint8_t {
  kStateAndTangents,  // a state in row 0, then the probes if they are carried, then columns of the
                      // Jacobian
  kStates,            // a state each, of as many samples, whose steps are a Row(r) each
};

template <int S, class Team, StepRowsAre kRows = StepRowsAre::kStateAndTangents>
class DenoiserStep {
 public:
  // `memory`: DenoiserFloats(d, rows) of a block's, aligned to 16 bytes.
  DEEPPCR_DEVICE DenoiserStep(const Team& team, const DenoiserView& d, float* memory, int rows,
                              bool probes)
      : team_(team),
        context_(team.context()),
        d_(d),
        rows_(rows),
        probes_(probes ? kNumProbes : 0),
        squares_(probes ? Squares::kOfVector : Squares::kNone),
        state_stride_(VectorFloats(d.state_cols)),
        stride_(VectorFloats(d.hidden_width)),
        state_(memory),
        next_(state_ + rows * state_stride_),
        hidden_(next_ + rows * state_stride_),
        inner_(hidden_ + rows * stride_),
        outer_(inner_ + rows * stride_) {}

  DEEPPCR_DEVICE int cols() const { return d_.state_cols; }
  // Element i < cols() of row r of the state. Those beyond D are to be zero.
  DEEPPCR_DEVICE float& State(int r, int i) const {
    return state_[r * state_stride_ + VectorPlace(d_.state_cols, i)];
  }

  // One step of all rows. Whoever has written the state, in every block, has synchronised the team;
  // so has this when it returns.
  template <class Steps>
  DEEPPCR_DEVICE void Run(const Steps& steps) {
    Finish(steps, Features(steps));
  }

  // The denoiser alone: what it makes of row 0 is Prediction(i), until the next step.
  DEEPPCR_DEVICE void Predict(const StepView& step) {
    ForRows<S>(team_, d_.output, Features(step), stride_, 1, Squares::kNone,
               [&](int i, const PanelSums<S>& p) {
                 ForMine(p, [&](int r, float) {
                   if (r == 0) team_.Put(&Next(0, i), p.first + d_.output.bias[i]);
                 });
               });
    team_.Sync(kAfterPrediction);
  }
  DEEPPCR_DEVICE float Prediction(int i) const { return Next(0, i); }

  // Of x0. A NaN stays one.
  DEEPPCR_DEVICE float Clip(float x) const {
    return x > d_.clip_range ? d_.clip_range : x < -d_.clip_range ? -d_.clip_range : x;
  }

 private:
  static constexpr bool kStates = kRows == StepRowsAre::kStates;

  // What the output layer multiplies with.
  template <class Steps>
  DEEPPCR_DEVICE const float* Features(const Steps& steps) {
    InputLayer(steps);
    for (int i = 0; i < d_.num_blocks; ++i)
      d_.ada_ln ? AdaLnBlock(steps, i) : ResidualBlock(steps, i);
    if (!d_.ada_ln) return hidden_;
    Modulate(steps, d_.num_blocks);
    return inner_;
  }

  DEEPPCR_DEVICE float& Next(int r, int i) const {
    return next_[r * state_stride_ + VectorPlace(d_.state_cols, i)];
  }
  DEEPPCR_DEVICE float& At(float* vectors, int r, int i) const {
    return vectors[r * stride_ + VectorPlace(d_.hidden_width, i)];
  }
  DEEPPCR_DEVICE bool IsProbe(int r) const { return r >= 1 && r <= probes_; }
  // The signs differ from one place of the network to the next, of which a step has 2 N + 2.
  DEEPPCR_DEVICE float Source(const StepView& step, int place, float size, int r, int i) const {
    return RoundingSource(size, r - 1, i, step.step * (2 * d_.num_blocks + 2) + place);
  }
  // f(r, sum) for the rows that this lane has of a product.
  template <class F>
  DEEPPCR_DEVICE void ForMine(const PanelSums<S>& p, const F& f) const {
    DEEPPCR_UNROLL
    for (int q = 0; q < PanelSums<S>::kQuads; ++q) {
      const int r = q * kSegments + context_.lane() % kSegments;
      if (r < rows_) f(r, p.mine[q]);
    }
  }
  // Element i of a layer's output where all rows are states: f(r, sum).
  template <class F>
  DEEPPCR_DEVICE void WriteStates(int i, float* to, const PanelSums<S>& p, const F& f) const {
    const bool real = i < d_.hidden_dim;
    ForMine(p, [&](int r, float sum) { team_.Put(&At(to, r, i), real ? f(r, sum) : 0.0F); });
  }
  // The same of a state and its tangents: `first` of the state, f(r, sum) of the tangents, and to
  // the probes their rounding.
  template <class F>
  DEEPPCR_DEVICE void WriteRows(const StepView& step, int place, float size, int i, float* to,
                                const PanelSums<S>& p, float first, const F& f) const {
    const bool real = i < d_.hidden_dim;
    ForMine(p, [&](int r, float sum) {
      float value = r == 0 ? first : f(r, sum);
      if (IsProbe(r)) value += Source(step, place, size, r, i);
      team_.Put(&At(to, r, i), real ? value : 0.0F);
    });
  }

  template <class Steps>
  DEEPPCR_DEVICE void InputLayer(const Steps& steps) {
    ForRows<S>(team_, d_.input, state_, state_stride_, rows_, squares_,
               [&](int i, const PanelSums<S>& p) {
                 const auto state = [&](int, float sum) { return sum + d_.input.bias[i]; };
                 if constexpr (kStates) return WriteStates(i, hidden_, p, state);
                 const float value = state(0, p.first);
                 const float terms = d_.input.spreads[i] * sqrtf(p.squares);
                 const float size = sqrtf(fmaf(terms, terms, value * value));
                 WriteRows(steps.Row(0), 0, size, i, hidden_, p, value,
                           [](int, float sum) { return sum; });
               });
    team_.Sync(kAfterInputLayer);
  }

  // h <- h + act(first h + mu).
  template <class Steps>
  DEEPPCR_DEVICE void ResidualBlock(const Steps& steps, int block) {
    const PanelLayer layer = d_.first[block];
    ForRows<S>(team_, layer, hidden_, stride_, rows_, squares_, [&](int i, const PanelSums<S>& p) {
      const auto pre_activation = [&](int r, float sum) {
        return sum + steps.Row(r).modulation[block * d_.hidden_width + i];
      };
      const auto state = [&](int r, float sum) {
        return At(hidden_, r, i) + Activate(d_.activation, pre_activation(r, sum));
      };
      if constexpr (kStates) return WriteStates(i, inner_, p, state);
      const float a = pre_activation(0, p.first), value = state(0, p.first);
      const float slope = rows_ > 1 ? Differentiate(d_.activation, a) : 0.0F;
      const float terms = layer.spreads[i] * sqrtf(p.squares);
      const float branch = slope * slope * fmaf(terms, terms, a * a);
      const float size = sqrtf(fmaf(value, value, branch));
      WriteRows(steps.Row(0), 2 * block + 1, size, i, inner_, p, value,
                [&](int r, float product) { return fmaf(slope, product, At(hidden_, r, i)); });
    });
    team_.Sync(kAfterResidualBlock);
    float* const read = hidden_;
    hidden_ = inner_;
    inner_ = read;
  }

  // h <- h + gate (second act(first u)), u = norm(h) gain + shift.
  template <class Steps>
  DEEPPCR_DEVICE void AdaLnBlock(const Steps& steps, int block) {
    Modulate(steps, block);
    InnerLayer(steps, block);
    OuterLayer(steps, block);
  }
  template <class Steps>
  DEEPPCR_DEVICE void InnerLayer(const Steps& steps, int block) {
    const PanelLayer layer = d_.first[block];
    ForRows<S>(team_, layer, inner_, stride_, rows_, squares_, [&](int i, const PanelSums<S>& p) {
      const auto state = [&](int, float sum) {
        return Activate(d_.activation, sum + layer.bias[i]);
      };
      if constexpr (kStates) return WriteStates(i, outer_, p, state);
      const float a = p.first + layer.bias[i], value = state(0, p.first);
      const float slope = rows_ > 1 ? Differentiate(d_.activation, a) : 0.0F;
      const float terms = layer.spreads[i] * sqrtf(p.squares);
      // Twice: the inputs of the product have been rounded too.
      const float before = fmaf(terms, terms + terms, a * a);
      const float size = sqrtf(fmaf(slope * slope, before, value * value));
      WriteRows(steps.Row(0), 2 * block + 1, size, i, outer_, p, value,
                [&](int, float product) { return slope * product; });
    });
    team_.Sync(kAfterInnerLayer);
  }
  template <class Steps>
  DEEPPCR_DEVICE void OuterLayer(const Steps& steps, int block) {
    const PanelLayer layer = d_.second[block];
    const int gates = (3 * block + 2) * d_.hidden_width;  // of the modulation
    ForRows<S>(team_, layer, outer_, stride_, rows_, squares_, [&](int i, const PanelSums<S>& p) {
      const auto gate_of = [&](int r) { return steps.Row(r).modulation[gates + i]; };
      const auto state = [&](int r, float sum) {
        return fmaf(gate_of(r), sum + layer.bias[i], At(hidden_, r, i));
      };
      if constexpr (kStates) return WriteStates(i, hidden_, p, state);
      const float gate = gate_of(0), branch_sum = p.first + layer.bias[i];
      const float value = state(0, p.first);
      const float terms = layer.spreads[i] * sqrtf(p.squares);
      const float branch = gate * gate * fmaf(terms, terms, branch_sum * branch_sum);
      const float size = sqrtf(fmaf(value, value, branch));
      context_.SyncWarp(kBeforeGatedSum);  // all lanes have read row 0
      WriteRows(steps.Row(0), 2 * block + 2, size, i, hidden_, p, value,
                [&](int r, float product) { return fmaf(gate, product, At(hidden_, r, i)); });
    });
    team_.Sync(kAfterOuterLayer);
  }

  DEEPPCR_DEVICE float SumOfWarp(float x) const {
    DEEPPCR_UNROLL
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) x += context_.ShuffleXor(x, mask);
    return x;
  }
  // The sum of f over the elements of a hidden vector, by a warp.
  template <class F>
  DEEPPCR_DEVICE float SumOver(const F& f) const {
    float sum = 0.0F;
    for (int i = context_.lane(); i < d_.hidden_dim; i += kWarpSize) sum += f(i);
    return SumOfWarp(sum);
  }

  // Mean and inverse deviation of row r, by a warp.
  struct Norm {
    float mean, inverse;
  };
  DEEPPCR_DEVICE Norm NormOf(int r) const {
    const float size = static_cast<float>(d_.hidden_dim);
    const float mean = SumOver([&](int i) { return At(hidden_, r, i); }) / size;
    const float variance = SumOver([&](int i) {
                             const float centred = At(hidden_, r, i) - mean;
                             return centred * centred;
                           }) /
                           size;
    // The second term makes a NaN of a variance that overflowed: zeros would hide it.
    return {mean, 1.0F / sqrtf(variance + d_.norm_epsilon) + 0.0F * variance};
  }
  // f(r) for every row, a warp each.
  template <class F>
  DEEPPCR_DEVICE void ForWarpRows(const F& f) const {
    for (int r = context_.warp(); r < rows_; r += context_.num_threads() / kWarpSize) f(r);
  }

  // inner <- norm(hidden) gain + shift, and its tangents, in each block for itself. Every warp
  // forms the norm of the state itself.
  template <class Steps>
  DEEPPCR_DEVICE void Modulate(const Steps& steps, int block) {
    const int gains = 3 * block * d_.hidden_width, shifts = gains + d_.hidden_width;
    const auto write_state = [&](int r, const Norm& norm) {
      const float* const modulation = steps.Row(r).modulation;
      for (int i = context_.lane(); i < d_.hidden_width; i += kWarpSize) {
        const float n = (At(hidden_, r, i) - norm.mean) * norm.inverse;
        const float value = fmaf(n, modulation[gains + i], modulation[shifts + i]);
        At(inner_, r, i) = i < d_.hidden_dim ? value : 0.0F;
      }
    };
    if constexpr (kStates) {
      ForWarpRows([&](int r) { write_state(r, NormOf(r)); });
    } else {
      const Norm norm = NormOf(0);
      ForWarpRows([&](int r) {
        r == 0 ? write_state(0, norm) : NormTangent(r, norm, steps.Row(0).modulation + gains);
      });
    }
    context_.SyncBlock(kAfterModulation);
  }
  DEEPPCR_DEVICE void NormTangent(int r, const Norm& norm, const float* gain) const {
    const float size = static_cast<float>(d_.hidden_dim);
    const auto normed = [&](int i) { return (At(hidden_, 0, i) - norm.mean) * norm.inverse; };
    const float mean = SumOver([&](int i) { return At(hidden_, r, i); }) / size;
    const float along = SumOver([&](int i) { return normed(i) * At(hidden_, r, i); }) / size;
    for (int i = context_.lane(); i < d_.hidden_width; i += kWarpSize) {
      const float n = i < d_.hidden_dim ? normed(i) : 0.0F;
      const float rest = At(hidden_, r, i) - mean - n * along;
      At(inner_, r, i) = i < d_.hidden_dim ? rest * norm.inverse * gain[i] : 0.0F;
    }
  }

  // z_z z + z_m m + z_x0 clip(x0_z z + x0_m m) + sigma noise, of element i.
  DEEPPCR_DEVICE float Reverse(const StepView& step, int i, float m, float old) const {
    const ReverseCoefficients& c = step.coefficients;
    const float x0 = Clip(fmaf(c.x0_m, m, c.x0_z * old));
    const float next = fmaf(c.z_x0, x0, fmaf(c.z_m, m, c.z_z * old));
    return step.noise != nullptr && i < d_.state_dim ? fmaf(c.sigma, step.noise[i], next) : next;
  }

  // The reverse step of every row.
  template <class Steps>
  DEEPPCR_DEVICE void Finish(const Steps& steps, const float* features) {
    ForRows<S>(team_, d_.output, features, stride_, rows_, squares_,
               [&](int i, const PanelSums<S>& p) {
                 if constexpr (kStates)
                   return ForMine(p, [&](int r, float sum) {
                     const float m = sum + d_.output.bias[i];
                     const float next = Reverse(steps.Row(r), i, m, State(r, i));
                     team_.Put(&Next(r, i), i < d_.state_dim ? next : 0.0F);
                   });
                 FinishTangents(steps.Row(0), i, p);
               });
    team_.Sync(kAfterReverseStep);
    float* const read = state_;
    state_ = next_;
    next_ = read;
  }
  // A state and its tangents.
  DEEPPCR_DEVICE void FinishTangents(const StepView& step, int i, const PanelSums<S>& p) const {
    const ReverseCoefficients& c = step.coefficients;
    const float m = p.first + d_.output.bias[i], old = State(0, i);
    const float next = Reverse(step, i, m, old);
    // Of the clip: 1 on the boundary, as PyTorch's, and for a NaN, which shows in m.
    const float raw = fmaf(c.x0_m, m, c.x0_z * old);
    const float through = fabsf(raw) > d_.clip_range ? 0.0F : c.z_x0;
    const float by_m = fmaf(through, c.x0_m, c.z_m);
    const float by_z = fmaf(through, c.x0_z, c.z_z);
    const float terms = by_m * d_.output.spreads[i] * sqrtf(p.squares);
    const float size = SizeOfState(c, old, m, next, terms);
    ForMine(p, [&](int r, float product) {
      float value = r == 0 ? next : fmaf(by_m, product, by_z * State(r, i));
      if (IsProbe(r)) value += Source(step, 2 * d_.num_blocks + 1, size, r, i);
      team_.Put(&Next(r, i), i < d_.state_dim ? value : 0.0F);
    });
  }
  static DEEPPCR_DEVICE float Square(float x) { return x * x; }
  // Twice the dot products in adaLN, where their inputs have been rounded too.
  DEEPPCR_DEVICE float SizeOfState(const ReverseCoefficients& c, float old, float m, float next,
                                   float terms) const {
    float size = Square(terms) * (d_.ada_ln ? 2.0F : 1.0F);
    size = fmaf(next, next, size);
    size += Square(c.z_z * old) + Square(c.z_m * m);
    size += Square(c.z_x0 * c.x0_z * old);
    return sqrtf(size + Square(c.z_x0 * c.x0_m * m));
  }

  const Team team_;
  typename Team::Context& context_;
  const DenoiserView& d_;
  const int rows_;
  const int probes_;
  const Squares squares_;
  const int state_stride_, stride_;
  float *state_, *next_;             // [rows, state_stride_] each
  float *hidden_, *inner_, *outer_;  // [rows, stride_] each
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DENOISER_STEP_H_
