// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/program/executor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/iteration/pass.h"

namespace deeppcr::cpu {
namespace {

using program::Op;
using program::OpKind;

// Rows of scratch: three slopes, two positions near a value and the slopes there, and one spare.
constexpr int64_t kScratchRows = 8;

// Size, in units of 2^-24, of a value that may be one or zero.
constexpr float kJumpSize = 0x1p24F;

void ClearPadding(const Place& place, float* row) {
  if (place.width > place.size) std::fill(row + place.size, row + place.width, 0.0F);
}

// Copies elements from operands' rows to a result's row.
template <class RowOf>
void Arrange(const PackedInstruction& instruction, const RowOf& row_of, float* to) {
  for (const ElementRun& run : instruction.runs) {
    const float* from = row_of(run.operand);
    if (from == nullptr) {
      std::fill_n(to + run.to, run.count, 0.0F);
    } else if (run.repeated) {
      std::fill_n(to + run.to, run.count, from[run.from]);
    } else {
      std::copy_n(from + run.from, run.count, to + run.to);
    }
  }
  ClearPadding(instruction.result, to);
}

// [outer, length, inner] to lines [outer, inner, length], and back.
void ToLines(const program::Axis& axis, const float* from, float* to) {
  for (int64_t o = 0; o < axis.outer; ++o)
    for (int64_t a = 0; a < axis.length; ++a)
      for (int64_t i = 0; i < axis.inner; ++i)
        to[(o * axis.inner + i) * axis.length + a] = from[(o * axis.length + a) * axis.inner + i];
}
void FromLines(const program::Axis& axis, const float* from, float* to) {
  for (int64_t o = 0; o < axis.outer; ++o)
    for (int64_t a = 0; a < axis.length; ++a)
      for (int64_t i = 0; i < axis.inner; ++i)
        to[(o * axis.length + a) * axis.inner + i] = from[(o * axis.inner + i) * axis.length + a];
}

}  // namespace

Executor::Executor(const PackedSection& section, const ProgramKernels& kernels, float clip_range,
                   int64_t rows, int64_t tangents)
    : section_(section),
      kernels_(kernels),
      clip_range_(clip_range),
      rows_(rows),
      max_tangents_(tangents),
      frame_(section.frame_floats * rows),
      sizes_(tangents > 0 ? section.frame_floats * rows : 0),
      tangents_(section.frame_floats * tangents),
      moments_(section.moment_floats * rows),
      scratch_(kScratchRows * section.widest) {}

int64_t Executor::Floats(const PackedSection& section, int64_t rows, int64_t tangents) {
  return section.frame_floats * ((tangents > 0 ? 2 : 1) * rows + tangents) +
         section.moment_floats * rows + kScratchRows * section.widest;
}

bool Executor::ok() const {
  return frame_.ok() && sizes_.ok() && tangents_.ok() && moments_.ok() && scratch_.ok();
}

void Executor::Run(const RowContext* contexts, int64_t count, const TangentRows& tangents,
                   const Sharing* sharing) {
  contexts_ = contexts;
  count_ = count;
  along_ = tangents;
  sharing_ = sharing;
  for (int64_t i = 0; i < std::ssize(section_.instructions); ++i) {
    const PackedInstruction& instruction = section_.instructions[i];
    if (along_.columns == 0 && instruction.together > 1) {
      Branch(i);
      i += instruction.together - 1;
      continue;
    }
    Primal(instruction);
    if (along_.columns > 0) Tangents(instruction, i);
  }
}

const float* Executor::Read(const Place& place, int64_t r) const {
  if (place.home == Home::kFrame) return frame_.data() + place.offset * rows_ + r * place.width;
  return contexts_[r].rows[static_cast<int>(place.home)] + place.offset;
}

const float* Executor::SizeOrNull(const PackedInstruction& i, int k, int64_t r) {
  return i.moves[k] != 0 ? Size(i.operands[k], r) : nullptr;
}

// ---- Values

void Executor::Primal(const PackedInstruction& instruction) {
  if (instruction.kind == OpKind::kElementwise) return PrimalElementwise(instruction);
  if (instruction.kind == OpKind::kLinear) return PrimalLinear(instruction);
  for (int64_t r = 0; r < count_; ++r) PrimalRow(instruction, r);
}

void Executor::PrimalElementwise(const PackedInstruction& instruction) {
  const auto value = kernels_.elementwise[static_cast<int>(instruction.op)].value;
  const Place& result = instruction.result;
  const bool all_here = std::ranges::all_of(instruction.moves, [](uint8_t m) { return m != 0; });
  const float* operands[kMostOperands] = {};
  const int64_t together = all_here ? count_ : 1;
  for (int64_t r = 0; r < count_; r += together) {
    for (size_t k = 0; k < instruction.operands.size(); ++k)
      operands[k] = Read(instruction.operands[k], r);
    value(operands, Row(result, r), together * result.width);
  }
  for (int64_t r = 0; r < count_ && result.width > result.size; ++r)
    ClearPadding(result, Row(result, r));
}

void Executor::Branch(int64_t index) {
  const PackedInstruction* sum = &section_.instructions[index];
  const auto kernel = kernels_.branch[static_cast<int>(sum[1].op)];
  const bool adds = sum->together == 3;
  const Place& result = sum[sum->together - 1].result;
  for (int64_t r = 0; r < count_; ++r) {
    kernel(Read(sum->operands[0], r), Read(sum->operands[1], r),
           adds ? Read(sum[2].operands[0], r) : nullptr, Row(result, r), result.width);
    ClearPadding(result, Row(result, r));
  }
}

void Executor::Gemm(const PackedInstruction& instruction, const float* bias, const float* in,
                    int64_t in_width, float* out, int64_t count) {
  kernels_.gemm(sharing_, {.layer = &instruction.layer,
                           .bias = bias,
                           .in = in,
                           .out = out,
                           .in_stride = in_width,
                           .out_stride = instruction.layer.width,
                           .count = count});
}

void Executor::PrimalLinear(const PackedInstruction& instruction) {
  const Place& from = instruction.operands[0];
  const Place& result = instruction.result;
  if (instruction.repeat == 1 && instruction.moves[0] != 0) {
    return Gemm(instruction, instruction.layer.bias, Row(from, 0), from.width, Row(result, 0),
                count_);
  }
  float* in = scratch_.data();
  float* out = in + section_.widest;
  const int64_t cols = from.size / instruction.repeat, rows = result.size / instruction.repeat;
  std::fill(in, out, 0.0F);
  for (int64_t r = 0; r < count_; ++r) {
    for (int64_t i = 0; i < instruction.repeat; ++i) {
      std::copy_n(Read(from, r) + i * cols, cols, in);
      Gemm(instruction, instruction.layer.bias, in, from.width, out, 1);
      std::copy_n(out, rows, Row(result, r) + i * rows);
    }
    ClearPadding(result, Row(result, r));
  }
}

void Executor::PrimalAlong(const PackedInstruction& instruction, int64_t r) {
  const program::Axis& axis = instruction.axis;
  const float* in = Read(instruction.operands[0], r);
  float* out = Row(instruction.result, r);
  float* lines = scratch_.data();
  float* made = lines + section_.widest;
  const bool apart = axis.inner > 1;
  if (apart) ToLines(axis, in, lines);
  const bool reduces = instruction.kind == OpKind::kReduction;
  kernels_.along(
      {.op = instruction.op,
       .lines = axis.outer * axis.inner,
       .length = axis.length,
       .epsilon = instruction.epsilon,
       .in = apart ? lines : in,
       .out = apart && !reduces ? made : out,
       .moments =
           reduces ? nullptr : moments_.data() + r * section_.moment_floats + instruction.moments});
  if (apart && !reduces) FromLines(axis, made, out);
  ClearPadding(instruction.result, out);
}

void Executor::PrimalRow(const PackedInstruction& instruction, int64_t r) {
  switch (instruction.kind) {
    case OpKind::kReduction:
    case OpKind::kAlongAxis:
      return PrimalAlong(instruction, r);
    case OpKind::kArrange:
      return Arrange(
          instruction, [&](int32_t k) { return Read(instruction.operands[k], r); },
          Row(instruction.result, r));
    case OpKind::kLookup: {
      // As in evaluate.cc: a negative index counts from the end, and one that is not there makes
      // NaN, which the answer shows.
      const auto rows = static_cast<float>(instruction.rows);
      const float index = Read(instruction.operands[0], r)[0];
      const float wanted = index < 0 ? index + rows : index;
      float* to = Row(instruction.result, r);
      if (wanted >= 0 && wanted < rows) {
        std::copy_n(instruction.table + static_cast<int64_t>(wanted) * instruction.result.width,
                    instruction.result.width, to);
      } else {
        std::fill_n(to, instruction.result.size, std::numeric_limits<float>::quiet_NaN());
        ClearPadding(instruction.result, to);
      }
      return;
    }
    default: {
      kernels_.reverse({.coefficients = contexts_[r].coefficients,
                        .clip_range = clip_range_,
                        .state = Read(instruction.operands[0], r),
                        .prediction = Read(instruction.operands[1], r),
                        .noise = contexts_[r].noise,
                        .next = Row(instruction.result, r),
                        .n = instruction.result.width});
      ClearPadding(instruction.result, Row(instruction.result, r));
    }
  }
}

// ---- Tangents

void Executor::Tangents(const PackedInstruction& instruction, int64_t index) {
  if (instruction.kind == OpKind::kLinear) TangentsLinear(instruction);
  for (int64_t r = 0; r < count_; ++r) {
    if (along_.probes > 0 && instruction.kind != OpKind::kReverseStep) SizeRow(instruction, r);
    switch (instruction.kind) {
      case OpKind::kElementwise:
        TangentsElementwise(instruction, r);
        break;
      case OpKind::kReduction:
      case OpKind::kAlongAxis:
        TangentsAlong(instruction, r);
        break;
      case OpKind::kArrange:
        TangentsArrange(instruction, r);
        break;
      case OpKind::kReverseStep:
        TangentsReverse(instruction, r);
        break;
      default:
        break;
    }
    if (along_.probes > 0) AddSource(instruction, index, r);
  }
}

// The tangent of the side that was chosen, whatever the other one is; a probe of the condition, of
// which it is not sure, adds what a change of side would change.
void Executor::TangentsSelect(const PackedInstruction& instruction, int64_t r) {
  const Place& result = instruction.result;
  const float* a[kMostOperands];
  for (int k = 0; k < kMostOperands; ++k) a[k] = Read(instruction.operands[k], r);
  for (int64_t j = 0; j < along_.columns; ++j) {
    const float* t[kMostOperands] = {};
    for (int k = 0; k < kMostOperands; ++k) {
      if (instruction.moves[k] != 0)
        t[k] = Tangent(instruction.operands[k], r * along_.columns + j);
    }
    float* to = Tangent(result, r * along_.columns + j);
    for (int64_t i = 0; i < result.size; ++i) {
      const float* side = a[0][i] != 0 ? t[1] : t[2];
      to[i] = side == nullptr ? 0 : side[i];
      if (t[0] != nullptr && t[0][i] != 0) to[i] += t[0][i] * (a[1][i] - a[2][i]);
    }
    ClearPadding(result, to);
  }
}

void Executor::TangentsElementwise(const PackedInstruction& instruction, int64_t r) {
  if (instruction.op == Op::kSelect) return TangentsSelect(instruction, r);
  const ElementwiseKernels& kernel = kernels_.elementwise[static_cast<int>(instruction.op)];
  const int64_t n = instruction.result.width;
  const auto count = static_cast<int>(instruction.operands.size());
  const float* operands[kMostOperands] = {};
  float* wanted[kMostOperands] = {};
  CarryArgs carry = {};
  for (int k = 0; k < count; ++k) {
    operands[k] = Read(instruction.operands[k], r);
    if (instruction.moves[k] == 0) continue;
    wanted[k] = scratch_.data() + k * section_.widest;
    carry.slopes[k] = wanted[k];
    carry.tangents[k] = Tangent(instruction.operands[k], r * along_.columns);
  }
  if (instruction.op == Op::kAdd) {
    carry.slopes[0] = carry.slopes[1] = nullptr;  // one
  } else if (instruction.op == Op::kMultiply) {
    carry.slopes[0] = operands[1];
    carry.slopes[1] = operands[0];
  } else {
    kernel.slopes(operands, wanted, n);
  }
  carry.out = Tangent(instruction.result, r * along_.columns);
  carry.columns = along_.columns;
  carry.n = n;
  kernels_.carry(carry);
  if (along_.probes > 0) ProbesElementwise(instruction, carry.slopes, r);
  for (int64_t j = 0; j < along_.columns && n > instruction.result.size; ++j)
    ClearPadding(instruction.result, carry.out + j * n);
}

// Probes through what bends within their reach.
void Executor::ProbesElementwise(const PackedInstruction& instruction, const float* const* slopes,
                                 int64_t r) {
  const int64_t n = instruction.result.width;
  if (instruction.operands.size() == 1) {
    if (instruction.op == Op::kAbs) return ProbesOfAbs(instruction, r);
    if (instruction.op != Op::kNegate) ProbesNear(instruction, slopes[0], r);
    return;
  }
  if (instruction.op != Op::kMaximum && instruction.op != Op::kMinimum) return;
  float* zeros = scratch_.data() + (kScratchRows - 1) * section_.widest;
  std::fill_n(zeros, n, 0.0F);
  EitherArgs either = {.slopes = {slopes[0], slopes[1]},
                       .out = Tangent(instruction.result, r * along_.columns),
                       .count = along_.probes,
                       .n = n};
  for (int k = 0; k < 2; ++k) {
    either.a[k] = Read(instruction.operands[k], r);
    either.sizes[k] = SizeOrNull(instruction, k, r);
    if (instruction.moves[k] != 0)
      either.probes[k] = Tangent(instruction.operands[k], r * along_.columns);
    if (either.slopes[k] == nullptr) either.slopes[k] = zeros;
  }
  kernels_.either(either);
}

// Within the rounding of zero either side may be met. The probe takes a sign of its own and half as
// much again, so that no sum with the operand cancels in it, as x + |x| would.
void Executor::ProbesOfAbs(const PackedInstruction& instruction, int64_t r) {
  const Place& from = instruction.operands[0];
  const int64_t n = instruction.result.width;
  const float* a = Read(from, r);
  for (int64_t i = 0; i < instruction.result.size; ++i) {
    float largest = 0;
    for (int64_t v = 0; v < along_.probes; ++v)
      largest = std::max(largest, std::fabs(Tangent(from, r * along_.columns + v)[i]));
    if (std::fabs(a[i]) > SlopeReach(Size(from, r)[i], largest)) continue;
    for (int64_t v = 0; v < along_.probes; ++v) {
      const uint32_t hash = instruction.seeds[v * n + i] * 0x9E3779B9U +
                            static_cast<uint32_t>(contexts_[r].step) * 0x85EBCA6BU;
      Tangent(instruction.result, r * along_.columns + v)[i] =
          (hash >> 31 != 0 ? 1.5F : -1.5F) * largest;
    }
  }
}

void Executor::ProbesNear(const PackedInstruction& instruction, const float* slope, int64_t r) {
  const ElementwiseKernels& kernel = kernels_.elementwise[static_cast<int>(instruction.op)];
  const int64_t n = instruction.result.width;
  float* below = scratch_.data() + 3 * section_.widest;
  float* above = below + section_.widest;
  float* slopes[2] = {above + section_.widest, above + 2 * section_.widest};
  const float* probes = Tangent(instruction.operands[0], r * along_.columns);
  kernels_.near({.a = Read(instruction.operands[0], r),
                 .size = Size(instruction.operands[0], r),
                 .probes = probes,
                 .count = along_.probes,
                 .n = n,
                 .below = below,
                 .above = above});
  const float* at[2] = {below, above};
  for (int side = 0; side < 2; ++side) {
    float* to[1] = {slopes[side]};
    kernel.slopes(&at[side], to, n);
  }
  kernels_.spread({.slopes = {slope, slopes[0], slopes[1]},
                   .probes = probes,
                   .out = Tangent(instruction.result, r * along_.columns),
                   .count = along_.probes,
                   .n = n});
}

void Executor::TangentsLinear(const PackedInstruction& instruction) {
  const Place& from = instruction.operands[0];
  const Place& result = instruction.result;
  const int64_t count = count_ * along_.columns;
  if (instruction.repeat == 1)
    return Gemm(instruction, nullptr, Tangent(from, 0), from.width, Tangent(result, 0), count);
  float* in = scratch_.data();
  float* out = in + section_.widest;
  const int64_t cols = from.size / instruction.repeat, rows = result.size / instruction.repeat;
  std::fill(in, out, 0.0F);
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t i = 0; i < instruction.repeat; ++i) {
      std::copy_n(Tangent(from, t) + i * cols, cols, in);
      Gemm(instruction, nullptr, in, from.width, out, 1);
      std::copy_n(out, rows, Tangent(result, t) + i * rows);
    }
    ClearPadding(result, Tangent(result, t));
  }
}

void Executor::TangentsAlong(const PackedInstruction& instruction, int64_t r) {
  const program::Axis& axis = instruction.axis;
  const Place& from = instruction.operands[0];
  const Place& result = instruction.result;
  const bool apart = axis.inner > 1, reduces = instruction.kind == OpKind::kReduction;
  float* lines = scratch_.data();
  float* made = lines + section_.widest;
  float* of_lines = made + section_.widest;
  float* of_made = of_lines + section_.widest;
  AlongTangentArgs args = {
      .op = instruction.op,
      .lines = axis.outer * axis.inner,
      .length = axis.length,
      .in = Read(from, r),
      .out = Row(result, r),
      .moments =
          reduces ? nullptr : moments_.data() + r * section_.moment_floats + instruction.moments,
      .tangents = Tangent(from, r * along_.columns),
      .results = Tangent(result, r * along_.columns),
      .columns = along_.columns,
      .in_n = from.width,
      .out_n = result.width};
  if (!apart) {
    kernels_.along_tangent(args);
  } else {
    ToLines(axis, args.in, lines);
    if (!reduces) ToLines(axis, args.out, made);
    args.in = lines;
    if (!reduces) args.out = made;
    args.columns = 1;
    for (int64_t j = 0; j < along_.columns; ++j) {
      float* to = Tangent(result, r * along_.columns + j);
      ToLines(axis, Tangent(from, r * along_.columns + j), of_lines);
      args.tangents = of_lines;
      args.results = reduces ? to : of_made;
      kernels_.along_tangent(args);
      if (!reduces) FromLines(axis, of_made, to);
    }
  }
  if (instruction.op == Op::kLargest) ProbesOfLargest(instruction, r);
  for (int64_t j = 0; j < along_.columns; ++j)
    ClearPadding(result, Tangent(result, r * along_.columns + j));
}

// Probes of the largest element: whichever element could be it within its rounding, and whose probe
// is the largest.
void Executor::ProbesOfLargest(const PackedInstruction& instruction, int64_t r) {
  if (along_.probes == 0) return;
  const program::Axis& axis = instruction.axis;
  const Place& from = instruction.operands[0];
  const float* in = Read(from, r);
  const float* size = Size(from, r);
  const float* largest = Row(instruction.result, r);
  const auto probe_at = [&](int64_t v, int64_t i) {
    return Tangent(from, r * along_.columns + v)[i];
  };
  const auto reach_at = [&](int64_t i) {
    float probe = 0;
    for (int64_t v = 0; v < along_.probes; ++v) probe = std::max(probe, std::fabs(probe_at(v, i)));
    return SlopeReach(size[i], probe);
  };
  for (int64_t line = 0; line < axis.outer * axis.inner; ++line) {
    const auto at = [&](int64_t a) {
      return (line / axis.inner * axis.length + a) * axis.inner + line % axis.inner;
    };
    float of_largest = 0;
    for (int64_t a = 0; a < axis.length; ++a)
      if (in[at(a)] == largest[line]) of_largest = std::max(of_largest, reach_at(at(a)));
    for (int64_t a = 0; a < axis.length; ++a) {
      if (largest[line] - in[at(a)] > of_largest + reach_at(at(a))) continue;
      for (int64_t v = 0; v < along_.probes; ++v) {
        float& probe = Tangent(instruction.result, r * along_.columns + v)[line];
        if (std::fabs(probe_at(v, at(a))) > std::fabs(probe)) probe = probe_at(v, at(a));
      }
    }
  }
}

void Executor::TangentsArrange(const PackedInstruction& instruction, int64_t r) {
  for (int64_t j = 0; j < along_.columns; ++j) {
    const int64_t at = r * along_.columns + j;
    Arrange(
        instruction,
        [&](int32_t k) -> const float* {
          return instruction.moves[k] != 0 ? Tangent(instruction.operands[k], at) : nullptr;
        },
        Tangent(instruction.result, at));
  }
}

void Executor::TangentsReverse(const PackedInstruction& instruction, int64_t r) {
  const bool sizes = along_.probes > 0;
  const Place& result = instruction.result;
  kernels_.reverse_tangent({.coefficients = contexts_[r].coefficients,
                            .clip_range = clip_range_,
                            .state = Read(instruction.operands[0], r),
                            .prediction = Read(instruction.operands[1], r),
                            .next = Row(result, r),
                            .prediction_size = SizeOrNull(instruction, 1, r),
                            .of_state = Tangent(instruction.operands[0], r * along_.columns),
                            .of_prediction = Tangent(instruction.operands[1], r * along_.columns),
                            .results = Tangent(result, r * along_.columns),
                            .size = sizes ? Size(result, r) : nullptr,
                            .probes = along_.probes,
                            .columns = along_.columns,
                            .n = result.width});
  if (sizes) ClearPadding(result, Size(result, r));
  for (int64_t j = 0; j < along_.columns; ++j)
    ClearPadding(result, Tangent(result, r * along_.columns + j));
}

// ---- Rounding

// Size of the rounding of a result, in units of 2^-24: what probes pick up, or, where an operation
// is exact, what it passes on of its operands' for the reach of later ones.
void Executor::SizeRow(const PackedInstruction& instruction, int64_t r) {
  const Place& result = instruction.result;
  const float* value = Row(result, r);
  float* size = Size(result, r);
  if (instruction.kind == OpKind::kLinear && instruction.repeat == 1) {
    const Place& from = instruction.operands[0];
    return kernels_.product_size(instruction.layer, Read(from, r), from.width, value, size);
  }
  if (instruction.kind == OpKind::kArrange) {
    return Arrange(
        instruction, [&](int32_t k) { return SizeOrNull(instruction, k, r); }, size);
  }
  kernels_.scaled_size(instruction.ulps, value, size, result.width);
  if (instruction.kind == OpKind::kElementwise && instruction.ulps == 0) {
    for (size_t k = 0; k < instruction.operands.size(); ++k) {
      if (instruction.moves[k] != 0)
        kernels_.larger_size(Size(instruction.operands[k], r), size, result.width);
    }
  }
  if (instruction.kind == OpKind::kLinear || instruction.kind == OpKind::kReduction)
    AddTerms(instruction, r, size);
  if (instruction.op == Op::kLess || instruction.op == Op::kEqual) SizeJump(instruction, r, size);
}

// The terms of sums round as they are added up, however little is left of them.
void Executor::AddTerms(const PackedInstruction& instruction, int64_t r, float* size) {
  const float* in = Read(instruction.operands[0], r);
  const Place& result = instruction.result;
  if (instruction.kind == OpKind::kLinear) {
    const int64_t cols = instruction.operands[0].size / instruction.repeat;
    const int64_t rows = result.size / instruction.repeat;
    for (int64_t i = 0; i < instruction.repeat; ++i) {
      float squares = 0;
      for (int64_t k = 0; k < cols; ++k) squares += in[i * cols + k] * in[i * cols + k];
      const float length = std::sqrt(squares);
      for (int64_t k = 0; k < rows; ++k)
        size[i * rows + k] += instruction.layer.spreads[k] * length;
    }
    return;
  }
  const program::Axis& axis = instruction.axis;
  for (int64_t o = 0; o < axis.outer; ++o) {
    for (int64_t i = 0; i < axis.inner; ++i) {
      float squares = 0, passed_on = 0;
      for (int64_t a = 0; a < axis.length; ++a) {
        const int64_t at = (o * axis.length + a) * axis.inner + i;
        squares += in[at] * in[at];
        passed_on = std::max(passed_on, Size(instruction.operands[0], r)[at]);
      }
      if (instruction.op == Op::kLargest) {
        size[o * axis.inner + i] = passed_on;
        continue;
      }
      const float terms = std::sqrt(squares);
      size[o * axis.inner + i] +=
          instruction.op == Op::kMean ? terms / static_cast<float>(axis.length) : terms;
    }
  }
}

// A comparison may turn out otherwise where its operands are within their rounding.
void Executor::SizeJump(const PackedInstruction& instruction, int64_t r, float* size) {
  const float* a = Read(instruction.operands[0], r);
  const float* b = Read(instruction.operands[1], r);
  for (int64_t i = 0; i < instruction.result.size; ++i) {
    float reach = 0;
    for (int k = 0; k < 2; ++k) {
      if (instruction.moves[k] == 0) continue;
      float probe = 0;
      for (int64_t v = 0; v < along_.probes; ++v)
        probe =
            std::max(probe, std::fabs(Tangent(instruction.operands[k], r * along_.columns + v)[i]));
      reach += SlopeReach(Size(instruction.operands[k], r)[i], probe);
    }
    size[i] = std::fabs(a[i] - b[i]) > reach ? 0 : kJumpSize;
  }
}

void Executor::AddSource(const PackedInstruction& instruction, int64_t index, int64_t r) {
  const bool jumps = instruction.op == Op::kLess || instruction.op == Op::kEqual;
  if (instruction.ulps == 0 && !jumps) return;
  const int64_t instructions = std::ssize(section_.instructions);
  const Place& result = instruction.result;
  SourceArgs source = {.size = Size(result, r),
                       .seeds = instruction.seeds,
                       .probes = Tangent(result, r * along_.columns),
                       .count = along_.probes,
                       .n = result.width,
                       .salt = contexts_[r].step * instructions + index};
  kernels_.source(source);
  if (instruction.op != Op::kStandardize) return;
  // The rounding of the mean, which moves all elements of a line alike.
  float* of_mean = scratch_.data();
  const program::Axis& axis = instruction.axis;
  const float* moments = moments_.data() + r * section_.moment_floats + instruction.moments;
  for (int64_t o = 0; o < axis.outer; ++o)
    for (int64_t a = 0; a < axis.length; ++a)
      for (int64_t i = 0; i < axis.inner; ++i) {
        const float* line = moments + 2 * (o * axis.inner + i);
        of_mean[(o * axis.length + a) * axis.inner + i] = std::fabs(line[0] * line[1]);
      }
  std::fill(of_mean + result.size, of_mean + result.width, 0.0F);
  source.size = of_mean;
  source.salt += int64_t{1} << 20;
  source.alike = true;
  kernels_.source(source);
}

}  // namespace deeppcr::cpu
