// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_SIMD_SIMD_H_
#define DEEPPCR_KERNELS_CPU_SIMD_SIMD_H_

// Float vectors of N lanes for the instruction set that the including file is compiled for.
// Included only by the kernels_<isa>.cc and denoiser_<isa>.cc files, each of which puts everything
// into its own namespace: an inline function compiled for AVX-512 must never be the one the linker
// keeps for an older machine. For the same reason no standard header with inline functions is
// included here.

#include <immintrin.h>

#include <cstdint>

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

inline constexpr float kLargestFloat = 0x1.fffffep127F;

#define DEEPPCR_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
inline constexpr int kNativeLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kNativeLanes = 8;
#else
inline constexpr int kNativeLanes = 4;
#endif

template <int N>
struct Vec {
  typedef float Float __attribute__((vector_size(N * 4)));
  typedef int32_t Int __attribute__((vector_size(N * 4)));
  typedef uint32_t Bits __attribute__((vector_size(N * 4)));
  static constexpr int kLanes = N;

  Float v;

  DEEPPCR_INLINE Bits bits() const { return reinterpret_cast<Bits>(v); }
  static DEEPPCR_INLINE Vec FromBits(Bits b) { return {reinterpret_cast<Float>(b)}; }

  friend DEEPPCR_INLINE Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
  friend DEEPPCR_INLINE Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
  friend DEEPPCR_INLINE Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
  friend DEEPPCR_INLINE Vec operator/(Vec a, Vec b) { return {a.v / b.v}; }
  friend DEEPPCR_INLINE Vec operator-(Vec a) { return FromBits(a.bits() ^ 0x80000000U); }
};

template <int N>
DEEPPCR_INLINE Vec<N> Load(const float* p) {
  Vec<N> r;
  __builtin_memcpy(&r.v, p, sizeof(r.v));
  return r;
}

template <int N>
DEEPPCR_INLINE void Store(float* p, Vec<N> a) {
  __builtin_memcpy(p, &a.v, sizeof(a.v));
}

// The same vector, of the machine's width or less, in a register: the compiler would load it again
// for each use.
template <int N>
DEEPPCR_INLINE Vec<N> InRegister(Vec<N> a) {
#if defined(__AVX512F__)
  asm("" : "+v"(a.v));
#else
  asm("" : "+x"(a.v));
#endif
  return a;
}

// Broadcasts by intrinsics: compilers turn the plain loop into a chain of masked moves.
template <int N>
DEEPPCR_INLINE Vec<N> Broadcast(float x) {
#if defined(__AVX512F__)
  if constexpr (N == 16) return {_mm512_set1_ps(x)};
#endif
#if defined(__AVX2__)
  if constexpr (N == 8) return {_mm256_set1_ps(x)};
#endif
  if constexpr (N == 4) return {_mm_set1_ps(x)};
}

// a * b + c, fused where the machine has it. Written out so that no bit depends on what the
// compiler contracts.
template <int N>
DEEPPCR_INLINE Vec<N> Fma(Vec<N> a, Vec<N> b, Vec<N> c) {
#if defined(__AVX512F__)
  if constexpr (N == 16) return {_mm512_fmadd_ps(a.v, b.v, c.v)};
#endif
#if defined(__FMA__)
  if constexpr (N == 8) return {_mm256_fmadd_ps(a.v, b.v, c.v)};
  if constexpr (N == 4) return {_mm_fmadd_ps(a.v, b.v, c.v)};
#endif
  return {a.v * b.v + c.v};
}

// c - a * b.
template <int N>
DEEPPCR_INLINE Vec<N> FmaNegative(Vec<N> a, Vec<N> b, Vec<N> c) {
#if defined(__AVX512F__)
  if constexpr (N == 16) return {_mm512_fnmadd_ps(a.v, b.v, c.v)};
#endif
#if defined(__FMA__)
  if constexpr (N == 8) return {_mm256_fnmadd_ps(a.v, b.v, c.v)};
  if constexpr (N == 4) return {_mm_fnmadd_ps(a.v, b.v, c.v)};
#endif
  return {c.v - a.v * b.v};
}

// Bitwise and, by intrinsics: compilers make an integer operation of the plain expression,
// which waits a cycle for a float that has just been computed, and the next float operation waits
// again.
template <int N>
DEEPPCR_INLINE Vec<N> And(Vec<N> a, Vec<N> b) {
#if defined(__AVX512F__)
  if constexpr (N == 16) return {_mm512_and_ps(a.v, b.v)};
#endif
#if defined(__AVX2__)
  if constexpr (N == 8) return {_mm256_and_ps(a.v, b.v)};
#endif
  if constexpr (N == 4) return {_mm_and_ps(a.v, b.v)};
}
template <int N>
DEEPPCR_INLINE Vec<N> Or(Vec<N> a, Vec<N> b) {
#if defined(__AVX512F__)
  if constexpr (N == 16) return {_mm512_or_ps(a.v, b.v)};
#endif
#if defined(__AVX2__)
  if constexpr (N == 8) return {_mm256_or_ps(a.v, b.v)};
#endif
  if constexpr (N == 4) return {_mm_or_ps(a.v, b.v)};
}

template <int N>
DEEPPCR_INLINE Vec<N> Abs(Vec<N> a) {
  return And(a, Broadcast<N>(__builtin_bit_cast(float, 0x7FFFFFFFU)));
}

// a >= 0 with the sign of x.
template <int N>
DEEPPCR_INLINE Vec<N> WithSignOf(Vec<N> x, Vec<N> a) {
  return Or(And(x, Broadcast<N>(-0.0F)), a);
}

// a > b ? x : y, lane by lane; a NaN compares false.
template <int N>
DEEPPCR_INLINE Vec<N> SelectGreater(Vec<N> a, Vec<N> b, Vec<N> x, Vec<N> y) {
  return {a.v > b.v ? x.v : y.v};
}

// Bit i: a_i > b_i.
template <int N>
DEEPPCR_INLINE uint32_t GreaterBits(Vec<N> a, Vec<N> b) {
#if defined(__AVX512F__)
  if constexpr (N == 16) return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ);
#endif
#if defined(__AVX2__)
  if constexpr (N == 8)
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)));
#endif
  if constexpr (N == 4) return static_cast<uint32_t>(_mm_movemask_ps(_mm_cmpgt_ps(a.v, b.v)));
}

// Bit i: the sign bit of a_i.
template <int N>
DEEPPCR_INLINE uint32_t SignBits(Vec<N> a) {
#if defined(__AVX512F__)
  if constexpr (N == 16) return _mm512_movepi32_mask(_mm512_castps_si512(a.v));
#endif
#if defined(__AVX2__)
  if constexpr (N == 8) return static_cast<uint32_t>(_mm256_movemask_ps(a.v));
#endif
  if constexpr (N == 4) return static_cast<uint32_t>(_mm_movemask_ps(a.v));
}

// Bit i ? x_i : y_i.
template <int N>
DEEPPCR_INLINE Vec<N> SelectBits(uint32_t bits, Vec<N> x, Vec<N> y) {
#if defined(__AVX512F__)
  if constexpr (N == 16) return {_mm512_mask_blend_ps(static_cast<__mmask16>(bits), y.v, x.v)};
#endif
  typename Vec<N>::Bits of_lane;
  for (int i = 0; i < N; ++i) of_lane[i] = 1U << i;
  return {(of_lane & bits) != 0U ? x.v : y.v};
}

// a == b ? x : y.
template <int N>
DEEPPCR_INLINE Vec<N> SelectEqual(Vec<N> a, Vec<N> b, Vec<N> x, Vec<N> y) {
  return {a.v == b.v ? x.v : y.v};
}

// a > b ? a : b, lane by lane, in one instruction: b where a and b are equal or one is a NaN.
template <int N>
DEEPPCR_INLINE Vec<N> MaxOrSecond(Vec<N> a, Vec<N> b) {
#if defined(__AVX512F__)
  // _mm512_max_ps, but GCC 12 warns of a value that it leaves undefined.
  if constexpr (N == 16) return {_mm512_maskz_max_ps(0xFFFF, a.v, b.v)};
#endif
#if defined(__AVX2__)
  if constexpr (N == 8) return {_mm256_max_ps(a.v, b.v)};
#endif
  if constexpr (N == 4) return {_mm_max_ps(a.v, b.v)};
}

template <int N>
DEEPPCR_INLINE Vec<N> MinOrSecond(Vec<N> a, Vec<N> b) {
#if defined(__AVX512F__)
  if constexpr (N == 16) return {_mm512_maskz_min_ps(0xFFFF, a.v, b.v)};
#endif
#if defined(__AVX2__)
  if constexpr (N == 8) return {_mm256_min_ps(a.v, b.v)};
#endif
  if constexpr (N == 4) return {_mm_min_ps(a.v, b.v)};
}

// Lane k in every lane.
template <int N>
DEEPPCR_INLINE Vec<N> BroadcastLane(Vec<N> a, int k) {
#if defined(__AVX512F__)
  // _mm512_permutexvar_ps, but GCC 12 warns of a value that it leaves undefined.
  if constexpr (N == 16) return {_mm512_maskz_permutexvar_ps(0xFFFF, _mm512_set1_epi32(k), a.v)};
#endif
#if defined(__AVX2__)
  if constexpr (N == 8) return {_mm256_permutevar8x32_ps(a.v, _mm256_set1_epi32(k))};
#endif
  if constexpr (N == 4) return Broadcast<4>(a.v[k]);
}

// Four lanes at p, p + kStride, .. one after another.
template <int N, int kStride>
DEEPPCR_INLINE Vec<N> LoadFours(const float* p) {
  const auto four = [p](int i) { return _mm_loadu_ps(p + i * kStride); };
#if defined(__AVX512F__)
  if constexpr (N == 16) {
    const __m512 first = _mm512_zextps128_ps512(four(0));
    const __m512 second = _mm512_maskz_insertf32x4(0xFFFF, first, four(1), 1);
    const __m512 third = _mm512_maskz_insertf32x4(0xFFFF, second, four(2), 2);
    return {_mm512_maskz_insertf32x4(0xFFFF, third, four(3), 3)};
  }
#endif
#if defined(__AVX2__)
  if constexpr (N == 8) return {_mm256_set_m128(four(1), four(0))};
#endif
  if constexpr (N == 4) return {four(0)};
}

// Lanes 4 k .. 4 k + 3 again and again.
template <int N>
DEEPPCR_INLINE Vec<N> RepeatFour(Vec<N> a, [[maybe_unused]] int k) {
#if defined(__AVX512F__)
  if constexpr (N == 16) {
    const __m512i of_four = _mm512_set4_epi32(3, 2, 1, 0);
    return {_mm512_maskz_permutexvar_ps(0xFFFF, of_four + _mm512_set1_epi32(4 * k), a.v)};
  }
#endif
#if defined(__AVX2__)
  if constexpr (N == 8)
    return {k == 0 ? _mm256_permute2f128_ps(a.v, a.v, 0x00)
                   : _mm256_permute2f128_ps(a.v, a.v, 0x11)};
#endif
  if constexpr (N == 4) return a;
}

// Of every four lanes the k-th, 0, 0, 0.
template <int N>
DEEPPCR_INLINE Vec<N> FirstOfFour(Vec<N> a, int k) {
#if defined(__AVX512F__)
  if constexpr (N == 16) return {_mm512_maskz_permutevar_ps(0x1111, a.v, _mm512_set1_epi32(k))};
#endif
#if defined(__AVX2__)
  const float on = __builtin_bit_cast(float, 0xFFFFFFFFU);
  if constexpr (N == 8)
    return And<8>({_mm256_permutevar_ps(a.v, _mm256_set1_epi32(k))},
                  {_mm256_setr_ps(on, 0, 0, 0, on, 0, 0, 0)});
#endif
  if constexpr (N == 4) return {_mm_setr_ps(a.v[k], 0, 0, 0)};
}

// Of every four lanes a0 + a1, a2 + a3, b0 + b1, b2 + b3.
template <int N>
DEEPPCR_INLINE Vec<N> AddPairs(Vec<N> a, Vec<N> b) {
  constexpr int kEven = _MM_SHUFFLE(2, 0, 2, 0), kOdd = _MM_SHUFFLE(3, 1, 3, 1);
#if defined(__AVX512F__)
  if constexpr (N == 16)
    return {_mm512_maskz_shuffle_ps(0xFFFF, a.v, b.v, kEven) +
            _mm512_maskz_shuffle_ps(0xFFFF, a.v, b.v, kOdd)};
#endif
#if defined(__AVX2__)
  if constexpr (N == 8)
    return {_mm256_shuffle_ps(a.v, b.v, kEven) + _mm256_shuffle_ps(a.v, b.v, kOdd)};
#endif
  if constexpr (N == 4) return {_mm_shuffle_ps(a.v, b.v, kEven) + _mm_shuffle_ps(a.v, b.v, kOdd)};
}

// The larger and the smaller; a NaN in `a` is kept.
template <int N>
DEEPPCR_INLINE Vec<N> Max(Vec<N> a, Vec<N> b) {
  if constexpr (N < 4) {
    return {b.v > a.v ? b.v : a.v};
  } else {
    return MaxOrSecond(b, a);
  }
}
template <int N>
DEEPPCR_INLINE Vec<N> Min(Vec<N> a, Vec<N> b) {
  return MinOrSecond(b, a);
}

template <int N>
DEEPPCR_INLINE Vec<N> Sqrt(Vec<N> a) {
#if defined(__AVX512F__)
  // _mm512_sqrt_ps, but GCC 12 warns of a value that it leaves undefined.
  if constexpr (N == 16) return {_mm512_maskz_sqrt_ps(0xFFFF, a.v)};
#endif
#if defined(__AVX2__)
  if constexpr (N == 8) return {_mm256_sqrt_ps(a.v)};
#endif
  if constexpr (N == 4) return {_mm_sqrt_ps(a.v)};
}

// Largest lane, by halves.
template <int N>
DEEPPCR_INLINE float MaxLane(Vec<N> a) {
  if constexpr (N == 1) {
    return a.v[0];
  } else {
    Vec<N / 2> half[2];
    __builtin_memcpy(half, &a.v, sizeof(a.v));
    return MaxLane(Max(half[0], half[1]));
  }
}

// 0, 1, ... as template arguments.
template <int... I>
struct Indices {};
template <int N, int... I>
struct IndicesBelow : IndicesBelow<N - 1, N - 1, I...> {};
template <int... I>
struct IndicesBelow<0, I...> {
  using Type = Indices<I...>;
};

// True if a lane is infinite or NaN: not below infinity.
template <int N>
DEEPPCR_INLINE bool AnyNonFinite(Vec<N> a) {
  constexpr uint32_t kAll = (1U << N) - 1;
  return GreaterBits(Broadcast<N>(__builtin_inff()), Abs(a)) != kAll;
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_SIMD_SIMD_H_
