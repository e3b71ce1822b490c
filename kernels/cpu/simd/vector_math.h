// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_SIMD_VECTOR_MATH_H_
#define DEEPPCR_KERNELS_CPU_SIMD_VECTOR_MATH_H_

// Elementary functions on vectors. Activations made of them are within 5 units in the last place of
// the exact value wherever that is at least the least normal float, tails included; gelu_tanh alone
// is not below about -2, where its argument of up to 88, rounded three times, becomes an exponent
// (214 ulp at -10.04, value 5e-38). tests/kernels/cpu/simd/activation_sweep_test.cc holds all
// 2^32 floats to that (DEEPPCR_TEST_BLOCKS=all). Infinite arguments give the limits; a NaN stays a
// NaN. Coefficients without a source are least-squares minimax fits, made in double and weighted
// for relative error.

#include "kernels/cpu/simd/simd.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// Horner's rule; the coefficients run from the highest power down.
template <int N>
DEEPPCR_INLINE Vec<N> PolynomialTail(Vec<N>, Vec<N> sum) {
  return sum;
}
template <int N, class... Rest>
DEEPPCR_INLINE Vec<N> PolynomialTail(Vec<N> x, Vec<N> sum, float next, Rest... rest) {
  return PolynomialTail(x, Fma(sum, x, Broadcast<N>(next)), rest...);
}
template <int N, class... Rest>
DEEPPCR_INLINE Vec<N> Polynomial(Vec<N> x, float leading, float next, Rest... rest) {
  return PolynomialTail(x, Broadcast<N>(leading), next, rest...);
}

// 2^n for integers -126 <= n <= 127.
template <int N>
DEEPPCR_INLINE Vec<N> PowerOfTwo(typename Vec<N>::Int n) {
  return Vec<N>::FromBits(reinterpret_cast<typename Vec<N>::Bits>((n + 127) << 23));
}

// x = n ln 2 + r with integer n and |r| <= 0.35: the reduction behind the exponentials. The sum
// with kShift, 1.5 * 2^23, rounds to the nearest integer and leaves it in the low bits.
inline constexpr float kShift = 12582912.0F;
template <int N>
struct Reduced {
  Vec<N> r, whole, shifted;  // r, n, n + kShift

  DEEPPCR_INLINE typename Vec<N>::Int n() const {
    return reinterpret_cast<typename Vec<N>::Int>(shifted.bits() - Broadcast<N>(kShift).bits());
  }
};

template <int N>
DEEPPCR_INLINE Reduced<N> ReduceByLog2(Vec<N> x) {
  const Vec<N> magic = Broadcast<N>(kShift);
  const Vec<N> shifted = Fma(x, Broadcast<N>(1.44269504F), magic);
  const Vec<N> n = shifted - magic;
  // ln 2 in two parts, the first with trailing zeros so that the product is exact.
  const Vec<N> r =
      FmaNegative(n, Broadcast<N>(-2.12194440e-4F), FmaNegative(n, Broadcast<N>(0.693359375F), x));
  return {r, n, shifted};
}

// (e^r - 1 - r) / r^2 for |r| <= 0.35 (Cephes, expf).
template <int N>
DEEPPCR_INLINE Vec<N> ExpRemainder(Vec<N> r) {
  return Polynomial(r, 1.9875691500e-4F, 1.3981999507e-3F, 8.3334519073e-3F, 4.1665795894e-2F,
                    1.6666665459e-1F, 5.0000001201e-1F);
}

// e^r for |r| <= 0.35.
template <int N>
DEEPPCR_INLINE Vec<N> MantissaOfExp(Vec<N> r) {
  return Fma(r * r, ExpRemainder(r), r) + Broadcast<N>(1.0F);
}

// e^x = head * tail for -120 <= x <= 89: two factors, because 2^n alone leaves the range before e^x
// does. The head is a normal number, so that another factor can be multiplied in before the product
// underflows.
template <int N>
struct ExpFactors {
  Vec<N> head, tail;
};

template <int N>
DEEPPCR_INLINE ExpFactors<N> FactorExp(Vec<N> x) {
  const Reduced<N> reduced = ReduceByLog2(x);
  const Vec<N> mantissa = MantissaOfExp(reduced.r);
  const typename Vec<N>::Int n = reduced.n(), half = n >> 1;
  return {mantissa * PowerOfTwo<N>(half), PowerOfTwo<N>(n - half)};
}

// mantissa * 2^n, by one instruction or by two factors, with the same bits.
template <int N>
DEEPPCR_INLINE Vec<N> TimesPowerOfTwo(Vec<N> mantissa, const Reduced<N>& reduced) {
#if defined(__AVX512F__)
  if constexpr (N == 16) return {_mm512_maskz_scalef_ps(0xFFFF, mantissa.v, reduced.whole.v)};
#endif
  const typename Vec<N>::Int n = reduced.n(), half = n >> 1;
  return mantissa * PowerOfTwo<N>(half) * PowerOfTwo<N>(n - half);
}

// The product of the factors.
template <int N>
DEEPPCR_INLINE Vec<N> BoundedExp(Vec<N> x) {
  const Reduced<N> reduced = ReduceByLog2(x);
  return TimesPowerOfTwo(MantissaOfExp(reduced.r), reduced);
}

// e^x, with gradual underflow and overflow to infinity.
template <int N>
DEEPPCR_INLINE Vec<N> Exp(Vec<N> x) {
  return BoundedExp(Min(Max(x, Broadcast<N>(-120.0F)), Broadcast<N>(89.0F)));
}

// e^-x for |x| <= kMostNear, in fewer instructions than Exp: x = r - n ln 2, the polynomial is e^-r
// within 4.4e-9, and n is added to its exponent, as the result is a normal number; the bits of
// kShift itself are shifted out. Of a NaN any float. The reduction is that of ReduceByLog2 with the
// signs turned: silu by ReduceByLog2(-x) has the same bits and takes 2.7 ns a vector for 2.1.
inline constexpr float kMostNear = 64.0F;
template <int N>
DEEPPCR_INLINE Vec<N> InverseExp(Vec<N> x) {
  const Vec<N> magic = Broadcast<N>(kShift);
  const Vec<N> shifted = Fma(x, Broadcast<N>(-1.44269504F), magic);
  const Vec<N> n = shifted - magic;
  const Vec<N> r = Fma(n, Broadcast<N>(-2.12194440e-4F), Fma(n, Broadcast<N>(0.693359375F), x));
  const Vec<N> mantissa = Polynomial(r, 1.36715977e-3F, -8.36910401e-3F, 4.16710153e-2F,
                                     -1.66665167e-1F, 4.99999821e-1F, -1.0F, 1.0F);
  return Vec<N>::FromBits(mantissa.bits() + (shifted.bits() << 23));
}

// e^x - 1 for x <= 0, without cancellation near 0.
template <int N>
DEEPPCR_INLINE Vec<N> ExpMinusOneOfNegative(Vec<N> x) {
  const Reduced<N> reduced = ReduceByLog2(Max(x, Broadcast<N>(-80.0F)));
  const Vec<N> r = reduced.r;
  const Vec<N> scale = PowerOfTwo<N>(reduced.n());
  return Fma(Fma(r * r, ExpRemainder(r), r), scale, scale - Broadcast<N>(1.0F));
}

// log(1 + u) for 0 <= u <= 1, as 2 atanh(u / (2 + u)).
template <int N>
DEEPPCR_INLINE Vec<N> LogOnePlusUnit(Vec<N> u) {
  const Vec<N> s = u / (u + Broadcast<N>(2.0F));
  const Vec<N> s2 = s * s;
  const Vec<N> series = Polynomial(s2, 0.133333333F, 0.153846154F, 0.181818182F, 0.222222222F,
                                   0.285714286F, 0.4F, 0.666666667F);
  return Fma(s * s2, series, s + s);
}

// g^4 = 2 e^(2a) for a >= 0.7, so that 1 - 4 / (2 + g^4) is tanh(a); error of the fit 1.3e-7, and
// 1e-8 near 0.7. All coefficients are positive: every operation from here to the difference is
// monotone in a, whatever its rounding does.
template <int N>
DEEPPCR_INLINE Vec<N> RootOfExp(Vec<N> a, Vec<N> a2) {
  const Vec<N> g01 = Fma(a, Broadcast<N>(5.93871474e-1F), Broadcast<N>(1.18934917F));
  const Vec<N> g23 = Fma(a, Broadcast<N>(2.31448114e-2F), Broadcast<N>(1.50169954e-1F));
  const Vec<N> g46 = Fma(a2, Broadcast<N>(7.28965388e-5F), Broadcast<N>(4.06290637e-3F));
  return Fma(a2 * a2, g46, Fma(a2, g23, g01));
}

// tanh, within 3.97 ulp (3.77 with AVX2) of the exact value, within [-1, 1] and monotone over all
// floats. Below 0.7 the series moves by less than its argument does, so that the last addition
// keeps the order. Tanh is on the dependent path of every step: polynomials are evaluated pairwise
// (Estrin), and the series is ready before the quotient is.
template <int N>
DEEPPCR_INLINE Vec<N> Tanh(Vec<N> x) {
  const Vec<N> a = Abs(x), a2 = x * x;
  const Vec<N> g = RootOfExp(a, a2), g2 = g * g;
  const Vec<N> large = Broadcast<N>(1.0F) - Broadcast<N>(4.0F) / Fma(g2, g2, Broadcast<N>(2.0F));
  const Vec<N> series = Polynomial(a2, -5.13120135e-3F, 2.00839173e-2F, -5.35559021e-2F,
                                   1.33290693e-1F, -3.33331883e-1F);
  const Vec<N> small = Fma(a * a2, series, a);
  return WithSignOf(x, SelectGreater(Broadcast<N>(0.7F), a, small, large));
}

// 1 / (1 + e^-x), as e^x / (1 + e^x) for x <= 0: e^-x would overflow where the value is still
// representable.
template <int N>
DEEPPCR_INLINE Vec<N> Sigmoid(Vec<N> x) {
  const Vec<N> one = Broadcast<N>(1.0F);
  const Vec<N> e = Exp(-Abs(x));
  return SelectGreater(x, Broadcast<N>(0.0F), one, e) / (one + e);
}

// x / (1 + e^-y) for |y| <= kMostNear.
template <int N>
DEEPPCR_INLINE Vec<N> TimesSigmoidNear(Vec<N> x, Vec<N> y) {
  return x / (Broadcast<N>(1.0F) + InverseExp(y));
}

// The same with the same bits for any y of the sign of x. Below -kMostNear it is x e^y, and where
// e^y underflows x is bounded, so that -infinity gives the limit 0.
template <int N>
DEEPPCR_INLINE Vec<N> TimesSigmoid(Vec<N> x, Vec<N> y) {
  const Vec<N> most = Broadcast<N>(kMostNear), lowest = Broadcast<N>(-120.0F);
  const ExpFactors<N> e = FactorExp(Min(Max(y, lowest), -most));
  const Vec<N> far = Max(x, lowest) * e.head * e.tail;
  return SelectGreater(-most, y, far, TimesSigmoidNear(x, Min(Max(y, -most), most)));
}

// The sigmoid s and s (1 - s), its derivative, without the cancellation of 1 - s.
template <int N>
struct SigmoidSlope {
  Vec<N> value, slope;
};

template <int N>
DEEPPCR_INLINE SigmoidSlope<N> SigmoidWithSlope(Vec<N> x) {
  const Vec<N> one = Broadcast<N>(1.0F);
  const Vec<N> e = Exp(-Abs(x));
  const Vec<N> upper = one / (one + e);
  const Vec<N> lower = e * upper;
  return {SelectGreater(x, Broadcast<N>(0.0F), upper, lower), lower * upper};
}

// The derivative of tanh, without the cancellation of 1 - tanh^2.
template <int N>
DEEPPCR_INLINE Vec<N> TanhSlope(Vec<N> x) {
  return Broadcast<N>(4.0F) * SigmoidWithSlope(x + x).slope;
}

// log(1 + e^x).
template <int N>
DEEPPCR_INLINE Vec<N> Softplus(Vec<N> x) {
  const Vec<N> zero = Broadcast<N>(0.0F);
  return Max(x, zero) + LogOnePlusUnit(Exp(-Abs(x)));
}

// e^(-x^2 / 2) for |x| <= 15.49 with its relative accuracy kept in the tail: what the square lost
// by rounding comes back once multiples of 2 log 2 are off. Without fused products the head of x
// has an exact square, and the rest has a factor of its own.
template <int N>
DEEPPCR_INLINE Vec<N> GaussianKernel(Vec<N> x) {
#if defined(__FMA__)
  const Vec<N> square = x * x, lost = Fma(x, x, -square), magic = Broadcast<N>(kShift);
  const Vec<N> shifted = Fma(square, Broadcast<N>(-0.721347520F), magic), n = shifted - magic;
  const Vec<N> r =
      lost + Fma(n, Broadcast<N>(-4.24388880e-4F), Fma(n, Broadcast<N>(1.38671875F), square));
  // e^(-r/2) for |r| <= 0.7.
  const Vec<N> mantissa = Polynomial(r, 2.15852269e-5F, -2.61523353e-4F, 2.60427454e-3F,
                                     -2.08331496e-2F, 0.124999985F, -0.5F, 1.0F);
  return TimesPowerOfTwo(mantissa, {r, n, shifted});
#else
  const Vec<N> head = Vec<N>::FromBits(x.bits() & 0xFFFFF000U);
  const Vec<N> tail = (x - head) * (x + head) * Broadcast<N>(0.5F);
  const Vec<N> correction = -tail * Polynomial(-tail, 4.16666667e-2F, 1.66666667e-1F, 0.5F, 1.0F);
  const Vec<N> e = BoundedExp(Broadcast<N>(-0.5F) * head * head);
  return Fma(e, correction, e);
#endif
}

// Factors of Phi(-|x|) = erfc(|x| / sqrt 2) / 2, the lower tail of the normal distribution, beside
// e^(-x^2/2): |x| Phi(-|x|) = share * scaled * e^(-x^2/2), share = |x| / (kTailScale + |x|).
// The scaled complementary error function is a polynomial in 1 - share, in powers of 1/2 - share,
// whose terms do not cancel: of the scales whose fit stays below 4e-8 once its coefficients are
// rounded, the one with the least error of gelu in float32.
inline constexpr float kTailScale = 3.27181458F;
template <int N>
struct NormalTail {
  Vec<N> share, scaled;
};

template <int N>
DEEPPCR_INLINE NormalTail<N> ScaledNormalTail(Vec<N> x) {
  const Vec<N> a = Abs(x), share = a / (a + Broadcast<N>(kTailScale));
  return {share, Polynomial(Broadcast<N>(0.5F) - share, -0.067262277F, 0.0450536013F, 0.131569207F,
                            -0.0871005729F, -0.264957219F, 0.0375254378F, 0.671601117F, 1.11267209F,
                            1.08382916F, 0.738097548F)};
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_SIMD_VECTOR_MATH_H_
