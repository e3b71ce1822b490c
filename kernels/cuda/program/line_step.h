// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_LINE_STEP_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_LINE_STEP_H_

// Instructions along an axis, by a warp for each line of each row: reductions, norms and softmax.
// A tangent's warp forms what it needs of the state's line by itself. Sums have the order that the
// lanes of a warp give them, whatever lines and rows are beside them.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/math/layer_norm.h"
#include "kernels/cuda/math/rounding_source.h"
#include "kernels/cuda/math/slope_near.h"
#include "kernels/cuda/program/element_step.h"
#include "kernels/cuda/program/frame.h"
#include "kernels/cuda/program/view.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

// The largest of f(0), ..., f(length - 1) as `better` says: better(a, b) is true where a is to be
// taken before b. Known to all lanes.
template <class Context, class F, class Better>
DEEPPCR_DEVICE float BestByWarp(Context& context, int length, const F& f, const Better& better) {
  float best = f(context.lane() < length ? context.lane() : 0);
  for (int i = context.lane() + kWarpSize; i < length; i += kWarpSize) {
    const float x = f(i);
    if (better(x, best)) best = x;
  }
  DEEPPCR_UNROLL
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    const float x = context.ShuffleXor(best, mask);
    if (better(x, best)) best = x;
  }
  return context.Shuffle(best, 0);
}

// A line of an instruction's operand, and of its result unless the instruction is a reduction.
// `Code` says which operations there are (step.h).
template <class Context, class Code>
class LineStep {
 public:
  DEEPPCR_DEVICE LineStep(Context& context, const Frame& frame, const ProgramRows& rows,
                          const ProgramStepView& step, const ProgramInstruction& instruction,
                          int64_t salt, int line)
      : context_(context),
        rows_(rows),
        instruction_(instruction),
        salt_(salt),
        draw_(step.draw),
        line_(line),
        length_(instruction.length),
        first_(line / instruction.inner * instruction.length * instruction.inner +
               line % instruction.inner),
        operand_(frame, step, instruction.operands[0]),
        result_(frame[instruction.result]) {}

  // Calls give(i, g) for the elements i of the operand's line, with g what the cotangent in row r
  // of the result gives it. The Jacobians of norms and of softmax are symmetric: of y, the result,
  // inverse (1 - 1 1^T / n - y y^T / n), and diag(y) - y y^T.
  template <class F>
  DEEPPCR_DEVICE void GoBack(int r, const F& give) const {
    const Op op = instruction_.op;
    const auto g = [&](int i) { return result_(r, At(i)); };
    const auto y = [&](int i) { return result_(0, At(i)); };
    if (op == Op::kSum || op == Op::kMean) {
      const float share = result_(r, line_) / Divisor();
      ForLine([&](int i) { give(At(i), share); });
    } else if (op == Op::kLargest) {
      // A NaN is none of them.
      const float largest = result_(0, line_);
      const int at = FirstOf(largest);
      ForLine([&](int i) { give(At(i), i == at && X(i) == largest ? result_(r, line_) : 0.0F); });
    } else if (op == Op::kSoftmax) {
      const float along = SumOf([&](int i) { return y(i) * g(i); });
      ForLine([&](int i) { give(At(i), y(i) * (g(i) - along)); });
    } else {
      const float inverse = Norm().inverse;
      ForRest(y, g, [&](int i, float rest) { give(At(i), rest * inverse); });
    }
  }
  // Makes row r < rows.count of the line; the state's row with the size of its rounding.
  DEEPPCR_DEVICE void Make(int r) const {
    const Op op = instruction_.op;
    if constexpr (Code::Has(Op::kSum) || Code::Has(Op::kMean)) {
      if (op == Op::kSum || op == Op::kMean) return r == 0 ? Sum() : TangentOfSum(r);
    }
    if constexpr (Code::Has(Op::kLargest)) {
      if (op == Op::kLargest) return r == 0 ? Largest() : TangentOfLargest(r);
    }
    if constexpr (Code::Has(Op::kSoftmax)) {
      if (op == Op::kSoftmax) return Softmax(r);
    }
    if constexpr (Code::Has(Op::kStandardize) || Code::Has(Op::kScaleToUnit)) Normalize(r);
  }

 private:
  using Op = program::Op;

  DEEPPCR_DEVICE int At(int i) const { return first_ + i * instruction_.inner; }
  DEEPPCR_DEVICE float X(int i) const { return operand_[At(i)]; }
  DEEPPCR_DEVICE float T(int r, int i) const { return operand_.Of(r, At(i)); }
  DEEPPCR_DEVICE bool IsProbe(int r) const { return r >= 1 && r <= rows_.probes; }
  template <class F>
  DEEPPCR_DEVICE float SumOf(const F& f) const {
    return SumByWarp(context_, length_, f);
  }
  template <class F>
  DEEPPCR_DEVICE void ForLine(const F& f) const {
    for (int i = context_.lane(); i < length_; i += kWarpSize) f(i);
  }
  DEEPPCR_DEVICE float Divisor() const {
    return instruction_.op == Op::kMean ? static_cast<float>(length_) : 1.0F;
  }
  // Writes the number that a reduction makes of the line, by one lane.
  DEEPPCR_DEVICE void WriteNumber(int r, float value) const {
    if (context_.lane() == 0) result_(r, line_) = value;
  }
  // The size of the rounding of an element of the result.
  DEEPPCR_DEVICE float SizeOf(float y) const { return instruction_.ulps * fabsf(y); }
  // Writes element i of row r, with its rounding if it is that of a probe, of the result y.
  DEEPPCR_DEVICE void WriteTangent(int r, int i, float y, float tangent) const {
    const float source = IsProbe(r) ? RoundingSource(SizeOf(y), r - 1, At(i), salt_) : 0.0F;
    result_(r, At(i)) = tangent + source;
  }
  DEEPPCR_DEVICE void WriteState(int i, float y) const {
    result_(0, At(i)) = y;
    if (rows_.probes > 0) result_(rows_.sizes(), At(i)) = SizeOf(y);
  }

  // ---- Reductions
  // The terms of sums round as they are added up, however little is left of them.
  DEEPPCR_DEVICE float SizeOfSum(float y) const {
    const float squares = SumOf([&](int i) { return X(i) * X(i); });
    return SizeOf(y) + sqrtf(squares) / Divisor();
  }
  DEEPPCR_DEVICE float SumOfLine() const {
    return SumOf([&](int i) { return X(i); }) / Divisor();
  }
  DEEPPCR_DEVICE void Sum() const {
    const float y = SumOfLine();
    WriteNumber(0, y);
    if (rows_.probes > 0) WriteNumber(rows_.sizes(), SizeOfSum(y));
  }
  DEEPPCR_DEVICE void TangentOfSum(int r) const {
    float t = SumOf([&](int i) { return T(r, i); }) / Divisor();
    if (IsProbe(r)) t += RoundingSource(SizeOfSum(SumOfLine()), r - 1, line_, salt_);
    WriteNumber(r, t);
  }

  // The largest and the smallest of a line; NaN where one of them is.
  template <class F>
  DEEPPCR_DEVICE float LargestOf(const F& f) const {
    return BestByWarp(context_, length_, f,
                      [](float a, float b) { return a > b || (a != a && b == b); });
  }
  template <class F>
  DEEPPCR_DEVICE float SmallestOf(const F& f) const {
    return BestByWarp(context_, length_, f,
                      [](float a, float b) { return a < b || (a != a && b == b); });
  }
  DEEPPCR_DEVICE float LargestOfLine() const {
    return LargestOf([&](int i) { return X(i); });
  }
  // The first element that is `x`; 0 where none is.
  DEEPPCR_DEVICE int FirstOf(float x) const {
    const float none = static_cast<float>(length_);
    const float first = SmallestOf([&](int i) { return X(i) == x ? static_cast<float>(i) : none; });
    return first < none ? static_cast<int>(first) : 0;
  }
  DEEPPCR_DEVICE float ReachAt(int i) const {
    float probe = 0.0F;
    for (int v = 1; v <= rows_.probes; ++v) probe = LargerOrNan(probe, fabsf(T(v, i)));
    return SlopeReach(T(rows_.sizes(), i), probe);
  }
  DEEPPCR_DEVICE void Largest() const {
    WriteNumber(0, LargestOfLine());
    if (rows_.probes == 0) return;
    WriteNumber(rows_.sizes(), LargestOf([&](int i) { return T(rows_.sizes(), i); }));
  }
  // The tangent of the first element that is the largest. Where others could be it within their
  // rounding, a probe goes beyond those of all of them, as in ProbesOfEither (element_step.h): one
  // of them would cancel in a later difference with that element.
  DEEPPCR_DEVICE void TangentOfLargest(int r) const {
    const float largest = LargestOfLine();
    const int at = FirstOf(largest);
    if (!IsProbe(r)) return WriteNumber(r, T(r, at));
    const float reach = LargestOf([&](int i) { return X(i) == largest ? ReachAt(i) : 0.0F; });
    const auto near = [&](int v, int i) {
      return largest - X(i) > reach + ReachAt(i) ? T(v, at) : T(v, i);
    };
    float between = 0.0F, high = 0.0F, low = 0.0F;
    for (int v = 1; v <= rows_.probes; ++v) {
      const float above = LargestOf([&](int i) { return near(v, i); });
      const float below = SmallestOf([&](int i) { return near(v, i); });
      between = LargerOrNan(between, above - below);
      if (v == r) high = above, low = below;
    }
    const int v = r - 1;
    WriteNumber(r, fmaf(0.5F, high, fmaf(0.5F, low, OffTheMiddle(between, v, line_, draw_))));
  }

  // ---- Softmax
  DEEPPCR_DEVICE void Softmax(int r) const {
    const float largest = LargestOfLine();
    const auto power = [&](int i) { return expf(X(i) - largest); };
    const float inverse = 1.0F / SumOf(power);
    const auto y = [&](int i) { return power(i) * inverse; };
    if (r == 0) return ForLine([&](int i) { WriteState(i, y(i)); });
    const float along = SumOf([&](int i) { return y(i) * T(r, i); });
    ForLine([&](int i) { WriteTangent(r, i, y(i), y(i) * (T(r, i) - along)); });
  }

  // ---- Norms
  // (x - mean) / sqrt(mean square + epsilon); the mean is 0 in kScaleToUnit.
  DEEPPCR_DEVICE LayerNorm Norm() const {
    const auto x = [&](int i) { return X(i); };
    if (instruction_.op == Op::kStandardize)
      return NormOf(context_, length_, instruction_.epsilon, x);
    const float size = static_cast<float>(length_);
    const float square = SumOf([&](int i) { return X(i) * X(i); }) / size;
    // The second term makes a NaN of a square that overflowed: zeros would hide it.
    return {0.0F, 1.0F / sqrtf(square + instruction_.epsilon) + 0.0F * square};
  }
  DEEPPCR_DEVICE void Normalize(int r) const {
    const LayerNorm norm = Norm();
    const auto y = [&](int i) { return norm.Of(X(i)); };
    if (r == 0) return ForLine([&](int i) { WriteState(i, y(i)); });
    // The rounding of the mean, which moves all elements of a line alike.
    const float shift = IsProbe(r) && Centres()
                            ? RoundingSource(2.0F * norm.SizeOfMean(), r - 1, -1 - line_, salt_)
                            : 0.0F;
    ForRest(
        y, [&](int i) { return T(r, i); },
        [&](int i, float rest) { WriteTangent(r, i, y(i), fmaf(rest, norm.inverse, shift)); });
  }
  DEEPPCR_DEVICE bool Centres() const { return instruction_.op == Op::kStandardize; }
  // Calls f(i, rest) with what a norm, whose result is y, leaves of t(i) before it is scaled.
  template <class Y, class T, class F>
  DEEPPCR_DEVICE void ForRest(const Y& y, const T& t, const F& f) const {
    const float size = static_cast<float>(length_);
    const float mean = Centres() ? SumOf(t) / size : 0.0F;
    const float along = SumOf([&](int i) { return y(i) * t(i); }) / size;
    ForLine([&](int i) { f(i, t(i) - mean - y(i) * along); });
  }

  Context& context_;
  const ProgramRows& rows_;
  const ProgramInstruction& instruction_;
  const int64_t salt_, draw_;
  const int line_, length_;
  const int first_;  // element of the operand where the line begins
  const OperandValue operand_;
  const FrameVectors result_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_LINE_STEP_H_
