// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_KERNELS_IMPL_H_
#define DEEPPCR_KERNELS_CPU_KERNELS_IMPL_H_

#include "kernels/cpu/simd/rounding_source.h"
#include "kernels/cpu/simd/slope_near.h"
#include "kernels/cpu/stack/advance.h"
#include "kernels/cpu/stack/dense_kernels.h"
#include "kernels/cpu/stack/outer_layers.h"
#include "kernels/cpu/stack/outer_products.h"
#include "kernels/cpu/stack/retreat.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// ---- Propagation
// ------------------------------------------------------------------------------------------------

// Walk through the steps of one interval, with the state and the slopes in between.
template <int W>
struct Walker {
  static constexpr int N = Shape<W>::kLanes, V = Shape<W>::kVectors;

  const PropagateArgs& args;
  int64_t width;
  float* tangents[2];  // [W, W] each
  float* probes[2];    // [4, W] each
  float* state[2];     // [W] each
  // Slope and pre-activation of the last step made, [W] each.
  float *slope, *pre_activation;

  explicit DEEPPCR_INLINE Walker(const PropagateArgs& a)
      : args(a), width(Width<W>(a.layers.width)) {
    float* at = a.scratch;
    for (int i = 0; i < 2; ++i) {
      tangents[i] = at;
      probes[i] = at + width * width;
      at += (width + kColumns - 1) * width;
    }
    state[0] = at;
    state[1] = at + width;
    slope = at + 2 * width;
    pre_activation = at + 3 * width;
  }

  DEEPPCR_INLINE void Primal(int64_t step, bool slopes) {
    for (int64_t first = 0; first < width; first += V * N) {
      Vec<N> x[V];
      PreActivation<W, 1>(args.layers, step, first, state[0], x);
      if (slopes) {
        Vec<N> a[V];
        for (int v = 0; v < V; ++v) a[v] = x[v];
        FinishSlopes<W, 1, StepRuleOfLayers>(args.layers, first, a, slope);
        for (int v = 0; v < V; ++v) Store(pre_activation + first + v * N, x[v]);
      }
      FinishStep<W, 1, StepRuleOfLayers>(args.layers, first, state[0], x, state[1]);
    }
    Swap(state);
  }

  // T <- J T, or J itself at the first step of the interval.
  DEEPPCR_INLINE void Tangents(int64_t step, bool first_step, float* out) {
    const LayersView& layers = args.layers;
    const float* weights = layers.weights + step * width * width;
    if (first_step) return FirstTangents(weights, out);
    const bool residual = layers.residual;
    const float* in = tangents[0];
    ApplyColumns<W>(weights, width, layers.state_dim, in, width, out, width, layers.state_dim,
                    [&](int64_t j, int64_t at, Vec<N> product) {
                      const Vec<N> s = Load<N>(slope + at);
                      return residual ? Fma(s, product, Load<N>(in + j * width + at)) : s * product;
                    });
  }

  DEEPPCR_INLINE void FirstTangents(const float* weights, float* out) {
    for (int64_t j = 0; j < args.layers.state_dim; ++j) {
      for (int64_t at = 0; at < width; at += N)
        Store(out + j * width + at, Load<N>(slope + at) * Load<N>(weights + j * width + at));
      if (args.layers.residual) out[j * width + j] += 1.0F;
    }
  }

  DEEPPCR_INLINE void Diagonal(int64_t step, float* out) {
    const float* weights = args.layers.weights + step * width * width;
    for (int64_t i = 0; i < width; ++i)
      out[i] = slope[i] * weights[i * width + i] + (args.layers.residual ? 1.0F : 0.0F);
  }

  // A power of two near the largest element of both states, so that squares of their ratios to it
  // neither overflow nor vanish whatever the unit of the states.
  DEEPPCR_INLINE float ScaleOfStates() const {
    Vec<N> largest = Broadcast<N>(0.0F);
    for (int64_t at = 0; at < width; at += N)
      largest = Max(Max(Abs(Load<N>(state[0] + at)), Abs(Load<N>(state[1] + at))), largest);
    return PowerOfTwoBelow(MaxLane(largest));
  }

  // Root of the sum of the squared terms of the pre-activations at [at, at + N), of states in units
  // of 1 / inverse, times what the length of the sum adds to its rounding. Where the slope is zero,
  // squares that overflow count for nothing.
  DEEPPCR_INLINE Vec<N> LengthOfTerms(int64_t step, int64_t at, Vec<N> inverse) {
    const float* weights = args.layers.weights + step * width * width;
    const float* before = state[1];
    const Vec<N> bias = Load<N>(args.layers.biases + step * width + at) * inverse;
    Vec<N> sum = bias * bias;
    for (int64_t k = 0; k < args.layers.state_dim; ++k) {
      const Vec<N> term = Load<N>(weights + k * width + at) * (Broadcast<N>(before[k]) * inverse);
      sum = Fma(term, term, sum);
    }
    sum = sum * Broadcast<N>(SquaredRoundingOfSum(args.layers.state_dim));
    return Sqrt(Min(sum, Broadcast<N>(kLargestFloat)));
  }

  // Slopes near the pre-activations at [at, at + N), whose terms have this size. The products with
  // the probes are in probes[1].
  DEEPPCR_INLINE SlopeRange<N> SlopesOfProbes(int64_t at, Vec<N> terms) {
    Vec<N> probe = Broadcast<N>(0.0F);
    for (int64_t j = 0; j + 1 < kColumns; ++j)
      probe = Max(Abs(Load<N>(probes[1] + j * width + at)), probe);
    const Vec<N> factor = And(Broadcast<N>(args.layers.residual ? args.layers.scale : 1.0F),
                              Load<N>(args.layers.lane_mask + at));
    return SlopesNear(args.layers.activation, factor, Load<N>(pre_activation + at),
                      Load<N>(slope + at), ReachOf(terms, probe));
  }

  // Size that the rounding of a step is proportional to, from the new state, the branch that a
  // residual step adds, and the terms of its dot products with the bias, which cancel in the state
  // but not in the rounding: sqrt(z_l^2 + (z_l - z_{l-1})^2 + slope^2 (b^2 + sum_k W_k^2
  // z_{l-1,k}^2) SquaredRoundingOfSum(D)). The loss of a product below the least normal float is a
  // part of the least float.
  DEEPPCR_INLINE Vec<N> RoundingSize(int64_t at, Vec<N> terms, Vec<N> inverse) {
    const Vec<N> z = Load<N>(state[0] + at) * inverse;
    const Vec<N> branch =
        args.layers.residual ? z - Load<N>(state[1] + at) * inverse : Broadcast<N>(0.0F);
    return Sqrt(Fma(z, z, Fma(branch, branch, terms * terms)));
  }

  // E <- J E + rounding of the last step made.
  DEEPPCR_INLINE void Probes(int64_t step) {
    const LayersView& layers = args.layers;
    const float* weights = layers.weights + step * width * width;
    const float* in = probes[0];
    float* const out = probes[1];
    ApplyColumns<W>(weights, width, layers.state_dim, in, width, out, width, kColumns - 1,
                    [](int64_t, int64_t, Vec<N> product) { return product; });
    const int64_t draw = DrawOfSigns(step, args.draw, layers.num_steps);
    const float unit = ScaleOfStates();
    const Vec<N> scale = Broadcast<N>(unit), inverse = Broadcast<N>(1.0F / unit);
    for (int64_t at = 0; at < width; at += N) {
      const Vec<N> length = LengthOfTerms(step, at, inverse);
      const SlopeRange<N> slopes = SlopesOfProbes(at, length * scale);
      const Vec<N> size = RoundingSize(at, slopes.Largest() * length, inverse) * scale;
      for (int64_t j = 0; j + 1 < kColumns; ++j) {
        const Vec<N> beside = layers.residual ? Load<N>(in + j * width + at) : Broadcast<N>(0.0F);
        const Vec<N> source = RoundingSource(size, layers.probe_seeds + j * width + at, draw);
        Store(out + j * width + at, slopes.Carry(Load<N>(out + j * width + at), beside) + source);
      }
    }
    Swap(probes);
  }

  static DEEPPCR_INLINE void Swap(float* (&pair)[2]) {
    float* first = pair[0];
    pair[0] = pair[1];
    pair[1] = first;
  }

  DEEPPCR_INLINE void CopyRows(const float* from, float* to, int64_t rows) {
    for (int64_t i = 0; i < rows * width; i += N) Store(to + i, Load<N>(from + i));
  }

  DEEPPCR_INLINE void Clear(float* to, int64_t rows) {
    for (int64_t i = 0; i < rows * width; i += N) Store(to + i, Broadcast<N>(0.0F));
  }

  // Makes all steps of interval p and returns their number.
  DEEPPCR_INLINE int64_t Interval(int64_t p) {
    const LayersView& layers = args.layers;
    const int64_t begin = p * args.interval;
    const int64_t end =
        begin + args.interval < layers.num_steps ? begin + args.interval : layers.num_steps;
    // d_0 = 0, so the first interval's matrix is never used.
    const bool dense = args.jacobians != nullptr && !args.diagonal && p > 0;
    const bool diagonal = args.jacobians != nullptr && args.diagonal;
    const float* entry = args.states + p * kColumns * width;
    CopyRows(entry, state[0], 1);
    if (args.probes) Clear(probes[0], kColumns - 1);
    int64_t stages = 0;
    for (int64_t l = begin; l < end; ++l, ++stages) {
      Primal(l, dense || diagonal || args.probes);
      if (dense) {
        float* out = l + 1 == end ? args.jacobians + p * width * width : tangents[1];
        Tangents(l, l == begin, out);
        Swap(tangents);
      }
      if (diagonal) Diagonal(l, args.jacobians + p * width);
      if (args.probes) Probes(l);
    }
    float* result = args.propagated + p * kColumns * width;
    CopyRows(state[0], result, 1);
    if (args.probes) CopyRows(probes[0], result + width, kColumns - 1);
    return stages;
  }
};

template <int W>
int64_t Propagate(const PropagateArgs& args) {
  Walker<W> walker(args);
  int64_t stages = 0;
  for (int64_t p = args.first_interval; p < args.end_interval; ++p) {
    const int64_t steps = walker.Interval(p);
    stages = steps > stages ? steps : stages;
  }
  return stages;
}

// ---- Affine maps
// ------------------------------------------------------------------------------------------------

template <int W>
void Apply(const ApplyArgs& a) {
  constexpr int N = Shape<W>::kLanes;
  const int64_t width = Width<W>(a.width);
  const auto add_base = [&](int64_t j, int64_t at, Vec<N> product) {
    return a.base == nullptr ? product : Load<N>(a.base + j * a.base_stride + at) + product;
  };
  if (a.matrix != nullptr && !a.diagonal) {
    ApplyColumns<W>(a.matrix, width, a.inner, a.in, a.in_stride, a.out, a.out_stride, a.count,
                    add_base);
    return;
  }
  for (int64_t j = 0; j < a.count; ++j)
    for (int64_t at = 0; at < width; at += N) {
      Vec<N> x = Load<N>(a.in + j * a.in_stride + at);
      if (a.diagonal) x = Load<N>(a.matrix + at) * x;
      Store(a.out + j * a.out_stride + at, add_base(j, at, x));
    }
}

// ---- Update
// -----------------------------------------------------------------------------------------------------

// Last part of the update of one interval, once F + A d is there: its states, balls and norms.
template <int N>
struct Settler {
  const UpdateArgs& args;
  float* y;           // [kColumns, W]
  const float* next;  // [kColumns, W]
  const Vec<N> zero = Broadcast<N>(0.0F);
  Vec<N> state = zero, update = zero, probe = zero, share = zero;
  bool finite = true, probes_finite = true;

  DEEPPCR_INLINE void Run() {
    for (int64_t at = 0; at < args.width; at += N) args.confirms ? Return(at) : Take(at);
  }

  // Takes the new state, its update, and after an update with probes the ball of its error.
  DEEPPCR_INLINE void Take(int64_t at) {
    const Vec<N> z = Load<N>(next + at);
    const Vec<N> correction = z - Load<N>(y + at), moved = Abs(correction);
    Note(z, moved);
    if (args.probes) {
      const Vec<N> rho = LargestProbe(at);
      Store(y + kRoundingColumn * args.width + at, rho);
      const Vec<N> last = Abs(Load<N>(y + kUpdateColumn * args.width + at));
      const Vec<N> foretold = Max(last * Broadcast<N>(0.25F), Abs(z) * Broadcast<N>(0x1p-15F));
      const Vec<N> least = SelectGreater(moved, zero, Broadcast<N>(kLeastNormal), zero);
      const Vec<N> ball = Max(Max(foretold, rho * Broadcast<N>(8 * kRoundingFactor)), least);
      NoteShare(Fma(rho, Broadcast<N>(kRoundingFactor), moved), ball);
      Store(y + kBallColumn * args.width + at, Along(correction, ball));
    }
    Store(y + at, z);
    Store(y + kUpdateColumn * args.width + at, correction);
  }

  // Puts back the state that the tried state replaced, and notes how near the map has come to it.
  DEEPPCR_INLINE void Return(int64_t at) {
    const Vec<N> kept = Load<N>(y + kKeptColumn * args.width + at);
    const Vec<N> way = Load<N>(next + at) - kept, back = Abs(way);
    float* const ball = y + kBallColumn * args.width + at;
    Note(kept, back);
    NoteShare(back, Abs(Load<N>(ball)));
    Store(ball, Along(way, Load<N>(ball)));
    Store(y + kUpdateColumn * args.width + at, way);
    Store(y + at, kept);
  }
  // Along of kernels/iteration/pass.h.
  static DEEPPCR_INLINE Vec<N> Along(Vec<N> way, Vec<N> ball) {
    const Vec<N> zero = Broadcast<N>(0.0F), size = Abs(ball);
    return SelectGreater(way, zero, size, SelectGreater(zero, way, zero - size, ball));
  }

  DEEPPCR_INLINE Vec<N> LargestProbe(int64_t at) {
    Vec<N> rho = args.more_probes ? Load<N>(y + kRoundingColumn * args.width + at) : zero;
    for (int64_t j = 1; j < kColumns; ++j) {
      const Vec<N> e = Load<N>(next + j * args.width + at);
      probes_finite = probes_finite && !AnyNonFinite(e);
      rho = Max(Abs(e), rho);
    }
    probe = Max(rho, probe);
    return rho;
  }
  DEEPPCR_INLINE void Note(Vec<N> z, Vec<N> moved) {
    update = Max(moved, update);
    state = Max(Abs(z), state);
    finite = finite && !AnyNonFinite(z) && !(args.confirms && AnyNonFinite(moved));
  }
  // ShareOfBall of kernels/iteration/pass.h.
  DEEPPCR_INLINE void NoteShare(Vec<N> error, Vec<N> ball) {
    share = Max(SelectGreater(error, Broadcast<N>(kLeastNormal), error / ball, zero), share);
  }

  DEEPPCR_INLINE void AddTo(IntervalNorms* norms) const {
    const double scale = static_cast<double>(MaxLane(state)) + args.floor;
    // A maximum may lose a NaN, and a lost NaN would pass for a probe that has picked up nothing.
    const double d = MaxLane(update);
    const double e = probes_finite ? MaxLane(probe) : __builtin_inf();
    norms->finite = norms->finite && finite;
    norms->share = Larger(norms->share, MaxLane(share));
    if (d == 0.0 && e == 0.0) return;
    norms->update = Larger(norms->update, d / scale);
    norms->rounding = Larger(norms->rounding, e / scale);
    norms->combined = Larger(norms->combined, ErrorBound(d, e) / scale);
  }
  static DEEPPCR_INLINE double Larger(double a, double b) { return b > a ? b : a; }
};

// F + A d of interval p, in place of F.
template <int W>
DEEPPCR_INLINE void CorrectInterval(const UpdateArgs& a, int64_t p) {
  constexpr int N = Shape<W>::kLanes;
  const int64_t width = Width<W>(a.width);
  const int64_t row = kColumns * width;
  if (p == 0 || a.prefix == nullptr) return;
  float* to = a.propagated + p * row;
  const float* prefix = a.prefix + p * row;
  const int64_t columns = a.probes ? kColumns : 1;
  // F + 0 would turn -0 into +0: where the correction is zero the bits stay.
  const auto add = [&](int64_t j, int64_t at, Vec<N> correction) {
    const Vec<N> base = Load<N>(to + j * width + at);
    return SelectEqual(correction, Broadcast<N>(0.0F), base, base + correction);
  };
  if (a.jacobians != nullptr && !a.diagonal) {
    ApplyColumns<W>(a.jacobians + p * width * width, width, a.inner, prefix, width, to, width,
                    columns, add);
    return;
  }
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t at = 0; at < width; at += N) {
      Vec<N> correction = Load<N>(prefix + j * width + at);
      if (a.diagonal) correction = Load<N>(a.jacobians + p * width + at) * correction;
      Store(to + j * width + at, add(j, at, correction));
    }
}

template <int W>
IntervalNorms Update(const UpdateArgs& a) {
  constexpr int N = Shape<W>::kLanes;
  const int64_t row = kColumns * Width<W>(a.width);
  IntervalNorms norms = {0, 0, 0, 0, true};
  for (int64_t p = 0; p < a.num_intervals; ++p) {
    CorrectInterval<W>(a, p);
    Settler<N> settler{a, a.states + (p + 1) * row, a.propagated + p * row};
    settler.Run();
    settler.AddTo(&norms);
  }
  return norms;
}

inline void ActivateArray(Activation activation, float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += 4) {
    Vec<4> v[1] = {Load<4>(x + i)};
    Activate(activation, v);
    Store(x + i, v[0]);
  }
}

inline void DifferentiateArray(Activation activation, float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += 4) {
    Vec<4> v[1] = {Load<4>(x + i)};
    Differentiate(activation, v);
    Store(x + i, v[0]);
  }
}

// Four sums of four lanes each, in one order for every width.
inline void DotsOfColumns(const float* matrix, int64_t width, int64_t count, const float* x,
                          float* out) {
  for (int64_t k = 0; k < count; ++k) {
    const float* column = matrix + k * width;
    Vec<4> sum[4] = {};
    for (int64_t i = 0; i < width; i += 4)
      sum[i / 4 % 4] = Fma(Load<4>(column + i), Load<4>(x + i), sum[i / 4 % 4]);
    const Vec<4> all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    out[k] = (all.v[0] + all.v[1]) + (all.v[2] + all.v[3]);
  }
}

// ---- Table
// ------------------------------------------------------------------------------------------------------

template <int W>
inline constexpr Kernels kTable = {&Advance<W>,         &Propagate<W>,     &Apply<W>,
                                   &Update<W>,          &ActivateArray,    &Retreat<W>,
                                   &DifferentiateArray, &AddOuters,        &SumColumns,
                                   &DotsOfColumns,      kPaddedSamples<W>, kMostTogether<W>};

inline Kernels TableFor(int64_t width) {
  switch (width) {
    case 4:
      return kTable<4>;
    case 8:
      return kTable<8>;
    case 16:
      return kTable<16>;
    case 32:
      return kTable<32>;
    case 64:
      return kTable<64>;
    default:
      return kTable<0>;
  }
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_KERNELS_IMPL_H_
