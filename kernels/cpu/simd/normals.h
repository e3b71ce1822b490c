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

// What is in doubt about floats: a bit is set somewhere.
struct Doubts {
  HalfWords roundings = {};
  Words angles = {};

  bool any() const {
    uint64_t any = 0;
    for (int i = 0; i < kDoubles; ++i) any |= roundings[i] | angles[i];
    return any != 0;
  }
};

DEEPPCR_INLINE Floats RoundSurely(Doubles x, Doubts* doubts) {
  constexpr double kMargin = 0x1p-48;
  const Floats low = __builtin_convertvector(FmaOf(x, AllDoubles(-kMargin), x), Floats);
  const Floats high = __builtin_convertvector(FmaOf(x, AllDoubles(kMargin), x), Floats);
  doubts->roundings |= reinterpret_cast<HalfWords>(low) ^ reinterpret_cast<HalfWords>(high);
  return low;
}

// Two normals per lane as philox.h makes them from two words.
struct NormalPairs {
  Floats first, second;
};
DEEPPCR_INLINE NormalPairs BoxMuller(Words word0, Words word1, Doubts* doubts) {
  constexpr double kUnit = 1.0 / 4294967296.0;
  constexpr double kTwoPi = 6.283185307179586476925286766559;
  const Doubles radius = SquareRoots(-2.0 * Logarithms((ToDoubles(word0) + 0.5) * kUnit));
  // Rounded, as in philox.h.
  Doubles angle = ToDoubles(word1) * (kTwoPi * kUnit);
  __asm__("" : "+v"(angle));
  const SineCosine at = SinesAndCosines(angle);
  // Multiples of pi / 2 are in doubt.
  doubts->angles |= reinterpret_cast<Words>((word1 & 0x3FFFFFFFU) == 0);
  return {RoundSurely(radius * at.cosine, doubts), RoundSurely(radius * at.sine, doubts)};
}

// Where the blocks of a vector go: row by row, a row's from left to right.
class BlockPlaces {
 public:
  DEEPPCR_INLINE explicit BlockPlaces(const NormalsArgs& args)
      : quads_(static_cast<uint64_t>(args.quads) - Words{}),
        rows_on_(kDoubles / args.quads),
        quads_on_(kDoubles % args.quads) {
    for (int i = 0; i < kDoubles; ++i) {
      row_[i] = static_cast<uint64_t>(i / args.quads);
      quad_[i] = static_cast<uint64_t>(i % args.quads);
    }
  }
  DEEPPCR_INLINE Words row() const { return row_; }
  DEEPPCR_INLINE Words quad() const { return quad_; }
  DEEPPCR_INLINE void Advance() {
    row_ += rows_on_;
    quad_ += quads_on_;
    const Words wraps = reinterpret_cast<Words>(quad_ >= quads_);
    row_ -= wraps;  // -1 where it wraps
    quad_ -= quads_ & wraps;
  }

 private:
  const Words quads_;
  const uint64_t rows_on_, quads_on_;
  Words row_, quad_;
};

// Four floats of every lane of `count` lanes, to where each lane's go.
DEEPPCR_INLINE void StoreFours(const NormalPairs& front, const NormalPairs& back,
                               float* const (&to)[kDoubles], int64_t count) {
  constexpr int kRows = kDoubles < 4 ? kDoubles : 4;
  const Floats parts[4] = {front.first, front.second, back.first, back.second};
  __m128 rows[kDoubles / kRows][4] = {};
#pragma GCC unroll 2
  for (int h = 0; h < kDoubles / kRows; ++h) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      __builtin_memcpy(&rows[h][k], reinterpret_cast<const char*>(&parts[k]) + h * kRows * 4,
                       kRows * 4);
    }
    _MM_TRANSPOSE4_PS(rows[h][0], rows[h][1], rows[h][2], rows[h][3]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kDoubles; ++i)
    if (i < count) _mm_storeu_ps(to[i], rows[i / kRows][i % kRows]);
}

inline bool Normals(const NormalsArgs& args) {
  const int64_t count = args.num_steps * args.quads;
  Doubts doubts;
  BlockPlaces places(args);
  for (int64_t done = 0; done < count; done += kDoubles, places.Advance()) {
    Words counter0 = places.quad(), counter1 = places.row() + uint64_t{args.first_step};
    Words counter2 = (args.sample & kLow32) - Words{}, counter3 = (args.sample >> 32) - Words{};
    Words key0 = args.seed - Words{}, key1 = (args.seed >> 32) - Words{};
    for (int round = 0; round < 10; ++round) {
      // Only low halves count.
      const Words product0 = MultiplyLow(counter0, 0xD2511F53U);
      const Words product1 = MultiplyLow(counter2, 0xCD9E8D57U);
      counter0 = (product1 >> 32) ^ counter1 ^ key0;
      counter2 = (product0 >> 32) ^ counter3 ^ key1;
      counter1 = product1;
      counter3 = product0;
      key0 += uint64_t{0x9E3779B9U};
      key1 += uint64_t{0xBB67AE85U};
    }
    const NormalPairs front = BoxMuller(counter0 & kLow32, counter1 & kLow32, &doubts);
    const NormalPairs back = BoxMuller(counter2 & kLow32, counter3 & kLow32, &doubts);
    float* to[kDoubles];
    for (int i = 0; i < kDoubles; ++i) {
      to[i] = args.out + static_cast<int64_t>(places.row()[i]) * args.stride +
              static_cast<int64_t>(places.quad()[i]) * 4;
    }
    StoreFours(front, back, to, count - done);
  }
  return !doubts.any();
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_SIMD_NORMALS_H_
