// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_KERNELS_IMPL_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_KERNELS_IMPL_H_

#include "kernels/cpu/program/along.h"
#include "kernels/cpu/program/elementwise.h"
#include "kernels/cpu/program/layer_branch.h"
#include "kernels/cpu/program/panel_gemm.h"
#include "kernels/cpu/simd/normals.h"
#include "kernels/cpu/simd/rounding_source.h"
#include "kernels/cpu/simd/slope_near.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// Sizes of rounding errors, in units of 2^-24, are root mean squares of independent parts. A dot
// product counts with |w| |x| / sqrt(n), the root of the expected sum of its squared terms, which
// costs no second product.

// |x| over a row with its padding; spreads are |w| / sqrt(n).
DEEPPCR_INLINE Wide LengthOf(const float* x, int64_t n) { return All(SquareRoot(DotOf(x, x, n))); }

inline void ProductSize(const PanelView& layer, const float* in, int64_t in_n, const float* out,
                        float* size) {
  const Wide length = LengthOf(in, in_n) * All(RoundingOfLongSum(layer.cols));
  const Wide drift = All(RoundingOfDrift(layer.cols));
  ForVectors(layer.width, [&](int64_t at) {
    const Wide terms = LoadWide(layer.spreads + at) * length, y = LoadWide(out + at) * drift;
    Store(size + at, Sqrt(Fma(terms, terms, y * y)));
  });
}

inline void ScaledSize(float factor, const float* y, float* size, int64_t n) {
  ForVectors(n, [&](int64_t at) { Store(size + at, All(factor) * Abs(LoadWide(y + at))); });
}

inline void LargerSize(const float* from, float* size, int64_t n) {
  ForVectors(n,
             [&](int64_t at) { Store(size + at, Max(LoadWide(from + at), LoadWide(size + at))); });
}

// A slope and what it moves, with zeros for both where either is zero: MovedBy of
// kernels/program/op.h. Only what is not finite would tell, so products are looked at first.
DEEPPCR_INLINE void StandStill(Wide* slope, Wide* x) {
  const Wide zero = All(0.0F);
  *x = SelectEqual(*slope, zero, zero, *x);
  *slope = SelectEqual(*x, zero, zero, *slope);
}

// The sum over operands [0, K) of slope times tangent.
template <int K>
DEEPPCR_INLINE void CarryOf(const float* const* slopes, const float* const* tangents, float* out,
                            int64_t columns, int64_t n) {
  for (int64_t j = 0; j < columns; ++j) {
    ForVectors(n, [&](int64_t at) {
      const auto carry = [&](bool some_stand_still) {
        Wide sum = All(0.0F);
        for (int k = 0; k < K; ++k) {
          Wide t = LoadWide(tangents[k] + j * n + at);
          if (slopes[k] == nullptr) {
            sum = k == 0 ? t : sum + t;
          } else {
            Wide s = LoadWide(slopes[k] + at);
            if (some_stand_still) StandStill(&s, &t);
            sum = k == 0 ? s * t : Fma(s, t, sum);
          }
        }
        return sum;
      };
      const Wide carried = carry(false);
      Store(out + j * n + at, AnyNonFinite(carried) ? carry(true) : carried);
    });
  }
}

inline void Carry(const CarryArgs& a) {
  const float *slopes[kMostOperands] = {}, *tangents[kMostOperands] = {};
  int count = 0;
  for (int k = 0; k < kMostOperands; ++k) {
    if (a.tangents[k] == nullptr) continue;
    slopes[count] = a.slopes[k];
    tangents[count++] = a.tangents[k];
  }
  if (count == 1) return CarryOf<1>(slopes, tangents, a.out, a.columns, a.n);
  if (count == 2) return CarryOf<2>(slopes, tangents, a.out, a.columns, a.n);
  return CarryOf<3>(slopes, tangents, a.out, a.columns, a.n);
}

inline void Give(const GiveArgs& a) {
  for (int64_t j = 0; j < a.columns; ++j) {
    const float* g = a.g + j * a.n;
    float* to = a.to + j * a.n;
    ForVectors(a.n, [&](int64_t at) {
      Wide given = LoadWide(g + at);
      if (a.slope != nullptr) {
        Wide slope = LoadWide(a.slope + at), x = given;
        given = slope * x;
        if (AnyNonFinite(given)) {
          StandStill(&slope, &x);
          given = slope * x;
        }
      }
      Store(to + at, a.adds ? LoadWide(to + at) + given : given);
    });
  }
}

// The largest of `count` probes at an offset.
DEEPPCR_INLINE Wide LargestProbe(const float* probes, int64_t count, int64_t n, int64_t at) {
  Wide largest = All(0.0F);
  for (int64_t v = 0; v < count; ++v) largest = Max(Abs(LoadWide(probes + v * n + at)), largest);
  return largest;
}

inline void Near(const NearArgs& a) {
  ForVectors(a.n, [&](int64_t at) {
    const Wide x = LoadWide(a.a + at);
    const Wide reach = ReachOf(LoadWide(a.size + at), LargestProbe(a.probes, a.count, a.n, at));
    Store(a.below + at, x - Max(Min(x, reach), All(0.0F) - reach));
    Store(a.above + at, x + reach);
  });
}

inline void Spread(const SpreadArgs& a) {
  ForVectors(a.n, [&](int64_t at) {
    const Wide first = LoadWide(a.slopes[0] + at), second = LoadWide(a.slopes[1] + at);
    const Wide third = LoadWide(a.slopes[2] + at);
    const SlopeRange<kNativeLanes> range = {Min(Min(first, second), third),
                                            Max(Max(first, second), third)};
    for (int64_t v = 0; v < a.count; ++v) {
      const Wide zero = All(0.0F), probe = LoadWide(a.probes + v * a.n + at);
      Store(a.out + v * a.n + at, SelectEqual(probe, zero, zero, range.Carry(probe, zero)));
    }
  });
}

inline void Either(const EitherArgs& a) {
  const auto probe = [&](int k, int64_t v, int64_t at) {
    return a.probes[k] == nullptr ? All(0.0F) : LoadWide(a.probes[k] + v * a.n + at);
  };
  const auto reach = [&](int k, int64_t at) {
    if (a.probes[k] == nullptr || a.sizes[k] == nullptr) return All(0.0F);
    return ReachOf(LoadWide(a.sizes[k] + at), LargestProbe(a.probes[k], a.count, a.n, at));
  };
  ForVectors(a.n, [&](int64_t at) {
    const Wide apart = Abs(LoadWide(a.a[0] + at) - LoadWide(a.a[1] + at));
    const Wide near = reach(0, at) + reach(1, at);
    Wide between = All(0.0F);
    for (int64_t v = 0; v < a.count; ++v)
      between = Max(Abs(probe(0, v, at) - probe(1, v, at)), between);
    for (int64_t v = 0; v < a.count; ++v) {
      const Wide first = probe(0, v, at), second = probe(1, v, at);
      const Wide plain =
          Fma(LoadWide(a.slopes[0] + at), first, LoadWide(a.slopes[1] + at) * second);
      // From 3/4 to 5/4 of the difference off the middle; two probes after each other differ in the
      // side, so that the larger of the two operands' is always met.
      const Wide off = All(v % 2 == 0 ? 0x1p24F : -0x1p24F) *
                       RoundingSource(between, a.seeds + v / 2 * 2 * a.n + at, a.salt);
      const Wide beyond = Fma(All(0.5F), first, Fma(All(0.5F), second, off));
      Store(a.out + v * a.n + at, SelectGreater(apart, near, plain, beyond));
    }
  });
}

inline void Source(const SourceArgs& a) {
  for (int64_t v = 0; v < a.count; ++v) {
    float* t = a.probes + v * a.n;
    const uint32_t* seeds = a.seeds + v * a.n;
    ForVectors(a.n, [&](int64_t at) {
      const Wide size = LoadWide(a.size + at);
      Wide rounding = RoundingSource(size, seeds + (a.alike ? 0 : at), a.salt);
      if (a.alike) {
        // The first lane's share of the size, and its sign, for all.
        rounding = All(RoundingSource(All(1.0F), seeds, a.salt).v[0]) * size;
      }
      Store(t + at, LoadWide(t + at) + rounding);
    });
  }
}

inline void Reverse(const ReverseArgs& a) {
  const ReverseCoefficients& c = *a.coefficients;
  const Wide clip = All(a.clip_range);
  ForVectors(a.n, [&](int64_t at) {
    const Wide old = LoadWide(a.state + at), prediction = LoadWide(a.prediction + at);
    const Wide raw = Fma(All(c.x0_m), prediction, All(c.x0_z) * old);
    const Wide x0 = Max(Min(raw, clip), -clip);  // keeps a NaN
    Wide next = Fma(All(c.z_x0), x0, Fma(All(c.z_m), prediction, All(c.z_z) * old));
    if (a.noise != nullptr) {
      next = Fma(All(c.sigma), LoadWide(a.noise + at), next);
      // Of the next step, which lies behind this one's: the layers in between push it out.
      __builtin_prefetch(a.noise + a.n + at);
    }
    Store(a.next + at, next);
  });
}

DEEPPCR_INLINE Wide Square(Wide a) { return a * a; }

// dz'/dz without the network, and dz'/dm, where x0 is within its clip (in) and beyond it (out).
struct ReverseSlopes {
  Wide out_z, out_m, in_z, in_m;

  explicit DEEPPCR_INLINE ReverseSlopes(const ReverseCoefficients& c)
      : out_z(All(c.z_z)),
        out_m(All(c.z_m)),
        in_z(Fma(All(c.z_x0), All(c.x0_z), out_z)),
        in_m(Fma(All(c.z_x0), All(c.x0_m), out_m)) {}
};

// The slope of the clip is 1 on the boundary, as in PyTorch, and for a NaN, which then shows in m.
inline void ReverseTangent(const ReverseTangentArgs& a) {
  const ReverseCoefficients& c = *a.coefficients;
  const Wide clip = All(a.clip_range);
  const ReverseSlopes slopes(c);
  ForVectors(a.n, [&](int64_t at) {
    const Wide old = LoadWide(a.state + at), m = LoadWide(a.prediction + at);
    const Wide raw = Fma(All(c.x0_m), m, All(c.x0_z) * old);
    const Wide by_z = SelectGreater(Abs(raw), clip, slopes.out_z, slopes.in_z);
    const Wide by_m = SelectGreater(Abs(raw), clip, slopes.out_m, slopes.in_m);
    Wide from_clip = All(0.0F);
    if (a.size != nullptr) {
      const Wide terms = LoadWide(a.prediction_size + at);
      const Wide of_x0 = Square(All(c.x0_m) * terms) + Square(All(c.x0_z) * old);
      from_clip = Abs(Abs(raw) - clip) - ReachOf(Sqrt(of_x0), All(0.0F));
      const Wide next = LoadWide(a.next + at);
      Wide size = Fma(next, next, Square(All(c.z_z) * old)) + Square(All(c.z_m) * m);
      size = size + Square(All(c.z_x0 * c.x0_z) * old) + Square(All(c.z_x0 * c.x0_m) * m);
      Store(a.size + at, Sqrt(size));
    }
    for (int64_t j = 0; j < a.columns; ++j) {
      const Wide z = LoadWide(a.of_state + j * a.n + at);
      const Wide p = LoadWide(a.of_prediction + j * a.n + at);
      Wide next = Fma(by_m, p, by_z * z);
      if (AnyNonFinite(next)) {
        Wide slope = by_m, moved = p;
        StandStill(&slope, &moved);
        next = Fma(slope, moved, by_z * z);
      }
      if (j < a.probes) {
        // Within `reach` of the clip, a probe may meet both sides.
        const Wide reach = ReachOf(All(0.0F), Abs(Fma(All(c.x0_m), p, All(c.x0_z) * z)));
        const Wide either =
            LargerOf(Fma(slopes.in_m, p, slopes.in_z * z), Fma(slopes.out_m, p, slopes.out_z * z));
        next = SelectGreater(from_clip, reach, next, either);
      }
      Store(a.results + j * a.n + at, next);
    }
  });
}

inline void SlopesOfReverse(const ReverseSlopeArgs& a) {
  const ReverseCoefficients& c = *a.coefficients;
  const Wide clip = All(a.clip_range);
  const ReverseSlopes slopes(c);
  ForVectors(a.n, [&](int64_t at) {
    const Wide raw =
        Fma(All(c.x0_m), LoadWide(a.prediction + at), All(c.x0_z) * LoadWide(a.state + at));
    Store(a.by_state + at, SelectGreater(Abs(raw), clip, slopes.out_z, slopes.in_z));
    Store(a.by_prediction + at, SelectGreater(Abs(raw), clip, slopes.out_m, slopes.in_m));
  });
}

inline ProgramKernels ProgramTable() {
  ProgramKernels table = {};
  FillElementwise(&table);
  FillLayerBranches(&table);
  table.sine_cosine = &SinesAndCosines;
  table.scale = &Scale;
  table.gemm = &SharedGemm;
  table.scaled_size = &ScaledSize;
  table.larger_size = &LargerSize;
  table.product_size = &ProductSize;
  table.carry = &Carry;
  table.give = &Give;
  table.near = &Near;
  table.spread = &Spread;
  table.either = &Either;
  table.source = &Source;
  table.along = &Along;
  table.along_tangent = &AlongTangent;
  table.reverse = &Reverse;
  table.reverse_tangent = &ReverseTangent;
  table.reverse_slopes = &SlopesOfReverse;
  table.normals = &Normals;
  return table;
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_KERNELS_IMPL_H_
