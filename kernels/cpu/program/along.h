// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_ALONG_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_ALONG_H_

// Reductions and operations along an axis, a line at a time, and their tangents. A line is read in
// whole vectors and a rest of single floats, summed by halves, which keeps the rounding of long
// sums small: one order for every caller.

#include "kernels/cpu/diffusion/hidden_vectors.h"
#include "kernels/cpu/program/kernels.h"
#include "kernels/cpu/simd/vector_math.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// The first `count` floats, and zeros: what lies behind the last line is not for reading.
DEEPPCR_INLINE Wide LoadFirst(const float* x, int count) {
  if (count == kNativeLanes) return LoadWide(x);
  alignas(64) float first[kNativeLanes] = {};
  for (int i = 0; i < count; ++i) first[i] = x[i];
  return LoadWide(first);
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

DEEPPCR_INLINE void StoreFirst(float* to, Wide a, int count) {
  if (count == kNativeLanes) return Store(to, a);
  for (int i = 0; i < count; ++i) to[i] = a.v[i];
}

// Zero in the lanes behind the first `count`.
DEEPPCR_INLINE Wide First(Wide a, int count) {
  for (int i = count; i < kNativeLanes; ++i) a.v[i] = 0;
  return a;
}

// Floats that are added one vector after another.
inline constexpr int64_t kFloatsInARow = 64;

// The sum over [begin, end) of a line: add(sum, offset, floats that count) adds a vector to it.
template <class F>
Wide SumVectors(int64_t begin, int64_t end, const F& add) {
  if (end - begin > kFloatsInARow) {
    const int64_t middle = begin + (end - begin) / 2 / kNativeLanes * kNativeLanes;
    const Wide first = SumVectors(begin, middle, add);
    return first + SumVectors(middle, end, add);
  }
  Wide sum = All(0.0F);
  int64_t at = begin;
  for (; at + kNativeLanes <= end; at += kNativeLanes) sum = add(sum, at, kNativeLanes);
  return at == end ? sum : add(sum, at, static_cast<int>(end - at));
}

DEEPPCR_INLINE float SumLine(const float* x, int64_t length) {
  return SumLanes(SumVectors(
      0, length, [&](Wide sum, int64_t at, int count) { return sum + LoadFirst(x + at, count); }));
}

DEEPPCR_INLINE float DotLine(const float* x, const float* y, int64_t length) {
  return SumLanes(SumVectors(0, length, [&](Wide sum, int64_t at, int count) {
    return Fma(LoadFirst(x + at, count), LoadFirst(y + at, count), sum);
  }));
}

DEEPPCR_INLINE float LargestOfLine(const float* x, int64_t length) {
  float largest = x[0];
  for (int64_t i = 1; i < length; ++i) largest = x[i] > largest || x[i] != x[i] ? x[i] : largest;
  return largest;
}

// (x - mean) / sqrt(mean square + epsilon); the mean is 0 in ScaleToUnit. Two passes, as in
// Normalize of hidden_vectors.h.
DEEPPCR_INLINE void NormLine(const AlongArgs& a, const float* x, float* y, float* moments) {
  const auto size = static_cast<float>(a.length);
  const float mean = a.op == program::Op::kStandardize ? SumLine(x, a.length) / size : 0.0F;
  const Wide squares = SumVectors(0, a.length, [&](Wide sum, int64_t at, int count) {
    const Wide centred = First(LoadFirst(x + at, count) - All(mean), count);
    StoreFirst(y + at, centred, count);
    return Fma(centred, centred, sum);
  });
  const float variance = SumLanes(squares) / size;
  // The second term makes a NaN of a variance that overflowed: zeros would hide it.
  const float inverse = 1.0F / SquareRoot(variance + a.epsilon) + 0.0F * variance;
  ForLine(y, a.length,
          [&](Wide v, int64_t at, int count) { StoreFirst(y + at, v * All(inverse), count); });
  moments[0] = mean;
  moments[1] = inverse;
}

DEEPPCR_INLINE void SoftmaxLine(const float* x, int64_t length, float* y) {
  const Wide largest = All(LargestOfLine(x, length));
  const Wide sum = SumVectors(0, length, [&](Wide before, int64_t at, int count) {
    const Wide e = First(Exp(LoadFirst(x + at, count) - largest), count);
    StoreFirst(y + at, e, count);
    return before + e;
  });
  const Wide inverse = All(1.0F / SumLanes(sum));
  ForLine(y, length,
          [&](Wide v, int64_t at, int count) { StoreFirst(y + at, v * inverse, count); });
}

inline void Along(const AlongArgs& a) {
  for (int64_t line = 0; line < a.lines; ++line) {
    const float* x = a.in + line * a.length;
    switch (a.op) {
      case program::Op::kSum:
        a.out[line] = SumLine(x, a.length);
        break;
      case program::Op::kMean:
        a.out[line] = SumLine(x, a.length) / static_cast<float>(a.length);
        break;
      case program::Op::kLargest:
        a.out[line] = LargestOfLine(x, a.length);
        break;
      case program::Op::kSoftmax:
        SoftmaxLine(x, a.length, a.out + line * a.length);
        break;
      default:
        NormLine(a, x, a.out + line * a.length, a.moments + 2 * line);
    }
  }
}

DEEPPCR_INLINE void NormTangent(const AlongTangentArgs& a, const float* y, const float* moments,
                                const float* t, float* out) {
  const auto size = static_cast<float>(a.length);
  const Wide mean = All(a.op == program::Op::kStandardize ? SumLine(t, a.length) / size : 0.0F);
  const Wide along = All(DotLine(y, t, a.length) / size);
  ForLine(t, a.length, [&](Wide v, int64_t at, int count) {
    const Wide of_y = LoadFirst(y + at, count);
    StoreFirst(out + at, FmaNegative(of_y, along, v - mean) * All(moments[1]), count);
  });
}

DEEPPCR_INLINE void SoftmaxTangent(const float* y, int64_t length, const float* t, float* out) {
  const float along = DotLine(y, t, length);
  for (int64_t i = 0; i < length; ++i) out[i] = y[i] * (t[i] - along);
}

// Tangent of the element that is the largest.
DEEPPCR_INLINE float OfLargest(const float* x, float largest, int64_t length, const float* t) {
  for (int64_t i = 0; i < length; ++i) {
    if (x[i] == largest) return t[i];
  }
  return t[0];
}

inline void AlongTangent(const AlongTangentArgs& a) {
  for (int64_t j = 0; j < a.columns; ++j) {
    for (int64_t line = 0; line < a.lines; ++line) {
      const float* x = a.in + line * a.length;
      const float* t = a.tangents + j * a.in_n + line * a.length;
      float* reduced = a.results + j * a.out_n + line;
      float* along = a.results + j * a.out_n + line * a.length;
      const float* y = a.out + line * a.length;
      switch (a.op) {
        case program::Op::kSum:
          *reduced = SumLine(t, a.length);
          break;
        case program::Op::kMean:
          *reduced = SumLine(t, a.length) / static_cast<float>(a.length);
          break;
        case program::Op::kLargest:
          *reduced = OfLargest(x, a.out[line], a.length, t);
          break;
        case program::Op::kSoftmax:
          SoftmaxTangent(y, a.length, t, along);
          break;
        default:
          NormTangent(a, y, a.moments + 2 * line, t, along);
      }
    }
  }
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_ALONG_H_
