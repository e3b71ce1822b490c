// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/activations.h"

#include <array>
#include <numbers>

#include "kernels/program/passes/identities.h"
#include "kernels/program/passes/polynomial.h"

namespace deeppcr::program {
namespace {

// A factor slope (offset + gate(linear a + cubic a^3)), which makes slope scale activation(a) of a.
struct GateForm {
  Op gate;
  double offset;
  double linear, cubic;
  Op activation;
  double scale;
};

constexpr double kRootOfTwoOverPi = 0.79788456080286535588;
constexpr double kCubicOfGelu = 0.044715;
constexpr std::array<GateForm, 4> kGateForms = {{
    {Op::kSigmoid, 0, 1, 0, Op::kSilu, 1},
    {Op::kSigmoid, 0, 2 * kRootOfTwoOverPi, 2 * kRootOfTwoOverPi* kCubicOfGelu, Op::kGeluTanh, 1},
    {Op::kErf, 1, 1 / std::numbers::sqrt2, 0, Op::kGelu, 2},
    {Op::kTanh, 1, kRootOfTwoOverPi, kRootOfTwoOverPi* kCubicOfGelu, Op::kGeluTanh, 2},
}};

// The rewrite of an instruction as `op` of a value.
Rewrite Applied(Op op, ValueId operand) {
  Rewrite rewrite;
  rewrite.reads = {operand};
  rewrite.write = [op, operand](ProgramWriter& writer) {
    return WriteElementwise(writer, op, std::array{writer.Now(operand)});
  };
  return rewrite;
}

// a in 1 + e^(sign a); no value for others.
ValueId ExponentOf(const ProgramIndex& index, ValueId id, double sign) {
  const std::optional<Cubic> sum = CubicOf(index, id);
  if (!sum.has_value() || !sum->Is({1, 1, 0, 0}) || !index.ReadOnce(id)) return kNoValue;
  const Instruction* exponential = index.Inner(sum->of, Op::kExp);
  if (exponential == nullptr) return kNoValue;
  const std::optional<Cubic> exponent = CubicOf(index, exponential->operands[0]);
  if (!exponent.has_value() || !exponent->Is({0, sign, 0, 0})) return kNoValue;
  return exponent->of;
}

}  // namespace

std::optional<Gated> GateOf(const ProgramIndex& index, ValueId factor) {
  if (!index.ReadOnce(factor)) return std::nullopt;
  const std::optional<Cubic> affine = CubicOf(index, factor);
  if (!affine.has_value() || affine->of == kNoValue) return std::nullopt;
  const Instruction* gate = index.Producer(affine->of);
  if (gate == nullptr || !index.ReadOnce(affine->of)) return std::nullopt;
  const double slope = affine->by_power[1];
  if (slope == 0) return std::nullopt;
  if (gate->op == Op::kTanh && affine->Is({0, slope, 0, 0})) {
    const Instruction* softplus = index.Inner(gate->operands[0], Op::kSoftplus);
    if (softplus != nullptr) return Gated{Op::kMish, softplus->operands[0], slope};
  }
  for (const GateForm& form : kGateForms) {
    if (gate->op != form.gate || !affine->Is({form.offset * slope, slope, 0, 0})) continue;
    const std::optional<Cubic> argument = CubicOf(index, gate->operands[0]);
    if (!argument.has_value() || !argument->Is({0, form.linear, 0, form.cubic})) continue;
    return Gated{form.activation, argument->of, slope * form.scale};
  }
  return std::nullopt;
}

std::optional<Rewrite> RecogniseExponentials(Search& search, const Instruction& instruction) {
  const ProgramIndex& index = search.index();
  const bool is_quotient = instruction.op == Op::kDivide;
  if (instruction.op != Op::kLog && instruction.op != Op::kReciprocal && !is_quotient) {
    return std::nullopt;
  }
  const ValueId sum = instruction.operands[is_quotient ? 1 : 0];
  const ValueId exponent = ExponentOf(index, sum, instruction.op == Op::kLog ? 1 : -1);
  if (exponent == kNoValue) return std::nullopt;
  if (instruction.op == Op::kLog) return Applied(Op::kSoftplus, exponent);
  if (instruction.op == Op::kReciprocal || index.Number(instruction.operands[0]) == 1.0) {
    return Applied(Op::kSigmoid, exponent);
  }
  if (exponent != instruction.operands[0]) return std::nullopt;
  return Applied(Op::kSilu, exponent);
}

}  // namespace deeppcr::program
