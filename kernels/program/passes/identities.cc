// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/identities.h"

#include <cmath>
#include <optional>
#include <vector>

#include "kernels/base/status_macros.h"

namespace deeppcr::program {
namespace {

// What an instruction comes to: an operation on operands, or the only operand itself.
struct Simpler {
  std::optional<Op> op;
  std::vector<ValueId> operands;
};

// b where the value is -b; else no value.
ValueId Negated(ProgramWriter& writer, ValueId id) {
  const Instruction* maker = writer.Producer(id);
  return maker != nullptr && maker->op == Op::kNegate ? maker->operands[0] : kNoValue;
}

std::optional<Simpler> SimplerSum(ProgramWriter& writer, ValueId a, ValueId b) {
  if (writer.Number(b) == 0.0) return Simpler{{}, {a}};
  if (writer.Number(a) == 0.0) return Simpler{{}, {b}};
  if (const ValueId c = Negated(writer, b); c != kNoValue) return Simpler{Op::kSubtract, {a, c}};
  if (const ValueId c = Negated(writer, a); c != kNoValue) return Simpler{Op::kSubtract, {b, c}};
  return std::nullopt;
}

std::optional<Simpler> SimplerDifference(ProgramWriter& writer, ValueId a, ValueId b) {
  if (writer.Number(b) == 0.0) return Simpler{{}, {a}};
  if (writer.Number(a) == 0.0) return Simpler{Op::kNegate, {b}};
  if (const ValueId c = Negated(writer, b); c != kNoValue) return Simpler{Op::kAdd, {a, c}};
  return std::nullopt;
}

std::optional<Simpler> SimplerProduct(ProgramWriter& writer, ValueId a, ValueId b) {
  if (a == b) return Simpler{Op::kSquare, {a}};
  if (writer.Number(b) == 1.0) return Simpler{{}, {a}};
  if (writer.Number(a) == 1.0) return Simpler{{}, {b}};
  if (writer.Number(b) == -1.0) return Simpler{Op::kNegate, {a}};
  if (writer.Number(a) == -1.0) return Simpler{Op::kNegate, {b}};
  return std::nullopt;
}

std::optional<Simpler> SimplerQuotient(ProgramWriter& writer, ValueId a, ValueId b) {
  if (writer.Number(b) == 1.0) return Simpler{{}, {a}};
  if (writer.Number(a) == 1.0) return Simpler{Op::kReciprocal, {b}};
  return std::nullopt;
}

std::optional<Simpler> SimplerPower(ProgramWriter& writer, ValueId a, ValueId b) {
  const std::optional<double> exponent = writer.Number(b);
  if (exponent == 1.0) return Simpler{{}, {a}};
  if (exponent == 2.0) return Simpler{Op::kSquare, {a}};
  if (exponent == 0.5) return Simpler{Op::kSqrt, {a}};
  if (exponent == -1.0) return Simpler{Op::kReciprocal, {a}};
  return std::nullopt;
}

std::optional<Simpler> SimplerLargest(ProgramWriter& writer, ValueId a, ValueId b) {
  if (writer.Number(b) == 0.0) return Simpler{Op::kRelu, {a}};
  if (writer.Number(a) == 0.0) return Simpler{Op::kRelu, {b}};
  return std::nullopt;
}

std::optional<Simpler> SimplerElementwise(ProgramWriter& writer, Op op,
                                          std::span<const ValueId> operands) {
  switch (op) {
    case Op::kNegate:
      if (const ValueId c = Negated(writer, operands[0]); c != kNoValue) return Simpler{{}, {c}};
      return std::nullopt;
    case Op::kAdd:
      return SimplerSum(writer, operands[0], operands[1]);
    case Op::kSubtract:
      return SimplerDifference(writer, operands[0], operands[1]);
    case Op::kMultiply:
      return SimplerProduct(writer, operands[0], operands[1]);
    case Op::kDivide:
      return SimplerQuotient(writer, operands[0], operands[1]);
    case Op::kPower:
      return SimplerPower(writer, operands[0], operands[1]);
    case Op::kMaximum:
      return SimplerLargest(writer, operands[0], operands[1]);
    default:
      return std::nullopt;
  }
}

// 1 / divisor where dividing by it is exactly a multiplication.
std::optional<double> ExactInverse(std::optional<double> divisor) {
  int exponent = 0;
  if (!divisor.has_value() || std::fabs(std::frexp(*divisor, &exponent)) != 0.5) {
    return std::nullopt;
  }
  // Float32 has to hold the inverse as a normal number.
  if (exponent < -100 || exponent > 100) return std::nullopt;
  return 1 / *divisor;
}

}  // namespace

absl::StatusOr<ValueId> WriteElementwise(ProgramWriter& writer, Op op,
                                         std::span<const ValueId> operands) {
  if (const auto simpler = SimplerElementwise(writer, op, operands); simpler.has_value()) {
    writer.CountChange();
    if (!simpler->op.has_value()) return simpler->operands[0];
    return WriteElementwise(writer, *simpler->op, simpler->operands);
  }
  if (op == Op::kDivide) {
    const std::optional<double> inverse = ExactInverse(writer.Number(operands[1]));
    if (inverse.has_value()) {
      writer.CountChange();
      const int64_t size = writer.at(operands[1]).size;
      DEEPPCR_ASSIGN_OR_RETURN(const ValueId factor, writer.AddNumber(*inverse, size));
      return WriteElementwise(writer, Op::kMultiply, std::vector<ValueId>{operands[0], factor});
    }
  }
  return writer.builder().AddElementwise(op, operands);
}

}  // namespace deeppcr::program
