// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_ACTIVATION_H_
#define DEEPPCR_KERNELS_CUDA_MATH_ACTIVATION_H_

// The activations of kernels/problem/activation.h in float32, and their derivatives. The switch is
// at run time and the same for all threads, so that one kernel serves all activations; a loop whose
// steps wait for one another is compiled for some of them (WithActivation). A NaN stays a NaN.

#include <math.h>

#include "kernels/cuda/runtime/device_code.h"
#include "kernels/problem/activation.h"

namespace deeppcr::cuda {

// An approximation of 1 / x, to one unit in the last place.
DEEPPCR_DEVICE float ApproximateInverse(float x) {
#if defined(__CUDA_ARCH__)
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
#else
  return 1.0F / x;
#endif
}
// 1 / x for x >= 1, by the steps that nvcc makes of the quotient, but zero where that is no normal
// float: nvcc has a branch for those, and several quotients would wait for one another.
DEEPPCR_DEVICE float InverseFromOne(float x) {
  const float inverse = ApproximateInverse(x);
  const float better = fmaf(inverse, fmaf(-x, inverse, 1.0F), inverse);
  return x > 0x1p126F ? 0.0F : better;
}

// 1 / (1 + e^-a): the exponential of a large -a is infinite and its quotient zero, as it should be.
DEEPPCR_DEVICE float Sigmoid(float a) { return InverseFromOne(1.0F + expf(-a)); }

// Phi(a), the standard normal distribution function. In the lower tail erfc keeps the digits.
DEEPPCR_DEVICE float NormalCdf(float a) { return 0.5F * erfcf(a * -0.707106781F); }

// Bounds a where a sigmoid has long saturated, so that a cube cannot overflow. Keeps a NaN.
DEEPPCR_DEVICE float BoundForCube(float a) { return fabsf(a) > 1e6F ? copysignf(1e6F, a) : a; }

// 2 sqrt(2/pi) (a + 0.044715 a^3), the argument of the sigmoid form of gelu_tanh.
DEEPPCR_DEVICE float GeluTanhArgument(float a) {
  const float b = BoundForCube(a);
  return b * fmaf(b * b, 0.0713548162F, 1.59576912F);
}

// log(1 + e^a) without overflow.
DEEPPCR_DEVICE float Softplus(float a) { return fmaxf(a, 0.0F) + log1pf(expf(-fabsf(a))); }

// a tanh(log(1 + e^a)) in powers of e = e^-|a|, which cannot overflow and whose sums do not cancel.
DEEPPCR_DEVICE float Mish(float a) {
  const float e = expf(-fabsf(a));
  return a > 0.0F ? a * ((1.0F + 2.0F * e) / fmaf(2.0F * e, 1.0F + e, 1.0F))
                  : a * (e * ((2.0F + e) / fmaf(e, 2.0F + e, 2.0F)));
}

// Slope of GeluTanhArgument.
DEEPPCR_DEVICE float GeluTanhSlope(float a) {
  const float b = BoundForCube(a);
  return fmaf(b * b, 0.214064449F, 1.59576912F);
}

// An activation as a type: the switch over it is gone when a loop is compiled.
template <Activation kActivation>
struct FixedActivation {
  DEEPPCR_DEVICE constexpr operator Activation() const { return kActivation; }
};

// Returns f(FixedActivation) of an activation. That of most denoisers comes first: a switch is a
// tree of branches, at the end of every layer.
template <class F>
DEEPPCR_DEVICE auto OfActivation(Activation activation, const F& f) {
  if (activation == Activation::kSilu) return f(FixedActivation<Activation::kSilu>());
  switch (activation) {
    case Activation::kIdentity:
      return f(FixedActivation<Activation::kIdentity>());
    case Activation::kRelu:
      return f(FixedActivation<Activation::kRelu>());
    case Activation::kLeakyRelu:
      return f(FixedActivation<Activation::kLeakyRelu>());
    case Activation::kTanh:
      return f(FixedActivation<Activation::kTanh>());
    case Activation::kSigmoid:
      return f(FixedActivation<Activation::kSigmoid>());
    case Activation::kSilu:
      break;
    case Activation::kGelu:
      return f(FixedActivation<Activation::kGelu>());
    case Activation::kGeluTanh:
      return f(FixedActivation<Activation::kGeluTanh>());
    case Activation::kElu:
      return f(FixedActivation<Activation::kElu>());
    case Activation::kSoftplus:
      return f(FixedActivation<Activation::kSoftplus>());
    case Activation::kMish:
      return f(FixedActivation<Activation::kMish>());
  }
  return f(FixedActivation<Activation::kIdentity>());
}

template <Activation kActivation>
DEEPPCR_DEVICE float Activate(FixedActivation<kActivation>, float a) {
  if constexpr (kActivation == Activation::kIdentity) {
    return a;
  } else if constexpr (kActivation == Activation::kRelu) {
    return a < 0.0F ? 0.0F : a;
  } else if constexpr (kActivation == Activation::kLeakyRelu) {
    return a < 0.0F ? 0.01F * a : a;
  } else if constexpr (kActivation == Activation::kTanh) {
    return tanhf(a);
  } else if constexpr (kActivation == Activation::kSigmoid) {
    return Sigmoid(a);
  } else if constexpr (kActivation == Activation::kSilu) {
    return a == -INFINITY ? 0.0F : a * Sigmoid(a);
  } else if constexpr (kActivation == Activation::kGelu) {
    return a == -INFINITY ? 0.0F : a * NormalCdf(a);
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    return a == -INFINITY ? 0.0F : a * Sigmoid(GeluTanhArgument(a));
  } else if constexpr (kActivation == Activation::kElu) {
    return a < 0.0F ? expm1f(a) : a;
  } else if constexpr (kActivation == Activation::kSoftplus) {
    return a != a ? a : Softplus(a);
  } else if constexpr (kActivation == Activation::kMish) {
    return a == -INFINITY ? 0.0F : Mish(a);
  }
}
DEEPPCR_DEVICE float Activate(Activation activation, float a) {
  return OfActivation(activation, [&](auto fixed) { return Activate(fixed, a); });
}

// Calls f with the activation, as a FixedActivation where networks of many layers use it. The bits
// are the same: the functions above are.
template <class F>
DEEPPCR_DEVICE void WithActivation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::kRelu:
      return f(FixedActivation<Activation::kRelu>());
    case Activation::kTanh:
      return f(FixedActivation<Activation::kTanh>());
    case Activation::kSilu:
      return f(FixedActivation<Activation::kSilu>());
    default:
      return f(activation);
  }
}

// An activation of two straight parts, without a switch: in a loop whose steps wait for one another
// a switch over all activations takes longer than a step. The bits are those of the functions above
// and below.
struct PiecewiseLinear {
  float below;  // slope where a < 0
  bool flat;    // relu: 0 there, not 0 a, which may be -0 or NaN

  static DEEPPCR_DEVICE bool Covers(Activation activation) {
    return activation == Activation::kIdentity || activation == Activation::kRelu ||
           activation == Activation::kLeakyRelu;
  }
  explicit DEEPPCR_DEVICE PiecewiseLinear(Activation activation)
      : below(activation == Activation::kIdentity    ? 1.0F
              : activation == Activation::kLeakyRelu ? 0.01F
                                                     : 0.0F),
        flat(activation == Activation::kRelu) {}
};
DEEPPCR_DEVICE float Activate(const PiecewiseLinear& activation, float a) {
  const float negative = activation.flat ? 0.0F : activation.below * a;
  return a < 0.0F ? negative : a;
}
DEEPPCR_DEVICE float Differentiate(const PiecewiseLinear& activation, float a) {
  return a > 0.0F ? 1.0F : activation.below;
}

// s (1 - s) of the sigmoid s at a, from the smaller tail, which keeps its digits.
DEEPPCR_DEVICE float SigmoidSlope(float a) {
  const float tail = Sigmoid(-fabsf(a));
  return tail * (1.0F - tail);
}

// d/da a s(g(a)) = s + a g'(a) s (1 - s): s (1 - s) is zero long before a g'(a) overflows.
DEEPPCR_DEVICE float SwishSlope(float a, float argument, float slope) {
  const float tail = Sigmoid(-fabsf(argument)), ds = tail * (1.0F - tail);
  const float s = argument > 0.0F ? 1.0F - tail : tail;
  return ds == 0.0F ? s : fmaf(a * slope, ds, s);
}

DEEPPCR_DEVICE float GeluSlope(float a) {
  const float density = 0.398942280F * expf(-0.5F * a * a);
  return density == 0.0F ? NormalCdf(a) : fmaf(a, density, NormalCdf(a));
}

// d/da Mish(a) = t + a t', where t' is zero long before its product with a overflows.
DEEPPCR_DEVICE float MishSlope(float a) {
  const float e = expf(-fabsf(a));
  const float over = 1.0F / (a > 0.0F ? fmaf(2.0F * e, 1.0F + e, 1.0F) : fmaf(e, 2.0F + e, 2.0F));
  const float t = (a > 0.0F ? 1.0F + 2.0F * e : e * (2.0F + e)) * over;
  const float dt = 4.0F * e * (a > 0.0F ? e : 1.0F) * (1.0F + e) * over * over;
  return dt == 0.0F ? t : fmaf(a, dt, t);
}

template <Activation kActivation>
DEEPPCR_DEVICE float Differentiate(FixedActivation<kActivation>, float a) {
  if constexpr (kActivation == Activation::kIdentity) {
    return 1.0F;
  } else if constexpr (kActivation == Activation::kRelu) {
    return a > 0.0F ? 1.0F : 0.0F;
  } else if constexpr (kActivation == Activation::kLeakyRelu) {
    return a > 0.0F ? 1.0F : 0.01F;
  } else if constexpr (kActivation ==
                       Activation::kTanh) {  // 1 - tanh^2 would lose the digits of the tails
    return 4.0F * SigmoidSlope(2.0F * a);
  } else if constexpr (kActivation == Activation::kSigmoid) {
    return SigmoidSlope(a);
  } else if constexpr (kActivation == Activation::kSilu) {
    return SwishSlope(a, a, 1.0F);
  } else if constexpr (kActivation == Activation::kGelu) {
    return GeluSlope(a);
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    return SwishSlope(a, GeluTanhArgument(a), GeluTanhSlope(a));
  } else if constexpr (kActivation == Activation::kElu) {
    return a > 0.0F ? 1.0F : expf(a);
  } else if constexpr (kActivation == Activation::kSoftplus) {
    return Sigmoid(a);
  } else if constexpr (kActivation == Activation::kMish) {
    return MishSlope(a);
  }
}
DEEPPCR_DEVICE float Differentiate(Activation activation, float a) {
  return OfActivation(activation, [&](auto fixed) { return Differentiate(fixed, a); });
}

// Replaces values by activations, or by slopes, with one branch for all values, so that they do not
// wait for one another.
template <int N>
DEEPPCR_DEVICE void ActivateAll(Activation activation, float (&a)[N]) {
  OfActivation(activation, [&](auto fixed) {
    DEEPPCR_UNROLL
    for (int k = 0; k < N; ++k) a[k] = Activate(fixed, a[k]);
  });
}
template <int N>
DEEPPCR_DEVICE void DifferentiateAll(Activation activation, float (&a)[N]) {
  OfActivation(activation, [&](auto fixed) {
    DEEPPCR_UNROLL
    for (int k = 0; k < N; ++k) a[k] = Differentiate(fixed, a[k]);
  });
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_ACTIVATION_H_
