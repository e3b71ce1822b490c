// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/norms.h"

#include <cmath>

namespace deeppcr::program {
namespace {

bool SameAxis(const Axis& a, const Axis& b) {
  return a.outer == b.outer && a.length == b.length && a.inner == b.inner;
}

// Whether an arrangement gives [outer, inner] to all elements of [outer, length, inner].
bool Broadcasts(Search& search, const Instruction& arrange, const Axis& axis) {
  const auto size = static_cast<int64_t>(arrange.elements.size());
  if (arrange.operands.size() != 1 || size != axis.outer * axis.length * axis.inner) return false;
  if (!search.Spend(size)) return false;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t line = i / (axis.length * axis.inner) * axis.inner + i % axis.inner;
    if (arrange.elements[static_cast<size_t>(i)].index != line) return false;
  }
  return true;
}

// Walks from a value to the values that make it, all of which nothing else reads, past at most one
// arrangement, which may stand anywhere.
class Walk {
 public:
  Walk(const ProgramIndex& index, ValueId from) : index_(index), at_(from) { PassArrangement(); }

  // Goes on to the operand of an instruction, if the value is the result of an `op`.
  bool Pass(Op op) {
    const Instruction* maker = index_.Inner(at_, op);
    if (maker == nullptr) return false;
    last_ = maker;
    at_ = maker->operands[0];
    PassArrangement();
    return true;
  }

  // Goes on to the first operand of an `op`, or past a sum with a constant in either order.
  std::optional<double> PassNumber(Op op) {
    const Instruction* maker = index_.Inner(at_, op);
    if (maker == nullptr) return std::nullopt;
    size_t number = 1;
    if (op == Op::kAdd && !index_.Number(maker->operands[1]).has_value()) number = 0;
    const std::optional<double> constant = index_.Number(maker->operands[number]);
    if (!constant.has_value()) return std::nullopt;
    at_ = maker->operands[1 - number];
    PassArrangement();
    return constant;
  }

  ValueId at() const { return at_; }
  // The instruction passed last.
  const Instruction& last() const { return *last_; }
  const Instruction* arrangement() const { return arrangement_; }

 private:
  void PassArrangement() {
    const Instruction* maker = index_.Inner(at_, Op::kArrange);
    if (maker == nullptr || arrangement_ != nullptr) return;
    arrangement_ = maker;
    at_ = maker->operands[0];
  }

  const ProgramIndex& index_;
  ValueId at_;
  const Instruction* last_ = nullptr;
  const Instruction* arrangement_ = nullptr;
};

// The value whose mean along the axis `centred` is without; no value if it is not.
ValueId WithoutMean(Search& search, ValueId centred, const Axis& axis) {
  const ProgramIndex& index = search.index();
  const Instruction* difference = index.Producer(centred);
  // Read twice: by the square and by what scales it.
  if (difference == nullptr || difference->op != Op::kSubtract || index.Reads(centred) != 2) {
    return kNoValue;
  }
  Walk walk(index, difference->operands[1]);
  if (walk.arrangement() == nullptr || !walk.Pass(Op::kMean)) return kNoValue;
  const bool fits = walk.at() == difference->operands[0] && SameAxis(walk.last().axis, axis) &&
                    Broadcasts(search, *walk.arrangement(), axis);
  return fits ? difference->operands[0] : kNoValue;
}

// The norm by a walk that has passed the root.
std::optional<Norm> NormOf(Search& search, Walk& walk) {
  const std::optional<double> epsilon = walk.PassNumber(Op::kAdd);
  if (!epsilon.has_value() || !(*epsilon > 0) || !std::isfinite(*epsilon)) return std::nullopt;
  if (walk.arrangement() == nullptr || !walk.Pass(Op::kMean)) return std::nullopt;
  const Axis axis = walk.last().axis;
  const Instruction* square = search.index().Inner(walk.at(), Op::kSquare);
  if (square == nullptr) return std::nullopt;
  if (!Broadcasts(search, *walk.arrangement(), axis)) return std::nullopt;
  const ValueId scaled = square->operands[0];
  const ValueId uncentred = WithoutMean(search, scaled, axis);
  if (uncentred != kNoValue) return Norm{Op::kStandardize, uncentred, scaled, axis, *epsilon};
  return Norm{Op::kScaleToUnit, scaled, scaled, axis, *epsilon};
}

}  // namespace

std::optional<Norm> NormByFactor(Search& search, ValueId factor) {
  Walk walk(search.index(), factor);
  if (walk.Pass(Op::kReciprocal)) {
    if (!walk.Pass(Op::kSqrt)) return std::nullopt;
  } else if (walk.PassNumber(Op::kPower) != -0.5) {
    return std::nullopt;
  }
  return NormOf(search, walk);
}

std::optional<Norm> NormByDivisor(Search& search, ValueId divisor) {
  Walk walk(search.index(), divisor);
  if (!walk.Pass(Op::kSqrt)) return std::nullopt;
  return NormOf(search, walk);
}

absl::StatusOr<ValueId> WriteNorm(ProgramWriter& writer, const Norm& norm) {
  return writer.builder().AddAlongAxis(norm.op, writer.Now(norm.operand), norm.axis, norm.epsilon);
}

std::optional<Rewrite> RecogniseQuotientNorm(Search& search, const Instruction& instruction) {
  if (instruction.op != Op::kDivide) return std::nullopt;
  const std::optional<Norm> norm = NormByDivisor(search, instruction.operands[1]);
  if (!norm.has_value() || norm->scaled != instruction.operands[0]) return std::nullopt;
  Rewrite rewrite;
  rewrite.reads = {norm->operand};
  rewrite.write = [norm = *norm](ProgramWriter& writer) { return WriteNorm(writer, norm); };
  return rewrite;
}

}  // namespace deeppcr::program
