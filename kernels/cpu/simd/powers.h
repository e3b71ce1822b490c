// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_SIMD_POWERS_H_
#define DEEPPCR_KERNELS_CPU_SIMD_POWERS_H_

// x^y as e^(y log |x|) in double: a float cannot hold y log |x|, whose error the exponential
// multiplies, to the last bit of the result.

#include "kernels/cpu/simd/doubles.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// e^x for |x| <= 200, to 2^-32 of it: x = n ln 2 + r with ln 2 in two parts, as in ReduceByLog2,
// and the Taylor series.
DEEPPCR_INLINE Doubles ExpOfDoubles(Doubles x) {
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52
  const Doubles shifted = FmaOf(x, AllDoubles(1.44269504088896338700e+00), AllDoubles(kMagic));
  const Doubles n = shifted - kMagic;
  const Doubles r =
      FmaOf(n, AllDoubles(-1.90821492927058770002e-10), x - n * 6.93147180369123816490e-01);
  const Doubles series = PolynomialInDoubles(r, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120,
                                             1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0);
  return AsDoubles(AsWords(series) + (AsWords(shifted) << 52));
}

// log(x) of x >= 0, of floats: -infinity of 0 and infinity of that.
DEEPPCR_INLINE Doubles LogOfFloats(Doubles x) {
  const Doubles infinity = AllDoubles(__builtin_inf());
  const Doubles log = x < infinity ? Logarithms(x) : x;  // a NaN stays one
  return x == 0.0 ? -infinity : log;
}

DEEPPCR_INLINE Doubles AbsOf(Doubles x) { return AsDoubles(AsWords(x) & 0x7FFFFFFFFFFFFFFFU); }

// x^y with the special cases of C's pow, where `log` is that of |x|. What is beyond the floats is
// e^200 or e^-200 instead.
DEEPPCR_INLINE Doubles PowersOf(Doubles x, Doubles log, Doubles y) {
  const Doubles one = AllDoubles(1.0), infinity = AllDoubles(__builtin_inf());
  const Doubles size = AbsOf(x);
  Doubles exponent = y * log;
  exponent = exponent > 200.0 ? AllDoubles(200.0) : exponent;  // a NaN stays one
  exponent = exponent < -200.0 ? AllDoubles(-200.0) : exponent;
  const Doubles of_size = ExpOfDoubles(exponent);
  // A sum with 2^52 is rounded to an integer; what is beyond counts as even, as infinity does.
  constexpr double kMagic = 4503599627370496.0;
  const Doubles bounded = AbsOf(y) > kMagic ? AllDoubles(kMagic) : AbsOf(y);
  const Doubles shifted = bounded + kMagic;
  const auto whole = shifted - kMagic == bounded;
  const Words sign = AsWords(x) & (whole ? AsWords(shifted) << 63 : Words{});
  const auto real = (x >= 0.0) | (size == infinity) | whole;
  const Doubles power = real ? AsDoubles(AsWords(of_size) | sign) : AllDoubles(__builtin_nan(""));
  return (y == 0.0) | (x == one) | ((size == one) & (AbsOf(y) == infinity)) ? one : power;
}

// f of two vectors of floats, in double.
template <class F>
DEEPPCR_INLINE Wide ByDoubles(Wide a, Wide b, const F& f) {
  const auto of_half = [&](Floats x, Floats y) {
    return __builtin_convertvector(
        f(__builtin_convertvector(x, Doubles), __builtin_convertvector(y, Doubles)), Floats);
  };
  const Halves<Floats> x = HalvesOf(a), y = HalvesOf(b);
  return {WholeOf<Floats>({of_half(x.low, y.low), of_half(x.high, y.high)})};
}

// a^b, and its derivatives by a (0 where b is 0, whatever a) and by b (0 where a <= 0: a negative
// number has powers by whole numbers only).
DEEPPCR_INLINE Wide Power(Wide a, Wide b) {
  return ByDoubles(a, b,
                   [](Doubles x, Doubles y) { return PowersOf(x, LogOfFloats(AbsOf(x)), y); });
}
DEEPPCR_INLINE Wide PowerSlopeByBase(Wide a, Wide b) {
  return ByDoubles(a, b, [](Doubles x, Doubles y) {
    const Doubles slope = y * PowersOf(x, LogOfFloats(AbsOf(x)), y - 1.0);
    return y == 0.0 ? y : slope;
  });
}
DEEPPCR_INLINE Wide PowerSlopeByExponent(Wide a, Wide b) {
  return ByDoubles(a, b, [](Doubles x, Doubles y) {
    const Doubles log = LogOfFloats(AbsOf(x));
    return x > 0.0 ? PowersOf(x, log, y) * log : Doubles{};
  });
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_SIMD_POWERS_H_
