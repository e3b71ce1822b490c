// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/polynomial.h"

#include <cmath>

namespace deeppcr::program {
namespace {

// Float32 constants are within 6e-8 of what they stand for, and so are products of a few.
constexpr double kPrecisionOfConstants = 1e-6;
// Levels that the longest way to write gelu_tanh needs, and some more.
constexpr int kDeepest = 8;

Cubic Number(double number) { return {kNoValue, {number, 0, 0, 0}}; }

// The value that both are polynomials of; nothing if there are two.
std::optional<ValueId> Common(const Cubic& a, const Cubic& b) {
  if (a.of == kNoValue || a.of == b.of) return b.of;
  if (b.of == kNoValue) return a.of;
  return std::nullopt;
}

std::optional<Cubic> Sum(const Cubic& a, const Cubic& b, double sign_of_b) {
  const std::optional<ValueId> of = Common(a, b);
  if (!of.has_value()) return std::nullopt;
  Cubic sum = {*of, a.by_power};
  for (size_t k = 0; k < sum.by_power.size(); ++k) sum.by_power[k] += sign_of_b * b.by_power[k];
  return sum;
}

std::optional<Cubic> Product(const Cubic& a, const Cubic& b) {
  const std::optional<ValueId> of = Common(a, b);
  if (!of.has_value()) return std::nullopt;
  Cubic product = {*of, {}};
  for (size_t i = 0; i < a.by_power.size(); ++i) {
    for (size_t k = 0; k < b.by_power.size(); ++k) {
      const double coefficient = a.by_power[i] * b.by_power[k];
      if (coefficient == 0) continue;
      if (i + k >= product.by_power.size()) return std::nullopt;
      product.by_power[i + k] += coefficient;
    }
  }
  return product;
}

std::optional<Cubic> Read(const ProgramIndex& index, ValueId id, int levels);

// The polynomial that an instruction makes of its operands'; nothing if it makes none.
std::optional<Cubic> Make(const ProgramIndex& index, const Instruction& made, int levels) {
  const auto operand = [&](size_t i) { return Read(index, made.operands[i], levels - 1); };
  const std::optional<Cubic> a = operand(0);
  if (!a.has_value()) return std::nullopt;
  if (made.op == Op::kNegate) return Product(*a, Number(-1));
  if (made.op == Op::kSquare) return Product(*a, *a);
  const std::optional<Cubic> b = operand(1);
  if (!b.has_value()) return std::nullopt;
  switch (made.op) {
    case Op::kAdd:
      return Sum(*a, *b, 1);
    case Op::kSubtract:
      return Sum(*a, *b, -1);
    case Op::kMultiply:
      return Product(*a, *b);
    case Op::kDivide:
      if (b->of != kNoValue || b->by_power[0] == 0) return std::nullopt;
      return Product(*a, Number(1 / b->by_power[0]));
    default: {  // kPower
      if (b->of != kNoValue || b->by_power[0] != 3) return std::nullopt;
      const std::optional<Cubic> square = Product(*a, *a);
      return square.has_value() ? Product(*square, *a) : std::nullopt;
    }
  }
}

bool MakesPolynomials(Op op) {
  switch (op) {
    case Op::kNegate:
    case Op::kSquare:
    case Op::kAdd:
    case Op::kSubtract:
    case Op::kMultiply:
    case Op::kDivide:
    case Op::kPower:
      return true;
    default:
      return false;
  }
}

std::optional<Cubic> Read(const ProgramIndex& index, ValueId id, int levels) {
  if (const std::optional<double> number = index.Number(id); number.has_value()) {
    return Number(*number);
  }
  const Cubic itself = {id, {0, 1, 0, 0}};
  const Instruction* maker = index.Producer(id);
  if (maker == nullptr || !MakesPolynomials(maker->op) || !index.ReadOnce(id) || levels == 0) {
    return itself;
  }
  return Make(index, *maker, levels);
}

}  // namespace

bool Cubic::Is(const std::array<double, 4>& coefficients) const {
  for (size_t k = 0; k < by_power.size(); ++k) {
    const double error = std::fabs(by_power[k] - coefficients[k]);
    if (!(error <= kPrecisionOfConstants * std::fabs(coefficients[k]))) return false;
  }
  return of != kNoValue;
}

std::optional<Cubic> CubicOf(const ProgramIndex& index, ValueId id) {
  return Read(index, id, kDeepest);
}

}  // namespace deeppcr::program
