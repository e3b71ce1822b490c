// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/cost.h"

#include <algorithm>
#include <numeric>

namespace deeppcr::program {
namespace {

// Multiply-adds for each element of the operand of an operation along an axis.
double PassesOf(Op op) {
  switch (op) {
    case Op::kStandardize:  // mean, variance, scale
    case Op::kSoftmax:      // largest, exponentials, quotient
      return 3;
    case Op::kScaleToUnit:
      return 2;
    default:
      return 1;
  }
}

// x0 takes two, the sum four.
constexpr double kOfReverseStep = 6;

}  // namespace

double MultiplyAdds(const Program& program, const Instruction& instruction) {
  const auto size = static_cast<double>(program.at(instruction.result).size);
  switch (RowOf(instruction.op).kind) {
    case OpKind::kElementwise:
      return size;
    case OpKind::kReduction:
    case OpKind::kAlongAxis:
      return PassesOf(instruction.op) *
             static_cast<double>(program.at(instruction.operands[0]).size);
    case OpKind::kLinear:
    case OpKind::kProduct:
      return size * static_cast<double>(instruction.linear.cols);
    case OpKind::kLookup:
    case OpKind::kArrange:
      return 0;
    case OpKind::kReverseStep:
      return kOfReverseStep * size;
  }
  return 0;
}

double Costs::total() const { return std::accumulate(by_class.begin(), by_class.end(), 0.0); }

double Costs::ShareInStep() const {
  const double all = total();
  return all == 0 ? 0 : by_class[kOnState] / all;
}

Costs CostsOf(const Program& program) {
  Costs costs;
  for (const Instruction& instruction : program.instructions) {
    const int k = ClassOf(program.at(instruction.result));
    costs.by_class[static_cast<size_t>(k)] += MultiplyAdds(program, instruction);
  }
  return costs;
}

int64_t StepWeights(const Program& program) {
  constexpr auto kMost = static_cast<double>(int64_t{1} << 52);
  return static_cast<int64_t>(std::clamp(CostsOf(program).by_class[kOnState], 1.0, kMost));
}

}  // namespace deeppcr::program
