// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_ELEMENT_STEP_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_ELEMENT_STEP_H_

// Instructions that make element i of their result from element i of their operands, by one thread
// for all rows: the state, then its probes, then columns of the Jacobian, and behind them the size
// of the state's rounding. kernels/cpu/program/executor_rounding.cc says what sizes are, and how
// probes go through what bends within their reach.

#include <math.h>

#include <cstdint>

#include "kernels/cuda/diffusion/tangent.h"
#include "kernels/cuda/math/rounding_source.h"
#include "kernels/cuda/math/slope_near.h"
#include "kernels/cuda/program/elementwise.h"
#include "kernels/cuda/program/frame.h"
#include "kernels/cuda/program/view.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

// Rows of a step: a state, its probes if they are carried, and columns.
struct ProgramRows {
  int count;   // the state and all tangents
  int probes;  // kNumProbes or 0

  // The row that holds sizes of roundings, where probes are carried.
  DEEPPCR_DEVICE int sizes() const { return count; }
  DEEPPCR_DEVICE int written() const { return count + (probes > 0 ? 1 : 0); }
};

// Size, in units of 2^-24, of a value that may be one or zero.
inline constexpr float kJumpSize = 0x1p24F;

// From 3/4 to 5/4 of the difference off the middle; two probes after each other differ in the side,
// so that the larger of the values that could be met always is.
DEEPPCR_DEVICE float OffTheMiddle(float between, int v, int i, int64_t draw) {
  return (v % 2 == 0 ? 0x1p24F : -0x1p24F) * RoundingSource(between, v / 2 * 2, i, draw);
}

// The rounding of gelu and gelu_tanh at a, as program::GeluTanhUlps: gelu of a negative number is
// nearly a e^(-a^2 / 2), whose exponent rounds by 1.5 units of its own, until the result is zero.
DEEPPCR_DEVICE float UlpsAt(program::Op op, float ulps, float a) {
  if (op == program::Op::kGeluTanh) return program::GeluTanhUlps(ulps, a);
  if (!(a < 0.0F)) return ulps;
  return fminf(fmaxf(ulps, fmaf(1.5F * a, a, 8.0F)), 330.0F);
}

// What instructions on elements work on, in a step.
struct ElementPlace {
  Frame frame;
  ProgramRows rows;
  const ProgramStepView& step;
  int64_t salt;  // of instruction 0: each has its own signs of probes
  float clip_range;
};

// One element of an instruction whose operands are at most three. `Code` says what instruction it
// may be (step.h), so that a compiler that knows which it is never sees the code of others; kAlone:
// there are no tangents.
template <class Code, bool kAlone>
class ElementStep {
 public:
  // Of instruction `at`.
  DEEPPCR_DEVICE ElementStep(const ElementPlace& place, const ProgramInstruction& instruction,
                             int at)
      : rows_(place.rows),
        step_(place.step),
        instruction_(instruction),
        salt_(place.salt + at),
        clip_range_(place.clip_range),
        result_(place.frame[instruction.result]),
        operands_{{place.frame, place.step, instruction.operands[0]},
                  {place.frame, place.step, instruction.operands[1]},
                  {place.frame, place.step, instruction.operands[2]}} {}

  // Makes element i of all rows; those beyond the result's size are zero.
  DEEPPCR_DEVICE void Make(int i) const {
    if (i >= instruction_.result.size) {
      for (int r = 0; r < rows_.written(); ++r) result_(r, i) = 0.0F;
      return;
    }
    if constexpr (Code::Has(program::OpKind::kReverseStep)) {
      if (instruction_.kind == program::OpKind::kReverseStep) return Reverse(i);
    }
    if constexpr (Code::Has(program::OpKind::kElementwise)) Elementwise(i);
  }

 private:
  using Op = program::Op;

  DEEPPCR_DEVICE void Elementwise(int i) const {
    float a[kMostProgramOperands];
    DEEPPCR_UNROLL
    for (int k = 0; k < kMostProgramOperands; ++k)
      a[k] = k < instruction_.num_operands ? operands_[k][i] : 0.0F;
    const float value = ValueOf(Code::OpOf(instruction_), a[0], a[1], a[2]);
    if constexpr (!kAlone) Tangents(i, a, value);
    result_(0, i) = value;
  }
  DEEPPCR_DEVICE void Tangents(int i, const float (&a)[kMostProgramOperands], float value) const {
    if constexpr (Code::Has(Op::kSelect)) {
      if (instruction_.op == Op::kSelect) return TangentsOfSelect(i, a);
    }
    if constexpr (Code::HasOfOperands(1)) {
      if (instruction_.num_operands == 1) return TangentsOfOne(i, a[0], value);
    }
    if constexpr (Code::HasOfOperands(2)) TangentsOfTwo(i, a, value);
  }
  DEEPPCR_DEVICE void TangentsOfOne(int i, float a, float value) const {
    const float slope = SlopeOf(Code::OpOf(instruction_), a);
    for (int r = 1 + rows_.probes; r < rows_.count; ++r)
      result_(r, i) = program::MovedBy(slope, operands_[0].Of(r, i));
    if (rows_.probes > 0) ProbesOfOne(i, a, slope, value);
  }
  DEEPPCR_DEVICE void TangentsOfTwo(int i, const float (&a)[kMostProgramOperands],
                                    float value) const {
    const TwoSlopes slopes = SlopesOf(Code::OpOf(instruction_), a[0], a[1]);
    for (int r = 1 + rows_.probes; r < rows_.count; ++r) result_(r, i) = Carried(slopes, r, i);
    if (rows_.probes > 0) ProbesOfTwo(i, a, slopes, value);
  }

  DEEPPCR_DEVICE float Carried(const TwoSlopes& slopes, int r, int i) const {
    const float x = operands_[0].moves() ? operands_[0].Of(r, i) : 0.0F;
    const float y = operands_[1].moves() ? operands_[1].Of(r, i) : 0.0F;
    const float first = program::MovedBy(slopes.first, x);
    return slopes.second == 0.0F || y == 0.0F ? first : fmaf(slopes.second, y, first);
  }
  DEEPPCR_DEVICE float SizeOf(int k, int i) const { return operands_[k].Of(rows_.sizes(), i); }
  DEEPPCR_DEVICE float LargestProbeOf(int k, int i) const {
    float largest = 0.0F;
    for (int v = 1; v <= rows_.probes; ++v)
      largest = LargerOrNan(largest, fabsf(operands_[k].Of(v, i)));
    return largest;
  }
  // The rounding of an exact operation is that which its operands bring.
  DEEPPCR_DEVICE float SizeOfValue(int i, float value) const {
    if (instruction_.ulps > 0.0F) return instruction_.ulps * fabsf(value);
    float size = 0.0F;
    DEEPPCR_UNROLL
    for (int k = 0; k < kMostProgramOperands; ++k)
      if (k < instruction_.num_operands) size = fmaxf(size, SizeOf(k, i));
    return size;
  }
  // Writes the size of element i, and its probes of(v) with the rounding that they pick up.
  template <class F>
  DEEPPCR_DEVICE void WriteProbes(int i, float size, bool rounds, const F& of) const {
    float probes[kNumProbes];
    DEEPPCR_UNROLL
    for (int v = 0; v < kNumProbes; ++v) {
      probes[v] = of(v);
      if (rounds) probes[v] += RoundingSource(size, v, i, salt_);
    }
    DEEPPCR_UNROLL
    for (int v = 0; v < kNumProbes; ++v) result_(1 + v, i) = probes[v];
    result_(rows_.sizes(), i) = size;
  }

  // Of a select: the tangent of the side that was chosen, whatever the other one is; a probe of the
  // condition, of which it is not sure, adds what a change of side would change.
  DEEPPCR_DEVICE float OfSelect(int r, int i, const float (&a)[3]) const {
    const float t = operands_[0].Of(r, i);
    const float side = a[0] != 0.0F ? operands_[1].Of(r, i) : operands_[2].Of(r, i);
    return t != 0.0F ? side + t * (a[1] - a[2]) : side;
  }
  DEEPPCR_DEVICE void TangentsOfSelect(int i, const float (&a)[3]) const {
    for (int r = 1 + rows_.probes; r < rows_.count; ++r) result_(r, i) = OfSelect(r, i, a);
    if (rows_.probes == 0) return;
    const float size = SizeOfValue(i, 0.0F);
    WriteProbes(i, size, false, [&](int v) { return OfSelect(1 + v, i, a); });
  }

  DEEPPCR_DEVICE void ProbesOfOne(int i, float a, float slope, float value) const {
    const Op op = instruction_.op;
    const bool rounds = instruction_.ulps > 0.0F;
    const float size = op == Op::kGelu || op == Op::kGeluTanh
                           ? UlpsAt(op, instruction_.ulps, a) * fabsf(value)
                           : SizeOfValue(i, value);
    const auto probe = [&](int v) { return operands_[0].Of(1 + v, i); };
    if constexpr (Code::Has(Op::kNegate)) {
      if (op == Op::kNegate)
        return WriteProbes(i, size, rounds, [&](int v) { return slope * probe(v); });
    }
    const float largest = LargestProbeOf(0, i);
    if constexpr (Code::Has(Op::kAbs)) {
      // Within the rounding of zero either side may be met. The probe takes a sign of its own and
      // half as much again, so that no sum with the operand cancels in it, as x + |x| would.
      const bool either = fabsf(a) <= SlopeReach(SizeOf(0, i), largest);
      if (op == Op::kAbs)
        return WriteProbes(i, size, rounds, [&](int v) {
          const float sign = RoundingSource(1.0F, v, i, step_.draw);
          return either ? copysignf(1.5F * largest, sign) : slope * probe(v);
        });
    }
    if constexpr (Code::HasBeside(Op::kNegate, Op::kAbs)) ProbesOfCurve(i, a, slope, size, largest);
  }
  // Where the slope bends, a probe takes the largest that is met within its reach.
  DEEPPCR_DEVICE void ProbesOfCurve(int i, float a, float slope, float size, float largest) const {
    const auto op = Code::OpOf(instruction_);
    const float reach = ReachOf(SizeOf(0, i), largest);
    const float below = SlopeOf(op, a - fmaxf(fminf(a, reach), -reach));
    const float above = SlopeOf(op, a + reach);
    const SlopeRange near = {fminf(fminf(slope, below), above), fmaxf(fmaxf(slope, below), above)};
    WriteProbes(i, size, instruction_.ulps > 0.0F, [&](int v) {
      const float probe = operands_[0].Of(1 + v, i);
      return probe == 0.0F ? 0.0F : near.Carry(probe, 0.0F);
    });
  }

  DEEPPCR_DEVICE void ProbesOfTwo(int i, const float (&a)[3], const TwoSlopes& slopes,
                                  float value) const {
    const Op op = instruction_.op;
    const auto carried = [&](int v) { return Carried(slopes, 1 + v, i); };
    if constexpr (Code::Has(Op::kMaximum) || Code::Has(Op::kMinimum)) {
      if (op == Op::kMaximum || op == Op::kMinimum) return ProbesOfEither(i, a, slopes);
    }
    if constexpr (Code::Has(Op::kLess) || Code::Has(Op::kEqual)) {
      // A comparison may turn out otherwise where its operands are within their rounding.
      if (op == Op::kLess || op == Op::kEqual) {
        float reach = 0.0F;
        DEEPPCR_UNROLL
        for (int k = 0; k < 2; ++k)
          if (operands_[k].moves()) reach += SlopeReach(SizeOf(k, i), LargestProbeOf(k, i));
        return WriteProbes(i, fabsf(a[0] - a[1]) > reach ? 0.0F : kJumpSize, true, carried);
      }
    }
    if constexpr (Code::HasBeside(Op::kMaximum, Op::kMinimum, Op::kLess, Op::kEqual))
      WriteProbes(i, SizeOfValue(i, value), instruction_.ulps > 0.0F, carried);
  }
  // Where the two may change places within their rounding, a probe goes beyond either one's, to a
  // side of its own (EitherArgs of kernels/cpu/program/kernels.h).
  DEEPPCR_DEVICE void ProbesOfEither(int i, const float (&a)[3], const TwoSlopes& slopes) const {
    const auto reach_of = [&](int k) {
      return operands_[k].moves() ? ReachOf(SizeOf(k, i), LargestProbeOf(k, i)) : 0.0F;
    };
    const bool apart = fabsf(a[0] - a[1]) > reach_of(0) + reach_of(1);
    float between = 0.0F;
    for (int v = 1; v <= kNumProbes; ++v)
      between = LargerOrNan(between, fabsf(operands_[0].Of(v, i) - operands_[1].Of(v, i)));
    WriteProbes(i, SizeOfValue(i, 0.0F), false, [&](int v) {
      if (apart) return Carried(slopes, 1 + v, i);
      const float off = OffTheMiddle(between, v, i, step_.draw);
      return fmaf(0.5F, operands_[0].Of(1 + v, i), fmaf(0.5F, operands_[1].Of(1 + v, i), off));
    });
  }

  DEEPPCR_DEVICE void Reverse(int i) const {
    const ReverseCoefficients c = step_.coefficients[static_cast<int>(instruction_.part)];
    const float z = operands_[0][i], m = operands_[1][i];
    const float x0 = ClipTo(clip_range_, fmaf(c.x0_m, m, c.x0_z * z));
    float next = fmaf(c.z_x0, x0, fmaf(c.z_m, m, c.z_z * z));
    if (c.sigma != 0.0F) next = fmaf(c.sigma, step_.noise[i], next);
    if constexpr (!kAlone) TangentsOfReverse(i, c, m, z, next);
    result_(0, i) = next;
  }
  DEEPPCR_DEVICE void TangentsOfReverse(int i, const ReverseCoefficients& c, float m, float z,
                                        float next) const {
    const ReverseTangent in(c, false), out(c, true);
    const float beyond = BeyondClip(c, clip_range_, m, z);
    const ReverseTangent& tangent = beyond > 0.0F ? out : in;
    for (int r = 1 + rows_.probes; r < rows_.count; ++r) {
      const float of_m = operands_[1].Of(r, i), of_z = operands_[0].Of(r, i);
      result_(r, i) = tangent.by_m == 0.0F ? tangent.by_z * of_z : tangent.Of(of_m, of_z);
    }
    if (rows_.probes > 0) {
      const float terms = c.x0_m * SizeOf(1, i), of_state = c.x0_z * z;
      const float of_x0 = sqrtf(fmaf(terms, terms, of_state * of_state));
      const float from_clip = fabsf(beyond) - ReachOf(of_x0, 0.0F);
      WriteProbes(i, SizeOfState(c, false, z, m, next, 0.0F), true, [&](int v) {
        // Where the probe's x0 reaches as far as the clip, it may meet both sides.
        const float of_z = operands_[0].Of(1 + v, i), of_m = operands_[1].Of(1 + v, i);
        const float reach = ReachOf(0.0F, fabsf(fmaf(c.x0_m, of_m, c.x0_z * of_z)));
        return from_clip > reach ? tangent.Of(of_m, of_z)
                                 : LargerOf(in.Of(of_m, of_z), out.Of(of_m, of_z));
      });
    }
  }

  const ProgramRows& rows_;
  const ProgramStepView& step_;
  const ProgramInstruction& instruction_;
  const int64_t salt_;
  const float clip_range_;
  const FrameVectors result_;
  const OperandValue operands_[kMostProgramOperands];
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_ELEMENT_STEP_H_
