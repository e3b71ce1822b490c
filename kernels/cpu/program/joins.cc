// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/program/joins.h"

#include <algorithm>
#include <vector>

#include "kernels/program/activation.h"

namespace deeppcr::cpu {
namespace {

using program::Instruction;
using program::Op;
using program::Program;

// By value: instructions and outputs that read it.
std::vector<int> ReadsOf(const Program& program) {
  std::vector<int> reads(program.values.size());
  for (const Instruction& instruction : program.instructions)
    for (const program::ValueId id : instruction.operands) ++reads[id];
  for (const program::ValueId id : {program.output, program.prediction})
    if (id != program::kNoValue) ++reads[id];
  return reads;
}

bool AreSineAndCosine(const Instruction& first, const Instruction& second) {
  const bool both = (first.op == Op::kSin && second.op == Op::kCos) ||
                    (first.op == Op::kCos && second.op == Op::kSin);
  return both && first.operands[0] == second.operands[0];
}

}  // namespace

void JoinInstructions(const Program& program, uint8_t section, PackedSection* packed) {
  const std::vector<int> reads = ReadsOf(program);
  std::vector<const Instruction*> all;
  for (const Instruction& instruction : program.instructions)
    if (SectionOf(program.at(instruction.result).depends) == section) all.push_back(&instruction);
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    const Instruction &first = *all[i], &second = *all[i + 1];
    PackedInstruction& joined = packed->instructions[i];
    if (AreSineAndCosine(first, second)) {
      joined.together = 2;
      ++i;
    } else if (first.op == Op::kMultiply && second.op == Op::kAdd && reads[first.result] == 1 &&
               std::ranges::count(second.operands, first.result) == 1) {
      joined.together = 2;
      joined.addend = second.operands[0] == first.result ? 1 : 0;
    } else if (first.op == Op::kAdd && program::ActivationOf(second.op).has_value() &&
               reads[first.result] == 1 && second.operands[0] == first.result) {
      const bool added = i + 2 < all.size() && all[i + 2]->op == Op::kAdd &&
                         reads[second.result] == 1 && all[i + 2]->operands[1] == second.result;
      joined.together = added ? 3 : 2;
    }
  }
}

}  // namespace deeppcr::cpu
