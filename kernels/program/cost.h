// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_COST_H_
#define DEEPPCR_KERNELS_PROGRAM_COST_H_

#include <array>
#include <cstdint>

#include "kernels/program/dependence.h"
#include "kernels/program/program.h"

namespace deeppcr::program {

// Multiply-adds of an instruction for one sample, where each elementwise operation counts as one an
// element, a reduction as one an element of its operand, softmax and layer norm as three, RMS norm
// as two, a reverse step as six, and moving numbers as none. A double, which no program overflows.
double MultiplyAdds(const Program& program, const Instruction& instruction);

// The same of all instructions, by the class of their results.
struct Costs {
  std::array<double, kNumClasses> by_class = {};

  double total() const;
  // Multiply-adds that every step takes for every sample, of all that a loop would take which makes
  // the whole program in each step: in [0, 1]; 0 for no work at all.
  double ShareInStep() const;
};
Costs CostsOf(const Program& program);

// Multiply-adds of a step as the backends' specifications want them: 1 at least.
int64_t StepWeights(const Program& program);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_COST_H_
