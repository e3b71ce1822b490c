// SPDX-License-Identifier: Apache-2.0
// Cotangents of the executor: from the results of a section to its inputs, through every kind of
// instruction, in the reverse of the order in which they ran.
#include <algorithm>

#include "kernels/cpu/program/element_rows.h"
#include "kernels/cpu/program/executor.h"

namespace deeppcr::cpu {

using program::Op;
using program::OpKind;

struct Executor::Way {
  int64_t first, count;  // rows
  int64_t columns;
  const std::array<CotangentRows, kNumHomes>& homes;

  // Whether the cotangent of operand k is of use.
  bool Wants(const PackedInstruction& instruction, const BackwardInstruction& back,
             size_t k) const {
    if (back.wants[k] == 0) return false;
    const Home home = instruction.operands[k].home;
    return home == Home::kFrame || homes[static_cast<size_t>(home)].sums != nullptr;
  }
};

void Executor::BeginBack(const PackedTape& tape, int64_t count) {
  for (const Place& input : {tape.state, tape.condition, tape.label})
    if (input.width > 0) std::fill_n(Cotangent(input, 0), count * input.width, 0.0F);
}

void Executor::RunBack(const PackedTape& tape, const RowContext* contexts, int64_t first,
                       int64_t count, int64_t columns,
                       const std::array<CotangentRows, kNumHomes>& homes, const Sharing* sharing) {
  contexts_ = contexts;
  sharing_ = sharing;
  const Way way = {first, count, columns, homes};
  for (int64_t i = std::ssize(section_.instructions) - 1; i >= 0; --i) {
    const PackedInstruction& instruction = section_.instructions[static_cast<size_t>(i)];
    const BackwardInstruction& back = tape.back[static_cast<size_t>(i)];
    if (!back.reached) continue;
    switch (instruction.kind) {
      case OpKind::kElementwise:
        BackElementwise(way, instruction, back);
        break;
      case OpKind::kReduction:
      case OpKind::kAlongAxis:
        BackAlong(way, instruction, back);
        break;
      case OpKind::kLinear:
      case OpKind::kProduct:
        BackLinear(way, instruction, back);
        break;
      case OpKind::kArrange:
        BackArrange(way, instruction, back);
        break;
      case OpKind::kReverseStep:
        BackReverse(way, instruction, back);
        break;
      case OpKind::kLookup:
        break;  // a constant between the jumps of its index
    }
  }
}

float* Executor::CotangentOf(const Way& way, const Place& place, int64_t index) {
  if (place.home == Home::kFrame) return Cotangent(place, index);
  const CotangentRows& rows = way.homes[static_cast<size_t>(place.home)];
  return rows.sums + index * rows.stride + place.offset;
}

// Gives `count` cotangents, slope times g each, to an operand from `index` on; a null slope counts
// as one.
void Executor::Give(const Way& way, const Place& operand, bool adds, const float* slope,
                    const float* g, int64_t index, int64_t count) {
  // Cotangents of rows lie apart.
  const int64_t together = operand.home == Home::kFrame ? count : 1;
  for (int64_t j = 0; j < count; j += together) {
    float* to = CotangentOf(way, operand, index + j);
    kernels_.give({.slope = slope,
                   .g = g + j * operand.width,
                   .to = to,
                   .adds = adds,
                   .columns = together,
                   .n = operand.width});
    for (int64_t i = 0; i < together && slope != nullptr; ++i)
      ClearPadding(operand, to + i * operand.width);
  }
}

void Executor::BackElementwise(const Way& way, const PackedInstruction& instruction,
                               const BackwardInstruction& back) {
  const ElementwiseKernels& kernel = kernels_.elementwise[static_cast<int>(instruction.op)];
  const size_t operands = instruction.operands.size();
  for (int64_t b = 0; b < way.count; ++b) {
    if (instruction.op == Op::kSelect) {
      BackSelect(way, instruction, back, b);
      continue;
    }
    const float* a[kMostOperands] = {};
    const float* slopes[kMostOperands] = {};
    float* wanted[kMostOperands] = {};
    for (size_t k = 0; k < operands; ++k) {
      a[k] = Read(instruction.operands[k], way.first + b);
      if (way.Wants(instruction, back, k))
        slopes[k] = wanted[k] = scratch_.data() + static_cast<int64_t>(k) * section_.widest;
    }
    if (instruction.op == Op::kAdd) {
      slopes[0] = slopes[1] = nullptr;  // one
    } else if (instruction.op == Op::kMultiply) {
      slopes[0] = a[1];
      slopes[1] = a[0];
    } else {
      kernel.slopes(a, wanted, instruction.result.width);
    }
    const float* g = Cotangent(instruction.result, b * way.columns);
    for (size_t k = 0; k < operands; ++k) {
      if (way.Wants(instruction, back, k))
        Give(way, instruction.operands[k], back.adds[k] != 0, slopes[k], g, b * way.columns,
             way.columns);
    }
  }
}

// The side that was chosen gets it all, whatever the other one is.
void Executor::BackSelect(const Way& way, const PackedInstruction& instruction,
                          const BackwardInstruction& back, int64_t b) {
  const float* condition = Read(instruction.operands[0], way.first + b);
  // The condition jumps, and has no cotangent but what it is given as a side, or elsewhere.
  for (int64_t j = 0; j < way.columns && way.Wants(instruction, back, 0); ++j) {
    if (back.adds[0] == 0)
      std::fill_n(CotangentOf(way, instruction.operands[0], b * way.columns + j),
                  instruction.operands[0].width, 0.0F);
  }
  float* chosen = scratch_.data();
  const int64_t n = instruction.result.size;
  for (size_t k = 1; k < 3; ++k) {
    if (!way.Wants(instruction, back, k)) continue;
    for (int64_t j = 0; j < way.columns; ++j) {
      const int64_t index = b * way.columns + j;
      const float* g = Cotangent(instruction.result, index);
      for (int64_t i = 0; i < n; ++i) chosen[i] = (condition[i] != 0) == (k == 1) ? g[i] : 0.0F;
      ClearPadding(instruction.result, chosen);
      Give(way, instruction.operands[k], back.adds[k] != 0, nullptr, chosen, index, 1);
    }
  }
}

void Executor::BackLinear(const Way& way, const PackedInstruction& instruction,
                          const BackwardInstruction& back) {
  if (!way.Wants(instruction, back, 0)) return;
  const Place& operand = instruction.operands[0];
  const Place& result = instruction.result;
  const PanelView& layer = back.transposed[contexts_[way.first].step * instruction.layer_stride];
  const int64_t count = way.count * way.columns;
  const bool direct = operand.home == Home::kFrame && back.adds[0] == 0;
  float* out = direct ? Cotangent(operand, 0) : products_.data();
  Multiply(layer, instruction.repeat, nullptr, result, Cotangent(result, 0), operand, out, count);
  if (!direct) Give(way, operand, back.adds[0] != 0, nullptr, out, 0, count);
}

// The operations along an axis have symmetric Jacobians: with y the result, inverse (1 - 1 1^T / n
// - y y^T / n) of the norms, diag(y) - y y^T of the softmax. Their cotangents are their tangents.
void Executor::BackAlong(const Way& way, const PackedInstruction& instruction,
                         const BackwardInstruction& back) {
  if (!way.Wants(instruction, back, 0)) return;
  const program::Axis& axis = instruction.axis;
  const Place& operand = instruction.operands[0];
  const Place& result = instruction.result;
  const bool apart = axis.inner > 1, reduces = instruction.kind == OpKind::kReduction;
  float* in = scratch_.data();
  float* made = in + section_.widest;
  float* of_made = made + section_.widest;
  float* of_in = of_made + section_.widest;
  float* given = of_in + section_.widest;
  for (int64_t b = 0; b < way.count; ++b) {
    const int64_t r = way.first + b;
    if (apart && !reduces) {
      ToLines(axis, Read(operand, r), in);
      ToLines(axis, Row(result, r), made);
    }
    for (int64_t j = 0; j < way.columns; ++j) {
      const int64_t index = b * way.columns + j;
      const float* g = Cotangent(result, index);
      if (reduces) {
        BackReduction(instruction, r, g, given);
      } else {
        if (apart) ToLines(axis, g, of_made);
        kernels_.along_tangent({.op = instruction.op,
                                .lines = axis.outer * axis.inner,
                                .length = axis.length,
                                .in = apart ? in : Read(operand, r),
                                .out = apart ? made : Row(result, r),
                                .moments = Moments(instruction, r),
                                .tangents = apart ? of_made : g,
                                .results = apart ? of_in : given,
                                .columns = 1,
                                .in_n = operand.width,
                                .out_n = operand.width});
        if (apart) FromLines(axis, of_in, given);
      }
      ClearPadding(operand, given);
      Give(way, operand, back.adds[0] != 0, nullptr, given, index, 1);
    }
  }
}

// The cotangents of the elements of a sum, a mean, or the largest, the first of which gets it.
void Executor::BackReduction(const PackedInstruction& instruction, int64_t r, const float* g,
                             float* to) {
  const program::Axis& axis = instruction.axis;
  const float* values = Read(instruction.operands[0], r);
  const float* results = Row(instruction.result, r);
  const float share = instruction.op == Op::kMean ? 1.0F / static_cast<float>(axis.length) : 1.0F;
  for (int64_t o = 0; o < axis.outer; ++o) {
    for (int64_t i = 0; i < axis.inner; ++i) {
      const int64_t line = o * axis.inner + i;
      bool given = false;
      for (int64_t a = 0; a < axis.length; ++a) {
        const int64_t at = (o * axis.length + a) * axis.inner + i;
        if (instruction.op != Op::kLargest) {
          to[at] = share * g[line];
          continue;
        }
        const bool largest = !given && values[at] == results[line];
        to[at] = largest ? g[line] : 0.0F;
        given = given || largest;
      }
    }
  }
}

void Executor::BackArrange(const Way& way, const PackedInstruction& instruction,
                           const BackwardInstruction& back) {
  for (int64_t t = 0; t < way.count * way.columns; ++t) {
    const float* g = Cotangent(instruction.result, t);
    for (size_t k = 0; k < instruction.operands.size(); ++k) {
      if (!way.Wants(instruction, back, k)) continue;
      const Place& operand = instruction.operands[k];
      float* to = CotangentOf(way, operand, t);
      if (back.adds[k] == 0) std::fill_n(to, operand.width, 0.0F);
      for (const ElementRun& run : instruction.runs) {
        if (run.operand != static_cast<int32_t>(k)) continue;
        for (int64_t i = 0; i < run.count; ++i)
          to[run.from + (run.repeated ? 0 : i)] += g[run.to + i];
      }
    }
  }
}

void Executor::BackReverse(const Way& way, const PackedInstruction& instruction,
                           const BackwardInstruction& back) {
  float* slopes[2] = {scratch_.data(), scratch_.data() + section_.widest};
  for (int64_t b = 0; b < way.count; ++b) {
    const int64_t r = way.first + b;
    kernels_.reverse_slopes({.coefficients = CoefficientsOf(instruction, r),
                             .clip_range = clip_range_,
                             .state = Read(instruction.operands[0], r),
                             .prediction = Read(instruction.operands[1], r),
                             .by_state = slopes[0],
                             .by_prediction = slopes[1],
                             .n = instruction.result.width});
    for (size_t k = 0; k < 2; ++k) {
      if (way.Wants(instruction, back, k))
        Give(way, instruction.operands[k], back.adds[k] != 0, slopes[k],
             Cotangent(instruction.result, b * way.columns), b * way.columns, way.columns);
    }
  }
}

}  // namespace deeppcr::cpu
