// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/cost.h"

#include <algorithm>
#include <numeric>

namespace deeppcr::program {

double MultiplyAdds(const Program& program, const Instruction& instruction) {
  const OpRow& row = RowOf(instruction.op);
  const auto size = static_cast<double>(program.at(instruction.result).size);
  switch (row.kind) {
    case OpKind::kReduction:
    case OpKind::kAlongAxis:
      return row.cost * static_cast<double>(program.at(instruction.operands[0]).size);
    case OpKind::kLinear:
    case OpKind::kProduct:
      return row.cost * size * static_cast<double>(instruction.linear.cols);
    default:
      return row.cost * size;
  }
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
