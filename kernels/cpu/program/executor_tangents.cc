// SPDX-License-Identifier: Apache-2.0
// Tangents of the executor: what moves with the state, through every kind of instruction.
#include <algorithm>

#include "kernels/cpu/program/element_rows.h"
#include "kernels/cpu/program/executor.h"

namespace deeppcr::cpu {

using program::Op;
using program::OpKind;

void Executor::Tangents(const PackedInstruction& instruction, int64_t index) {
  if (instruction.layers != nullptr) TangentsLinear(instruction);
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
  int count_of_moving = 0;
  const float* tangents_of_moving = nullptr;
  for (int k = 0; k < count; ++k) {
    operands[k] = Read(instruction.operands[k], r);
    if (instruction.moves[k] == 0) continue;
    wanted[k] = scratch_.data() + k * section_.widest;
    carry.slopes[k] = wanted[k];
    carry.tangents[k] = Tangent(instruction.operands[k], r * along_.columns);
    ++count_of_moving;
    tangents_of_moving = carry.tangents[k];
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
  // A sum with what stands still has its operand's tangents, and may have its place too.
  const bool carried =
      instruction.op == Op::kAdd && count_of_moving == 1 && carry.out == tangents_of_moving;
  if (!carried) kernels_.carry(carry);
  if (along_.probes > 0) ProbesElementwise(instruction, carry.slopes, r);
  for (int64_t j = 0; j < along_.columns && n > instruction.result.size; ++j)
    ClearPadding(instruction.result, carry.out + j * n);
}

void Executor::TangentsLinear(const PackedInstruction& instruction) {
  const Place& from = instruction.operands[0];
  const Place& result = instruction.result;
  for (int64_t first = 0, end = 0; first < count_; first = end) {
    end = EndOfLayer(instruction, first);
    const PanelView& layer = LayerOf(instruction, first);
    const int64_t at = first * along_.columns, count = (end - first) * along_.columns;
    Multiply(layer, instruction.repeat, nullptr, from, Tangent(from, at), result,
             Tangent(result, at), count);
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
  AlongTangentArgs args = {.op = instruction.op,
                           .lines = axis.outer * axis.inner,
                           .length = axis.length,
                           .in = Read(from, r),
                           .out = Row(result, r),
                           .moments = reduces ? nullptr : Moments(instruction, r),
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
  kernels_.reverse_tangent({.coefficients = CoefficientsOf(instruction, r),
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

}  // namespace deeppcr::cpu
