// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_ALONG_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_ALONG_H_

// Reductions and operations along an axis and their tangents, as many lines at a time as there are
// lanes: what is one number of a line is a lane. A line is read in whole vectors and a rest of
// single floats, summed by halves, which keeps the rounding of long sums small: one order for every
// caller, so that a line has the same bits whatever lines are beside it.

#include "kernels/cpu/program/kernels.h"
#include "kernels/cpu/program/row_vectors.h"
#include "kernels/cpu/simd/vector_math.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// Lanes [0, count) as a mask.
#if defined(__AVX512F__)
using LaneMask = __mmask16;
DEEPPCR_INLINE LaneMask FirstLanes(int count) { return static_cast<LaneMask>((1U << count) - 1); }
#else
using LaneMask = Wide::Bits;
DEEPPCR_INLINE LaneMask FirstLanes(int count) {
  static constexpr uint32_t kOnes = 0xFFFFFFFFU;
  alignas(64) static constexpr uint32_t kMasks[2 * kNativeLanes] = {
#if defined(__AVX2__)
    kOnes,
    kOnes,
    kOnes,
    kOnes,
#endif
    kOnes,
    kOnes,
    kOnes,
    kOnes
  };
  LaneMask mask;
  __builtin_memcpy(&mask, kMasks + kNativeLanes - count, sizeof(mask));
  return mask;
}
#endif

// Zero in the lanes behind the first `count`.
DEEPPCR_INLINE Wide First(Wide a, int count) {
  if (count == kNativeLanes) return a;
#if defined(__AVX512F__)
  return {_mm512_maskz_mov_ps(FirstLanes(count), a.v)};
#else
  return Wide::FromBits(a.bits() & FirstLanes(count));
#endif
}

// The first `count` floats, and `rest` behind them: what lies behind the last line is not for
// reading.
DEEPPCR_INLINE Wide LoadFirst(const float* x, int count, Wide rest = All(0.0F)) {
  if (count == kNativeLanes) return LoadWide(x);
#if defined(__AVX512F__)
  return {_mm512_mask_loadu_ps(rest.v, FirstLanes(count), x)};
#elif defined(__AVX2__)
  const LaneMask mask = FirstLanes(count);
  const Wide first = {_mm256_maskload_ps(x, reinterpret_cast<__m256i>(mask))};
  return Wide::FromBits(first.bits() | (rest.bits() & ~mask));
#else
  rest.v[0] = x[0];
  if (count > 1) rest.v[1] = x[1];
  if (count > 2) rest.v[2] = x[2];
  return rest;
#endif
}

DEEPPCR_INLINE void StoreFirst(float* to, Wide a, int count) {
  if (count == kNativeLanes) return Store(to, a);
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, FirstLanes(count), a.v);
#elif defined(__AVX2__)
  _mm256_maskstore_ps(to, reinterpret_cast<__m256i>(FirstLanes(count)), a.v);
#else
  to[0] = a.v[0];
  if (count > 1) to[1] = a.v[1];
  if (count > 2) to[2] = a.v[2];
#endif
}

// Calls f(vector, offset, floats that count) for a line.
template <class F>
DEEPPCR_INLINE void ForLine(const float* x, int64_t length, const F& f) {
  int64_t at = 0;
  for (; at + kNativeLanes <= length; at += kNativeLanes) f(LoadWide(x + at), at, kNativeLanes);
  if (at == length) return;
  const int count = static_cast<int>(length - at);
  f(LoadFirst(x + at, count), at, count);
}

// Floats that are added one vector after another.
inline constexpr int64_t kFloatsInARow = 64;

// The sum over [begin, end) of a line: add(sum, offset, floats that count) adds a vector to it.
template <class F>
Wide SumByHalves(int64_t begin, int64_t end, const F& add);
template <class F>
DEEPPCR_INLINE Wide SumVectors(int64_t begin, int64_t end, const F& add) {
  if (end - begin > kFloatsInARow) return SumByHalves(begin, end, add);
  Wide sum = All(0.0F);
  int64_t at = begin;
  for (; at + kNativeLanes <= end; at += kNativeLanes) sum = add(sum, at, kNativeLanes);
  return at == end ? sum : add(sum, at, static_cast<int>(end - at));
}
template <class F>
Wide SumByHalves(int64_t begin, int64_t end, const F& add) {
  const int64_t middle = begin + (end - begin) / 2 / kNativeLanes * kNativeLanes;
  const Wide first = SumVectors(begin, middle, add);
  return first + SumVectors(middle, end, add);
}

DEEPPCR_INLINE Wide SumVectorsOf(const float* x, int64_t length) {
  return SumVectors(
      0, length, [&](Wide sum, int64_t at, int count) { return sum + LoadFirst(x + at, count); });
}

DEEPPCR_INLINE Wide DotVectorsOf(const float* x, const float* y, int64_t length) {
  return SumVectors(0, length, [&](Wide sum, int64_t at, int count) {
    return Fma(LoadFirst(x + at, count), LoadFirst(y + at, count), sum);
  });
}

// The low halves of the runs of kRun lanes of a and then of b, plus the high halves.
template <int kRun, int... I>
DEEPPCR_INLINE Wide AddHalves(Wide a, Wide b, Indices<I...>) {
  constexpr int kHalf = kRun / 2;
  return Wide{__builtin_shufflevector(a.v, b.v, (I / kHalf * kRun + I % kHalf)...)} +
         Wide{__builtin_shufflevector(a.v, b.v, (I / kHalf * kRun + I % kHalf + kHalf)...)};
}

// The sums of the lanes of as many vectors as a vector has lanes, by halves as in SumLanes.
template <int kRun = kNativeLanes>
DEEPPCR_INLINE Wide SumsOfLanes(const Wide* sums) {
  if constexpr (kRun == 1) {
    return sums[0];
  } else {
    Wide halves[kRun / 2];
    for (int i = 0; i < kRun / 2; ++i)
      halves[i] = AddHalves<kRun>(sums[2 * i], sums[2 * i + 1], IndicesBelow<kNativeLanes>::Type());
    return SumsOfLanes<kRun / 2>(halves);
  }
}

// The sum of the lanes of of(i), for line i of `count`, in lane i. Of few lines it is made line by
// line, with the same bits.
template <class F>
DEEPPCR_INLINE Wide SumsOfLines(int count, const F& of) {
  if (count <= 2) {
    Wide result = All(SumLanes(of(0)));
    if (count == 2) result.v[1] = SumLanes(of(1));
    return result;
  }
  Wide sums[kNativeLanes];
  for (int i = 0; i < kNativeLanes; ++i) sums[i] = i < count ? of(i) : All(0.0F);
  return SumsOfLanes(sums);
}

// The larger; a NaN if there is one.
template <int N>
DEEPPCR_INLINE Vec<N> LargerOrNan(Vec<N> a, Vec<N> b) {
  return SelectEqual(b, b, Max(a, b), b);
}
template <int N>
DEEPPCR_INLINE float LargestLane(Vec<N> a) {
  if constexpr (N == 1) {
    return a.v[0];
  } else {
    Vec<N / 2> half[2];
    __builtin_memcpy(half, &a.v, sizeof(a.v));
    return LargestLane(LargerOrNan(half[0], half[1]));
  }
}
DEEPPCR_INLINE float LargestOfLine(const float* x, int64_t length) {
  Wide largest = All(x[0]);
  int64_t at = 0;
  for (; at + kNativeLanes <= length; at += kNativeLanes)
    largest = LargerOrNan(largest, LoadWide(x + at));
  if (at == length) return LargestLane(largest);
  return LargestLane(
      LargerOrNan(largest, LoadFirst(x + at, static_cast<int>(length - at), largest)));
}

// Lines that are taken together, one in each lane, of one or several rows that follow one another.
struct LineBlock {
  int count;
  int64_t row[kNativeLanes],
      line[kNativeLanes];  // its row, and its place in it
};

// Calls f(block) for all lines of `rows` rows.
template <class F>
DEEPPCR_INLINE void ForLineBlocks(int64_t rows, int64_t lines, const F& f) {
  LineBlock block = {};
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t line = 0; line < lines; ++line) {
      block.row[block.count] = row;
      block.line[block.count++] = line;
      if (block.count < kNativeLanes && !(row == rows - 1 && line == lines - 1)) continue;
      f(block);
      block.count = 0;
    }
  }
}

// Writes lane i to out(i), for the lines of a block.
template <class F>
DEEPPCR_INLINE void ScatterLanes(Wide a, int count, const F& out) {
  alignas(64) float lanes[kNativeLanes];
  Store(lanes, a);
  for (int i = 0; i < count; ++i) *out(i) = lanes[i];
}

// (x - mean) / sqrt(mean square + epsilon); the mean is 0 in ScaleToUnit. Two passes, as in
// Normalize of hidden_vectors.h.
DEEPPCR_INLINE void NormLines(const AlongArgs& a, const LineBlock& block) {
  const Wide size = All(static_cast<float>(a.length));
  const auto in = [&](int i) { return a.in + block.row[i] * a.in_n + block.line[i] * a.length; };
  const auto out = [&](int i) { return a.out + block.row[i] * a.out_n + block.line[i] * a.length; };
  Wide mean = All(0.0F);
  if (a.op == program::Op::kStandardize)
    mean = SumsOfLines(block.count, [&](int i) { return SumVectorsOf(in(i), a.length); }) / size;
  const Wide squares = SumsOfLines(block.count, [&](int i) {
    const float* x = in(i);
    float* y = out(i);
    const Wide centre = BroadcastLane(mean, i);
    return SumVectors(0, a.length, [&](Wide sum, int64_t at, int count) {
      const Wide centred = First(LoadFirst(x + at, count) - centre, count);
      StoreFirst(y + at, centred, count);
      return Fma(centred, centred, sum);
    });
  });
  const Wide variance = squares / size;
  // The second term makes a NaN of a variance that overflowed: zeros would hide it.
  const Wide inverse = All(1.0F) / Sqrt(variance + All(a.epsilon)) + All(0.0F) * variance;
  for (int i = 0; i < block.count; ++i) {
    float* y = out(i);
    const Wide factor = BroadcastLane(inverse, i);
    ForLine(y, a.length,
            [&](Wide v, int64_t at, int count) { StoreFirst(y + at, v * factor, count); });
  }
  const auto moments = [&](int i) {
    return a.moments + block.row[i] * a.moments_n + 2 * block.line[i];
  };
  ScatterLanes(mean, block.count, moments);
  ScatterLanes(inverse, block.count, [&](int i) { return moments(i) + 1; });
}

DEEPPCR_INLINE void SoftmaxLines(const AlongArgs& a, const LineBlock& block) {
  const auto out = [&](int i) { return a.out + block.row[i] * a.out_n + block.line[i] * a.length; };
  const Wide sums = SumsOfLines(block.count, [&](int i) {
    const float* x = a.in + block.row[i] * a.in_n + block.line[i] * a.length;
    float* y = out(i);
    const Wide largest = All(LargestOfLine(x, a.length));
    return SumVectors(0, a.length, [&](Wide before, int64_t at, int count) {
      const Wide e = First(Exp(LoadFirst(x + at, count) - largest), count);
      StoreFirst(y + at, e, count);
      return before + e;
    });
  });
  const Wide inverse = All(1.0F) / sums;
  for (int i = 0; i < block.count; ++i) {
    float* y = out(i);
    const Wide factor = BroadcastLane(inverse, i);
    ForLine(y, a.length,
            [&](Wide v, int64_t at, int count) { StoreFirst(y + at, v * factor, count); });
  }
}

// A number of each line: its sum, its mean or its largest.
DEEPPCR_INLINE void ReduceLines(const AlongArgs& a, const LineBlock& block) {
  const auto in = [&](int i) { return a.in + block.row[i] * a.in_n + block.line[i] * a.length; };
  const auto out = [&](int i) { return a.out + block.row[i] * a.out_n + block.line[i]; };
  if (a.op == program::Op::kLargest) {
    for (int i = 0; i < block.count; ++i) *out(i) = LargestOfLine(in(i), a.length);
    return;
  }
  Wide sums = SumsOfLines(block.count, [&](int i) { return SumVectorsOf(in(i), a.length); });
  if (a.op == program::Op::kMean) sums = sums / All(static_cast<float>(a.length));
  ScatterLanes(sums, block.count, out);
}

inline void Along(const AlongArgs& a) {
  ForLineBlocks(a.rows, a.lines, [&](const LineBlock& block) {
    switch (a.op) {
      case program::Op::kSum:
      case program::Op::kMean:
      case program::Op::kLargest:
        return ReduceLines(a, block);
      case program::Op::kSoftmax:
        return SoftmaxLines(a, block);
      default:
        return NormLines(a, block);
    }
  });
}

// A block of lines of tangents: its rows are columns.
struct TangentBlock {
  const AlongTangentArgs& a;
  const LineBlock& block;

  DEEPPCR_INLINE const float* Tangent(int i) const {
    return a.tangents + block.row[i] * a.in_n + block.line[i] * a.length;
  }
  DEEPPCR_INLINE const float* Made(int i) const { return a.out + block.line[i] * a.length; }
  DEEPPCR_INLINE float* Along(int i) const {
    return a.results + block.row[i] * a.out_n + block.line[i] * a.length;
  }
  DEEPPCR_INLINE float* Reduced(int i) const {
    return a.results + block.row[i] * a.out_n + block.line[i];
  }
  DEEPPCR_INLINE Wide Sums() const {
    return SumsOfLines(block.count, [&](int i) { return SumVectorsOf(Tangent(i), a.length); });
  }
  // Products of the tangents with what was made.
  DEEPPCR_INLINE Wide Dots() const {
    return SumsOfLines(block.count,
                       [&](int i) { return DotVectorsOf(Made(i), Tangent(i), a.length); });
  }
};

DEEPPCR_INLINE void NormTangents(const TangentBlock& tangents) {
  const AlongTangentArgs& a = tangents.a;
  const Wide size = All(static_cast<float>(a.length));
  const Wide means = a.op == program::Op::kStandardize ? tangents.Sums() / size : All(0.0F);
  const Wide dots = tangents.Dots() / size;
  for (int i = 0; i < tangents.block.count; ++i) {
    const float* y = tangents.Made(i);
    float* out = tangents.Along(i);
    const Wide mean = BroadcastLane(means, i), along = BroadcastLane(dots, i);
    const Wide inverse = All(a.moments[2 * tangents.block.line[i] + 1]);
    ForLine(tangents.Tangent(i), a.length, [&](Wide v, int64_t at, int count) {
      const Wide of_y = LoadFirst(y + at, count);
      StoreFirst(out + at, FmaNegative(of_y, along, v - mean) * inverse, count);
    });
  }
}

DEEPPCR_INLINE void SoftmaxTangents(const TangentBlock& tangents) {
  const Wide dots = tangents.Dots();
  for (int i = 0; i < tangents.block.count; ++i) {
    const float* y = tangents.Made(i);
    float* out = tangents.Along(i);
    const Wide along = BroadcastLane(dots, i);
    ForLine(tangents.Tangent(i), tangents.a.length, [&](Wide v, int64_t at, int count) {
      StoreFirst(out + at, LoadFirst(y + at, count) * (v - along), count);
    });
  }
}

// Tangent of the element that is the largest.
DEEPPCR_INLINE float OfLargest(const float* x, float largest, int64_t length, const float* t) {
  for (int64_t i = 0; i < length; ++i) {
    if (x[i] == largest) return t[i];
  }
  return t[0];
}

DEEPPCR_INLINE void ReduceTangents(const TangentBlock& tangents) {
  const AlongTangentArgs& a = tangents.a;
  const LineBlock& block = tangents.block;
  if (a.op == program::Op::kLargest) {
    for (int i = 0; i < block.count; ++i) {
      const int64_t line = block.line[i];
      *tangents.Reduced(i) =
          OfLargest(a.in + line * a.length, a.out[line], a.length, tangents.Tangent(i));
    }
    return;
  }
  Wide sums = tangents.Sums();
  if (a.op == program::Op::kMean) sums = sums / All(static_cast<float>(a.length));
  ScatterLanes(sums, block.count, [&](int i) { return tangents.Reduced(i); });
}

inline void AlongTangent(const AlongTangentArgs& a) {
  ForLineBlocks(a.columns, a.lines, [&](const LineBlock& block) {
    const TangentBlock tangents = {a, block};
    switch (a.op) {
      case program::Op::kSum:
      case program::Op::kMean:
      case program::Op::kLargest:
        return ReduceTangents(tangents);
      case program::Op::kSoftmax:
        return SoftmaxTangents(tangents);
      default:
        return NormTangents(tangents);
    }
  });
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_ALONG_H_
