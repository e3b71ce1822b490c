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

// A state in row 0, then the probes if they are carried, then columns of the Jacobian: at most S
// rows in all.
template <int S, class Team>
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
  DEEPPCR_DEVICE void Run(const StepView& step) { Finish(step, Features(step)); }

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
  // What the output layer multiplies with.
  DEEPPCR_DEVICE const float* Features(const StepView& step) {
    InputLayer(step);
    for (int i = 0; i < d_.num_blocks; ++i)
      d_.ada_ln ? AdaLnBlock(step, i) : ResidualBlock(step, i);
    if (!d_.ada_ln) return hidden_;
    Modulate(step, d_.num_blocks);
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
  // Element i of a layer's output: `first` of the state, f(r, sum) of the tangents, and to the
  // probes their rounding.
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

  DEEPPCR_DEVICE void InputLayer(const StepView& step) {
    ForRows<S>(team_, d_.input, state_, state_stride_, rows_, squares_,
               [&](int i, const PanelSums<S>& p) {
                 const float value = p.first + d_.input.bias[i];
                 const float terms = d_.input.spreads[i] * sqrtf(p.squares);
                 const float size = sqrtf(fmaf(terms, terms, value * value));
                 WriteRows(step, 0, size, i, hidden_, p, value, [](int, float sum) { return sum; });
               });
    team_.Sync(kAfterInputLayer);
  }

  // h <- h + act(first h + mu).
  DEEPPCR_DEVICE void ResidualBlock(const StepView& step, int block) {
    const PanelLayer layer = d_.first[block];
    const float* mu = step.modulation + block * d_.hidden_width;
    ForRows<S>(team_, layer, hidden_, stride_, rows_, squares_, [&](int i, const PanelSums<S>& p) {
      const float a = p.first + mu[i];
      const float sum = At(hidden_, 0, i) + Activate(d_.activation, a);
      const float slope = rows_ > 1 ? Differentiate(d_.activation, a) : 0.0F;
      const float terms = layer.spreads[i] * sqrtf(p.squares);
      const float branch = slope * slope * fmaf(terms, terms, a * a);
      const float size = sqrtf(fmaf(sum, sum, branch));
      WriteRows(step, 2 * block + 1, size, i, inner_, p, sum,
                [&](int r, float product) { return fmaf(slope, product, At(hidden_, r, i)); });
    });
    team_.Sync(kAfterResidualBlock);
    float* const read = hidden_;
    hidden_ = inner_;
    inner_ = read;
  }

  // h <- h + gate (second act(first u)), u = norm(h) gain + shift.
  DEEPPCR_DEVICE void AdaLnBlock(const StepView& step, int block) {
    Modulate(step, block);
    InnerLayer(step, block);
    OuterLayer(step, block);
  }
  DEEPPCR_DEVICE void InnerLayer(const StepView& step, int block) {
    const PanelLayer layer = d_.first[block];
    ForRows<S>(team_, layer, inner_, stride_, rows_, squares_, [&](int i, const PanelSums<S>& p) {
      const float a = p.first + layer.bias[i];
      const float value = Activate(d_.activation, a);
      const float slope = rows_ > 1 ? Differentiate(d_.activation, a) : 0.0F;
      const float terms = layer.spreads[i] * sqrtf(p.squares);
      // Twice: the inputs of the product have been rounded too.
      const float before = fmaf(terms, terms + terms, a * a);
      const float size = sqrtf(fmaf(slope * slope, before, value * value));
      WriteRows(step, 2 * block + 1, size, i, outer_, p, value,
                [&](int, float product) { return slope * product; });
    });
    team_.Sync(kAfterInnerLayer);
  }
  DEEPPCR_DEVICE void OuterLayer(const StepView& step, int block) {
    const PanelLayer layer = d_.second[block];
    const float* gates = step.modulation + (3 * block + 2) * d_.hidden_width;
    ForRows<S>(team_, layer, outer_, stride_, rows_, squares_, [&](int i, const PanelSums<S>& p) {
      const float gate = gates[i], branch_sum = p.first + layer.bias[i];
      const float sum = fmaf(gate, branch_sum, At(hidden_, 0, i));
      const float terms = layer.spreads[i] * sqrtf(p.squares);
      const float branch = gate * gate * fmaf(terms, terms, branch_sum * branch_sum);
      const float size = sqrtf(fmaf(sum, sum, branch));
      context_.SyncWarp(kBeforeGatedSum);  // all lanes have read row 0
      WriteRows(step, 2 * block + 2, size, i, hidden_, p, sum,
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

  // inner <- norm(hidden) gain + shift, and its tangents, in each block for itself. Every warp
  // forms the mean and the deviation of the state itself.
  DEEPPCR_DEVICE void Modulate(const StepView& step, int block) {
    const float* gain = step.modulation + 3 * block * d_.hidden_width;
    const float* shift = gain + d_.hidden_width;
    const float size = static_cast<float>(d_.hidden_dim);
    const float mean = SumOver([&](int i) { return At(hidden_, 0, i); }) / size;
    const float variance = SumOver([&](int i) {
                             const float centred = At(hidden_, 0, i) - mean;
                             return centred * centred;
                           }) /
                           size;
    // The second term makes a NaN of a variance that overflowed: zeros would hide it.
    const float inverse = 1.0F / sqrtf(variance + d_.norm_epsilon) + 0.0F * variance;
    const auto normed = [&](int i) { return (At(hidden_, 0, i) - mean) * inverse; };
    for (int r = context_.warp(); r < rows_; r += context_.num_threads() / kWarpSize) {
      const float mean_r = SumOver([&](int i) { return At(hidden_, r, i); }) / size;
      const float along = SumOver([&](int i) { return normed(i) * At(hidden_, r, i); }) / size;
      for (int i = context_.lane(); i < d_.hidden_width; i += kWarpSize) {
        const float n = i < d_.hidden_dim ? normed(i) : 0.0F;
        const float rest = At(hidden_, r, i) - mean_r - n * along;
        const float value = r == 0 ? fmaf(n, gain[i], shift[i]) : rest * inverse * gain[i];
        At(inner_, r, i) = i < d_.hidden_dim ? value : 0.0F;
      }
    }
    context_.SyncBlock(kAfterModulation);
  }

  // z <- z_z z + z_m m + z_x0 clip(x0_z z + x0_m m) + sigma noise.
  DEEPPCR_DEVICE void Finish(const StepView& step, const float* features) {
    const ReverseCoefficients& c = step.coefficients;
    ForRows<S>(team_, d_.output, features, stride_, rows_, squares_,
               [&](int i, const PanelSums<S>& p) {
                 const float m = p.first + d_.output.bias[i], old = State(0, i);
                 const float raw = fmaf(c.x0_m, m, c.x0_z * old);
                 const float x0 = Clip(raw);
                 float next = fmaf(c.z_x0, x0, fmaf(c.z_m, m, c.z_z * old));
                 if (step.noise != nullptr && i < d_.state_dim)
                   next = fmaf(c.sigma, step.noise[i], next);
                 // Of the clip: 1 on the boundary, as PyTorch's, and for a NaN, which shows in m.
                 const float through = fabsf(raw) > d_.clip_range ? 0.0F : c.z_x0;
                 const float by_m = fmaf(through, c.x0_m, c.z_m);
                 const float by_z = fmaf(through, c.x0_z, c.z_z);
                 const float terms = by_m * d_.output.spreads[i] * sqrtf(p.squares);
                 WriteStates(step, i, p, next, by_m, by_z, SizeOfState(c, old, m, next, terms));
               });
    team_.Sync(kAfterReverseStep);
    float* const read = state_;
    state_ = next_;
    next_ = read;
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
  DEEPPCR_DEVICE void WriteStates(const StepView& step, int i, const PanelSums<S>& p, float next,
                                  float by_m, float by_z, float size) const {
    ForMine(p, [&](int r, float product) {
      float value = r == 0 ? next : fmaf(by_m, product, by_z * State(r, i));
      if (IsProbe(r)) value += Source(step, 2 * d_.num_blocks + 1, size, r, i);
      team_.Put(&Next(r, i), i < d_.state_dim ? value : 0.0F);
    });
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
