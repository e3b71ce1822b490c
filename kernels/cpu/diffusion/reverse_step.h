// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_DIFFUSION_REVERSE_STEP_H_
#define DEEPPCR_KERNELS_CPU_DIFFUSION_REVERSE_STEP_H_

// THE reverse step of the diffusion family, shared by the sequential and the iterative solvers: the
// bits of a state depend neither on the rows beside it nor on the tapes for the tangents.
//
// Sizes of rounding errors, in units of 2^-24, are root mean squares of independent parts. A dot
// product counts with |w| |x| / sqrt(n), the root of the expected sum of its squared terms, which
// costs no second product.

#include "kernels/cpu/diffusion/hidden_vectors.h"
#include "kernels/cpu/diffusion/panel_gemm.h"
#include "kernels/cpu/diffusion/tape.h"
#include "kernels/cpu/simd/slope_near.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

DEEPPCR_INLINE Wide Squared(Wide a) { return a * a; }

// The primal pass of args.count rows.
struct ReverseStepPass {
  const StepArgs& args;
  const DenoiserView& d;
  int64_t width;                   // H'
  float *hidden, *first, *second;  // [count, H'] each

  explicit DEEPPCR_INLINE ReverseStepPass(const StepArgs& a)
      : args(a),
        d(*a.denoiser),
        width(a.denoiser->hidden_width),
        hidden(a.scratch),
        first(hidden + a.count * width),
        second(first + a.count * width) {}

  DEEPPCR_INLINE void Run() const {
    Product(*d.input, d.input->bias, args.states, d.state_width, hidden, width);
    if (args.sizes) ForRows([&](int64_t r) { SizeInput(r); });
    for (int64_t i = 0; i < d.num_blocks; ++i) d.ada_ln ? AdaLnBlock(i) : ResidualBlock(i);
    const float* features = hidden;
    if (d.ada_ln) {
      ForRows([&](int64_t r) { Modulate(r, d.num_blocks); });
      features = first;
    }
    Product(*d.output, d.output->bias, features, width, args.predictions, d.state_width);
    ForRows([&](int64_t r) { Finish(r, features + r * width); });
  }

 private:
  template <class F>
  DEEPPCR_INLINE void ForRows(const F& f) const {
    for (int64_t r = 0; r < args.count; ++r) f(r);
  }
  DEEPPCR_INLINE void Product(const PanelView& layer, const float* bias, const float* in,
                              int64_t in_stride, float* out, int64_t out_stride) const {
    SharedGemm(args.sharing, {.layer = &layer,
                              .bias = bias,
                              .in = in,
                              .out = out,
                              .in_stride = in_stride,
                              .out_stride = out_stride,
                              .count = args.count});
  }
  DEEPPCR_INLINE Tape TapeOf(int64_t r) const { return Tape(d, args.tapes + r * d.tape_floats); }
  // Expected size of the dot products of one row of `width` inputs: the factor of a row's spread.
  DEEPPCR_INLINE Wide Length(const float* in, int64_t floats) const {
    return All(SquareRoot(DotOf(in, in, floats)));
  }

  // Keeps for the tangents the derivative of the activation at x; for probes also x, the size of
  // the terms of its sum (from `length` of the input) and `activated`, the activation or the sum
  // that includes it, from which the largest slope near x and the rounding follow.
  template <int M>
  DEEPPCR_INLINE void TapeActivation(Chunk<M> x, const Chunk<M>& activated, Wide length, int64_t r,
                                     int64_t i, int64_t at) const {
    const Tape tape = TapeOf(r);
    if (args.sizes) {
      x.To(tape.PreActivation(i) + at);
      activated.To(tape.Activated(i) + at);
      ForVectors(M * kNativeLanes, [&](int64_t v) {
        Store(tape.Terms(i) + at + v, LoadWide(d.first[i].spreads + at + v) * length);
      });
    }
    Differentiate(d.activation, x.v);
    x.To(tape.Slope(i) + at);
  }

  DEEPPCR_INLINE void SizeInput(int64_t r) const {
    const Wide length = Length(args.states + r * d.state_width, d.state_width);
    const float* h = hidden + r * width;
    float* size = TapeOf(r).InputSize();
    ForVectors(width, [&](int64_t at) {
      const Wide terms = LoadWide(d.input->spreads + at) * length;
      Store(size + at, Sqrt(Fma(terms, terms, Squared(LoadWide(h + at)))));
    });
  }

  // h <- h + act(first h + mu).
  DEEPPCR_INLINE void ResidualBlock(int64_t i) const {
    Product(d.first[i], nullptr, hidden, width, first, width);
    ForRows(
        [&](int64_t r) { args.tapes == nullptr ? AddBranch<false>(r, i) : AddBranch<true>(r, i); });
  }
  template <bool kTaped>
  DEEPPCR_INLINE void AddBranch(int64_t r, int64_t i) const {
    float* h = hidden + r * width;
    const float* product = first + r * width;
    const float* mu = args.rows[r].modulation + i * width;
    const Wide length = kTaped && args.sizes ? Length(h, width) : All(0.0F);
    ForChunks(width, [&]<int M>(int64_t at) {
      Chunk<M> x = Chunk<M>::Of(product + at);
      for (int v = 0; v < M; ++v) x.v[v] = x.v[v] + LoadWide(mu + at + v * kNativeLanes);
      Chunk<M> sum = x;
      Activate(d.activation, sum.v);
      for (int v = 0; v < M; ++v) sum.v[v] = LoadWide(h + at + v * kNativeLanes) + sum.v[v];
      sum.To(h + at);
      if constexpr (kTaped) TapeActivation(x, sum, length, r, i, at);
    });
  }

  // h <- h + gate (second act(first u)), u = norm(h) gain + shift.
  DEEPPCR_INLINE void AdaLnBlock(int64_t i) const {
    ForRows([&](int64_t r) { Modulate(r, i); });
    Product(d.first[i], d.first[i].bias, first, width, second, width);
    ForRows([&](int64_t r) {
      args.tapes == nullptr ? ActivateInner<false>(r, i) : ActivateInner<true>(r, i);
    });
    Product(d.second[i], d.second[i].bias, second, width, first, width);
    ForRows([&](int64_t r) { AddGated(r, i); });
  }

  // first <- norm(hidden) gain + shift of block i; i = N is the norm before the output layer.
  DEEPPCR_INLINE void Modulate(int64_t r, int64_t i) const {
    float* u = first + r * width;
    const Moments moments =
        Normalize(hidden + r * width, d.hidden_mask, d.hidden_dim, width, d.norm_epsilon, u);
    if (args.tapes != nullptr) {
      const Tape tape = TapeOf(r);
      tape.InverseDeviation(i) = moments.inverse;
      tape.RelativeMean(i) = (moments.mean < 0 ? -moments.mean : moments.mean) * moments.inverse;
      ForVectors(width, [&](int64_t at) { Store(tape.Normed(i) + at, LoadWide(u + at)); });
    }
    const float* gain = args.rows[r].modulation + 3 * i * width;
    ForVectors(width, [&](int64_t at) {
      Store(u + at, Fma(LoadWide(u + at), LoadWide(gain + at), LoadWide(gain + width + at)));
    });
  }

  template <bool kTaped>
  DEEPPCR_INLINE void ActivateInner(int64_t r, int64_t i) const {
    float* inner = second + r * width;
    const float* u = first + r * width;
    const Wide length = kTaped && args.sizes ? Length(u, width) : All(0.0F);
    ForChunks(width, [&]<int M>(int64_t at) {
      const Chunk<M> x = Chunk<M>::Of(inner + at);
      Chunk<M> value = x;
      Activate(d.activation, value.v);
      value.To(inner + at);
      if constexpr (kTaped) TapeActivation(x, value, length, r, i, at);
    });
  }

  DEEPPCR_INLINE void AddGated(int64_t r, int64_t i) const {
    float* h = hidden + r * width;
    const float* product = first + r * width;
    const float* gate = args.rows[r].modulation + (3 * i + 2) * width;
    const Wide length = args.sizes ? Length(second + r * width, width) : All(0.0F);
    ForVectors(width, [&](int64_t at) {
      const Wide g = LoadWide(gate + at), w = LoadWide(product + at);
      const Wide sum = Fma(g, w, LoadWide(h + at));
      Store(h + at, sum);
      if (!args.sizes) return;
      const Wide terms = LoadWide(d.second[i].spreads + at) * length;
      const Wide branch = Squared(g) * Fma(terms, terms, Squared(w));
      Store(TapeOf(r).OuterSize(i) + at, Sqrt(Fma(sum, sum, branch)));
    });
  }

  // z <- z_z z + z_m m + z_x0 clip(x0_z z + x0_m m) + sigma noise.
  DEEPPCR_INLINE void Finish(int64_t r, const float* features) const {
    const ReverseCoefficients& c = *args.rows[r].coefficients;
    const float* noise = args.rows[r].noise;
    float* z = args.states + r * d.state_width;
    const float* m = args.predictions + r * d.state_width;
    const Wide clip = All(d.clip_range);
    const Wide length = args.sizes ? Length(features, width) : All(0.0F);
    ForVectors(d.state_width, [&](int64_t at) {
      const Wide old = LoadWide(z + at), prediction = LoadWide(m + at);
      const Wide raw = Fma(All(c.x0_m), prediction, All(c.x0_z) * old);
      const Wide x0 = Max(Min(raw, clip), -clip);  // keeps a NaN
      Wide next = Fma(All(c.z_x0), x0, Fma(All(c.z_m), prediction, All(c.z_z) * old));
      if (noise != nullptr) next = Fma(All(c.sigma), LoadWide(noise + at), next);
      next = And(next, LoadWide(d.state_mask + at));
      Store(z + at, next);
      if (args.tapes == nullptr) return;
      // Slope of the clip: 1 on the boundary, as in PyTorch, and for a NaN, which then shows in m.
      const ReverseSlopes slopes(c);
      const Tape tape = TapeOf(r);
      Store(tape.ByState() + at, SelectGreater(Abs(raw), clip, slopes.out_z, slopes.in_z));
      Store(tape.ByPrediction() + at, SelectGreater(Abs(raw), clip, slopes.out_m, slopes.in_m));
      if (!args.sizes) return;
      const Wide terms = LoadWide(d.output->spreads + at) * length;
      const Wide of_x0 = Squared(All(c.x0_m)) * Fma(terms, terms, Squared(prediction));
      const Wide reach = ReachOf(Sqrt(of_x0 + Squared(All(c.x0_z) * old)), All(0.0F));
      const Wide from_clip = Abs(Abs(raw) - clip) - reach;
      Store(tape.FromClip() + at, from_clip);
      const Wide by_m = SelectGreater(from_clip, All(0.0F), LoadWide(tape.ByPrediction() + at),
                                      LargerOf(slopes.in_m, slopes.out_m));
      // Doubled in adaLN, where the inputs of the dot products have been rounded too.
      Wide size = Squared(by_m * terms) * All(d.ada_ln ? 2.0F : 1.0F);
      size = Fma(next, next, size);
      size = size + Squared(All(c.z_z) * old) + Squared(All(c.z_m) * prediction);
      size = size + Squared(All(c.z_x0 * c.x0_z) * old);
      size = size + Squared(All(c.z_x0 * c.x0_m) * prediction);
      Store(tape.StateSize() + at, And(Sqrt(size), LoadWide(d.state_mask + at)));
    });
  }
};

inline void Step(const StepArgs& args) { ReverseStepPass(args).Run(); }

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_DIFFUSION_REVERSE_STEP_H_
