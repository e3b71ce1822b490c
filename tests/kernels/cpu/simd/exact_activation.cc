// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/cpu/simd/exact_activation.h"

// The C library declares its vector functions only under compiler flags that give up exactness.
#if defined(__GNUC__) && !defined(__clang__)
#define DEEPPCR_VECTORISED __attribute__((simd("notinbranch"), const))
#else
#define DEEPPCR_VECTORISED
#endif
extern "C" {
DEEPPCR_VECTORISED double exp(double) noexcept;
DEEPPCR_VECTORISED double expm1(double) noexcept;
DEEPPCR_VECTORISED double log1p(double) noexcept;
DEEPPCR_VECTORISED double tanh(double) noexcept;
DEEPPCR_VECTORISED double erfc(double) noexcept;
}

namespace deeppcr::testing {
namespace {

double Abs(double a) { return __builtin_fabs(a); }

double AtMost(double a, double bound) { return a < bound ? a : bound; }

// e^-|a|. Beyond 250 even the product with the largest float is zero as a float; the library
// handles arguments near the ends of its range one by one.
double Decay(double a) { return exp(-AtMost(Abs(a), 250)); }

// factor / (1 + e^-a).
double TimesSigmoid(double factor, double a) {
  const double e = Decay(a);
  return factor * (a > 0 ? 1.0 : e) / (1 + e);
}

// 2 sqrt(2/pi) (a + 0.044715 a^3).
double GeluTanhArgument(double a) {
  return 1.5957691216057307117597842397375 * (a + 0.044715 * a * a * a);
}

// a tanh(log(1 + e^a)), in powers of e^-|a|.
double Mish(double a) {
  const double e = Decay(a);
  return a > 0 ? a * (1 + 2 * e) / (1 + 2 * e * (1 + e)) : a * e * (2 + e) / (2 + e * (2 + e));
}

template <class F>
void Each(const float* x, double* y, int64_t count, F f) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = f(static_cast<double>(x[i]));
}

// The inverse of the distance between floats of this size.
double InverseSpacing(double size) {
  const auto exponent = __builtin_bit_cast(uint64_t, size) & 0x7FF0000000000000U;
  return __builtin_bit_cast(double, 0x7FE0000000000000U - exponent) * 0x1p23;
}

}  // namespace

void ExactActivation(Activation activation, const float* x, double* y, int64_t count) {
  switch (activation) {
    case Activation::kIdentity:
      return Each(x, y, count, [](double a) { return a; });
    case Activation::kRelu:
      return Each(x, y, count, [](double a) { return a < 0 ? 0 : a; });
    case Activation::kLeakyRelu:
      return Each(x, y, count, [](double a) { return a < 0 ? 0.01 * a : a; });
    case Activation::kTanh:
      return Each(x, y, count, [](double a) { return tanh(a); });
    case Activation::kSigmoid:
      return Each(x, y, count, [](double a) { return TimesSigmoid(1, a); });
    case Activation::kSilu:
      return Each(x, y, count, [](double a) { return TimesSigmoid(a, a); });
    case Activation::kGelu:
      return Each(x, y, count, [](double a) {
        return 0.5 * a * erfc(AtMost(a * -0.70710678118654752440084436210485, 20));
      });
    case Activation::kGeluTanh:
      return Each(x, y, count, [](double a) { return TimesSigmoid(a, GeluTanhArgument(a)); });
    case Activation::kElu:
      return Each(x, y, count, [](double a) {
        const double below = expm1(-AtMost(a < 0 ? -a : 0.0, 250));
        return a > 0 ? a : below;
      });
    case Activation::kSoftplus:
      return Each(x, y, count, [](double a) { return (a < 0 ? 0 : a) + log1p(Decay(a)); });
    case Activation::kMish:
      return Each(x, y, count, Mish);
  }
}

LargestErrors ErrorsOf(const float* y, const double* exact, int64_t count) {
  // Four lanes: the compiler may not change the order of a maximum.
  double normal[4] = {}, denormal[4] = {};
  for (int64_t i = 0; i < count; i += 4) {
#pragma omp simd
    for (int k = 0; k < 4; ++k) {
      const double size = Abs(exact[i + k]), least = __FLT_MIN__;
      const double scale = InverseSpacing(size > least ? size : least);
      const double error = Abs(static_cast<double>(y[i + k]) - exact[i + k]) * scale;
      const double of_normal = size < least ? 0.0 : error, of_denormal = size < least ? error : 0.0;
      // This order of operands takes a NaN and keeps it.
      normal[k] = of_normal <= normal[k] ? normal[k] : of_normal;
      denormal[k] = of_denormal <= denormal[k] ? denormal[k] : of_denormal;
    }
  }
  LargestErrors largest = {0, 0};
  for (int k = 0; k < 4; ++k) {
    largest.normal = normal[k] <= largest.normal ? largest.normal : normal[k];
    largest.denormal = denormal[k] <= largest.denormal ? largest.denormal : denormal[k];
  }
  return largest;
}

}  // namespace deeppcr::testing
