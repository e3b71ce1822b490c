// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_SIMD_ACTIVATIONS_H_
#define DEEPPCR_KERNELS_CPU_SIMD_ACTIVATIONS_H_

// The activations of kernels/problem/activation.h and their derivatives on arrays of M vectors.
// The switch is at run time: the branch is always predicted, and one kernel serves all activations.

#include "kernels/cpu/simd/vector_math.h"
#include "kernels/problem/activation.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// Bounds a to +-15.49, beyond which the tail is zero, so that its exponent stays in range.
template <int N>
DEEPPCR_INLINE Vec<N> BoundForTail(Vec<N> a) {
  return Max(Min(a, Broadcast<N>(15.49F)), Broadcast<N>(-15.49F));
}

// a Phi(a) = max(a, 0) - |a| Phi(-|a|).
template <int N>
DEEPPCR_INLINE Vec<N> Gelu(Vec<N> a) {
  const Vec<N> b = BoundForTail(a);
  const NormalTail<N> tail = ScaledNormalTail(b);
  return FmaNegative(GaussianKernel(b) * tail.share, tail.scaled, Max(a, Broadcast<N>(0.0F)));
}

template <int N>
DEEPPCR_INLINE Vec<N> GeluDerivative(Vec<N> a) {
  const Vec<N> b = BoundForTail(a);
  const Vec<N> one = Broadcast<N>(1.0F), kernel = GaussianKernel(b);
  const NormalTail<N> tail = ScaledNormalTail(b);
  const Vec<N> below = kernel * (one - tail.share) * tail.scaled * Broadcast<N>(1 / kTailScale);
  const Vec<N> cdf = SelectGreater(b, Broadcast<N>(0.0F), one - below, below);
  return Fma(b, kernel * Broadcast<N>(0.398942280F), cdf);
}

// 2 sqrt(2/pi) (a + 0.044715 a^3), the argument of the sigmoid form, and its derivative. Bounded
// where the sigmoid has long saturated, so that a cube cannot overflow.
template <int N>
DEEPPCR_INLINE Vec<N> GeluTanhArgument(Vec<N> a) {
  const Vec<N> b = Max(Min(a, Broadcast<N>(1e6F)), Broadcast<N>(-1e6F));
  return b * Fma(b * b, Broadcast<N>(0.0713548162F), Broadcast<N>(1.59576912F));
}
template <int N>
DEEPPCR_INLINE Vec<N> GeluTanhDerivative(Vec<N> a) {
  const Vec<N> b = Max(Min(a, Broadcast<N>(1e6F)), Broadcast<N>(-1e6F));
  const SigmoidSlope<N> s = SigmoidWithSlope(GeluTanhArgument(b));
  const Vec<N> slope = Fma(b * b, Broadcast<N>(0.214064449F), Broadcast<N>(1.59576912F));
  // The slope of the sigmoid is zero long before b * slope can overflow.
  return Fma(b * slope, s.slope, s.value);
}

template <int N>
DEEPPCR_INLINE Vec<N> SiluDerivative(Vec<N> a) {
  const SigmoidSlope<N> s = SigmoidWithSlope(a);
  const Vec<N> b = Max(Min(a, Broadcast<N>(1e6F)), Broadcast<N>(-1e6F));
  return Fma(b, s.slope, s.value);
}

// a tanh(log(1 + e^a)) = a n / (n + 2) with n = e^a (e^a + 2): all terms are positive, so that
// nothing cancels. In powers of e = e^-|a|, which cannot overflow:
//   a > 0:  a (1 + 2e) / (1 + 2e + 2e^2)      a <= 0:  a e (2 + e) / (2 + 2e + e^2)
// Where e underflows a is bounded, so that -infinity gives the limit 0.
template <int N>
DEEPPCR_INLINE Vec<N> Mish(Vec<N> a) {
  const Vec<N> one = Broadcast<N>(1.0F), two = Broadcast<N>(2.0F), lowest = Broadcast<N>(-120.0F);
  const Vec<N> zero = Broadcast<N>(0.0F);
  const ExpFactors<N> factors = FactorExp(Max(-Abs(a), lowest));
  const Vec<N> e = factors.head * factors.tail, ee = e + e;
  const Vec<N> small = Max(a, lowest) * (two + e) * factors.head * factors.tail;
  return SelectGreater(a, zero, a * (one + ee), small) /
         SelectGreater(a, zero, Fma(ee, one + e, one), Fma(e, two + e, two));
}

// tanh(s) + a s' (1 - tanh(s)^2) with s = log(1 + e^a): in the same powers, the last factors are
//   a > 0:  4 e^2 (1 + e) / (1 + 2e + 2e^2)^2      a <= 0:  4 e (1 + e) / (2 + 2e + e^2)^2
template <int N>
DEEPPCR_INLINE Vec<N> MishDerivative(Vec<N> a) {
  const Vec<N> one = Broadcast<N>(1.0F), two = Broadcast<N>(2.0F), zero = Broadcast<N>(0.0F);
  const Vec<N> e = Exp(-Abs(a)), ee = e + e;
  const Vec<N> over = one / SelectGreater(a, zero, Fma(ee, one + e, one), Fma(e, two + e, two));
  const Vec<N> tanh = SelectGreater(a, zero, one + ee, e * (two + e)) * over;
  const Vec<N> slope = (ee + ee) * SelectGreater(a, zero, e, one) * (one + e) * over * over;
  const Vec<N> b = Max(Min(a, Broadcast<N>(1e6F)), Broadcast<N>(-1e6F));
  return Fma(b, slope, tanh);
}

template <int N, class F>
DEEPPCR_INLINE void Apply(Vec<N>* x, int count, F f) {
  for (int i = 0; i < count; ++i) x[i] = f(x[i]);
}

// x[i] <- x[i] / (1 + e^-y[i]) for y[i] of the sign of x[i].
template <int M, int N>
DEEPPCR_INLINE void MultiplyBySigmoid(Vec<N> (&x)[M], const Vec<N> (&y)[M]) {
  // Negative where |y| > kMostNear; a NaN may have either sign.
  Vec<N> left = Broadcast<N>(0.0F);
  for (int i = 0; i < M; ++i)
    left = Or(left, Broadcast<N>(kMostNear) + Or(y[i], Broadcast<N>(-0.0F)));
  if (SignBits(left) != 0) {
    for (int i = 0; i < M; ++i) x[i] = TimesSigmoid(x[i], y[i]);
  } else {
    for (int i = 0; i < M; ++i) x[i] = TimesSigmoidNear(x[i], y[i]);
  }
}

// x[i] <- act(x[i]).
template <int M, int N>
DEEPPCR_INLINE void Activate(Activation activation, Vec<N> (&x)[M]) {
  const Vec<N> zero = Broadcast<N>(0.0F);
  switch (activation) {
    case Activation::kIdentity:
      return;
    case Activation::kRelu:  // in this order a NaN stays one
      return Apply(x, M, [=](Vec<N> a) { return MaxOrSecond(zero, a); });
    case Activation::kLeakyRelu:
      return Apply(x, M,
                   [=](Vec<N> a) { return SelectGreater(zero, a, a * Broadcast<N>(0.01F), a); });
    case Activation::kTanh:
      return Apply(x, M, [](Vec<N> a) { return Tanh(a); });
    case Activation::kSigmoid:
      return Apply(x, M, [](Vec<N> a) { return Sigmoid(a); });
    case Activation::kSilu:
      return MultiplyBySigmoid(x, x);
    case Activation::kGelu:
      return Apply(x, M, [](Vec<N> a) { return Gelu(a); });
    case Activation::kGeluTanh: {
      Vec<N> y[M];
      for (int i = 0; i < M; ++i) y[i] = GeluTanhArgument(x[i]);
      return MultiplyBySigmoid(x, y);
    }
    case Activation::kElu:
      return Apply(x, M, [=](Vec<N> a) {
        return SelectGreater(a, zero, a, ExpMinusOneOfNegative(Min(a, zero)));
      });
    case Activation::kSoftplus:
      return Apply(x, M, [](Vec<N> a) { return Softplus(a); });
    case Activation::kMish:
      return Apply(x, M, [](Vec<N> a) { return Mish(a); });
  }
}

// x[i] <- act'(x[i]).
template <int M, int N>
DEEPPCR_INLINE void Differentiate(Activation activation, Vec<N> (&x)[M]) {
  const Vec<N> zero = Broadcast<N>(0.0F);
  const Vec<N> one = Broadcast<N>(1.0F);
  switch (activation) {
    case Activation::kIdentity:
      return Apply(x, M, [=](Vec<N>) { return one; });
    case Activation::kRelu:
      return Apply(x, M, [=](Vec<N> a) { return SelectGreater(a, zero, one, zero); });
    case Activation::kLeakyRelu:
      return Apply(x, M,
                   [=](Vec<N> a) { return SelectGreater(a, zero, one, Broadcast<N>(0.01F)); });
    case Activation::kTanh:
      return Apply(x, M, [](Vec<N> a) { return TanhSlope(a); });
    case Activation::kSigmoid:
      return Apply(x, M, [](Vec<N> a) { return SigmoidWithSlope(a).slope; });
    case Activation::kSilu:
      return Apply(x, M, [](Vec<N> a) { return SiluDerivative(a); });
    case Activation::kGelu:
      return Apply(x, M, [](Vec<N> a) { return GeluDerivative(a); });
    case Activation::kGeluTanh:
      return Apply(x, M, [](Vec<N> a) { return GeluTanhDerivative(a); });
    case Activation::kElu:
      return Apply(x, M, [=](Vec<N> a) { return SelectGreater(a, zero, one, Exp(a)); });
    case Activation::kSoftplus:
      return Apply(x, M, [](Vec<N> a) { return Sigmoid(a); });
    case Activation::kMish:
      return Apply(x, M, [](Vec<N> a) { return MishDerivative(a); });
  }
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_SIMD_ACTIVATIONS_H_
