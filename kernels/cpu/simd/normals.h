// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_SIMD_NORMALS_H_
#define DEEPPCR_KERNELS_CPU_SIMD_NORMALS_H_

// The normals of kernels/problem/philox.h, several blocks of four at a time, with its bits.
//
// Philox is integers. The normals are computed in double by other means than the C library's, good
// to 4 ulp; a float is taken only if everything within 2^-48 of the double, 16 ulp or more, rounds
// to this float: then philox.h, whose functions are good to 1 ulp each, has rounded to it too.
// Where it is not certain, for about one normal in 10^7, the caller is told to ask philox.h itself.
// The header philox.h must not be included here, for the reason given in kernels/cpu/simd/simd.h.

#include "kernels/cpu/program/kernels.h"
#include "kernels/cpu/simd/doubles.h"
#include "kernels/cpu/simd/sine_cosine.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

inline constexpr uint64_t kLow32 = 0xFFFFFFFFU;

// The product of the low halves.
DEEPPCR_INLINE Words MultiplyLow(Words a, uint64_t b) {
  const Words all = b - Words{};
#if defined(__AVX512F__)
  return reinterpret_cast<Words>(
      _mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(all)));
#elif defined(__AVX2__)
  return reinterpret_cast<Words>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(all)));
#else
  return reinterpret_cast<Words>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(all)));
#endif
}

DEEPPCR_INLINE Doubles SquareRoots(Doubles x) {
#if defined(__AVX512F__)
  return _mm512_sqrt_pd(x);
#elif defined(__AVX2__)
  return _mm256_sqrt_pd(x);
#else
  return _mm_sqrt_pd(x);
#endif
}

// Rounds to float bits in the low halves; `doubts` gets a bit set where a float is not certain.
DEEPPCR_INLINE Words RoundSurely(Doubles x, Words* doubts) {
  constexpr double kMargin = 0x1p-48;
  const Floats low = __builtin_convertvector(x - x * kMargin, Floats);
  const Floats high = __builtin_convertvector(x + x * kMargin, Floats);
  const HalfWords low_bits = reinterpret_cast<HalfWords>(low);
  const HalfWords differing = low_bits ^ reinterpret_cast<HalfWords>(high);
  *doubts |= __builtin_convertvector(differing, Words);
  return __builtin_convertvector(low_bits, Words);
}

// Two normals per lane as philox.h makes them from two words, the first normal in the low half.
DEEPPCR_INLINE Words BoxMullerPairs(Words word0, Words word1, Words* doubts) {
  constexpr double kUnit = 1.0 / 4294967296.0;
  constexpr double kTwoPi = 6.283185307179586476925286766559;
  const Doubles radius = SquareRoots(-2.0 * Logarithms((ToDoubles(word0) + 0.5) * kUnit));
  Doubles angle = ToDoubles(word1) * (kTwoPi * kUnit);
  __asm__("" : "+v"(angle));  // rounded: the compiler must not fuse the product with later sums
  const SineCosine at = SinesAndCosines(angle);
  // Multiples of pi / 2 are in doubt.
  *doubts |= reinterpret_cast<Words>((word1 & 0x3FFFFFFFU) == 0);
  const Words first = RoundSurely(radius * at.cosine, doubts);
  return first | RoundSurely(radius * at.sine, doubts) << 32;
}

inline bool Normals(const NormalsArgs& args) {
  const int64_t count = args.num_steps * args.quads;
  const uint32_t low_key = static_cast<uint32_t>(args.seed);
  const uint32_t high_key = static_cast<uint32_t>(args.seed >> 32);
  Words doubts = {};
  int64_t row = 0, quad = 0;  // place of the next block
  for (int64_t done = 0; done < count; done += kDoubles) {
    Words counter0 = {}, counter1 = {};
    float* to[kDoubles];
    for (int i = 0; i < kDoubles; ++i) {
      to[i] = args.out + row * args.stride + 4 * quad;
      counter0[i] = static_cast<uint64_t>(quad);
      counter1[i] = args.first_step + static_cast<uint64_t>(row);
      // Spare lanes repeat the last block.
      if (done + i + 1 >= count) continue;
      if (++quad == args.quads) {
        quad = 0;
        ++row;
      }
    }
    Words counter2 = (args.sample & kLow32) - Words{}, counter3 = (args.sample >> 32) - Words{};
    uint32_t key0 = low_key, key1 = high_key;
    for (int round = 0; round < 10; ++round) {
      // Only low halves count.
      const Words product0 = MultiplyLow(counter0, 0xD2511F53U);
      const Words product1 = MultiplyLow(counter2, 0xCD9E8D57U);
      counter0 = (product1 >> 32) ^ counter1 ^ uint64_t { key0 };
      counter2 = (product0 >> 32) ^ counter3 ^ uint64_t { key1 };
      counter1 = product1;
      counter3 = product0;
      key0 += 0x9E3779B9U;
      key1 += 0xBB67AE85U;
    }
    const Words front = BoxMullerPairs(counter0 & kLow32, counter1 & kLow32, &doubts);
    const Words back = BoxMullerPairs(counter2 & kLow32, counter3 & kLow32, &doubts);
    for (int i = 0; i < kDoubles; ++i) {
      const uint64_t pairs[2] = {front[i], back[i]};
      __builtin_memcpy(to[i], pairs, sizeof(pairs));
    }
  }
  uint64_t any = 0;
  for (int i = 0; i < kDoubles; ++i) any |= doubts[i];
  return any == 0;
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_SIMD_NORMALS_H_
