// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/program/joins.h"

#include <algorithm>
#include <vector>

#include "kernels/program/activation.h"
#include "kernels/program/dependence.h"

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

// A product of a vector with one number, which the instruction before it repeats. The number has to
// be where it was when the product is written.
bool ScalesAVector(const PackedInstruction& repeats, const PackedInstruction& product) {
  if (repeats.op != Op::kArrange || product.op != Op::kMultiply) return false;
  if (repeats.runs.size() != 1 || !repeats.runs[0].repeated) return false;
  const Place& number = repeats.operands[repeats.runs[0].operand];
  return number.home != Home::kFrame || number.offset != product.result.offset;
}

bool AreSineAndCosine(const Instruction& first, const Instruction& second) {
  const bool both = (first.op == Op::kSin && second.op == Op::kCos) ||
                    (first.op == Op::kCos && second.op == Op::kSin);
  return both && first.operands[0] == second.operands[0];
}

}  // namespace

void JoinInstructions(const Program& program, int section, PackedSection* packed) {
  const std::vector<int> reads = ReadsOf(program);
  std::vector<const Instruction*> all;
  for (const Instruction& instruction : program.instructions)
    if (program::ClassOf(program.at(instruction.result)) == section) all.push_back(&instruction);
  // The result of instruction i is read by the one behind it, and by no other.
  const auto passes_on = [&](size_t i) {
    return i + 1 < all.size() && reads[all[i]->result] == 1 &&
           std::ranges::count(all[i + 1]->operands, all[i]->result) == 1;
  };
  const auto activates = [&](size_t i) { return program::ActivationOf(all[i]->op).has_value(); };
  const auto is = [&](size_t i, Op op) { return all[i]->op == op; };
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    PackedInstruction& joined = packed->instructions[i];
    if (AreSineAndCosine(*all[i], *all[i + 1])) {
      joined.together = 2;
    } else if (passes_on(i) && is(i, Op::kAdd) && activates(i + 1)) {
      joined.together = passes_on(i + 1) && is(i + 2, Op::kAdd) ? 3 : 2;
    } else if (passes_on(i) && (activates(i) || is(i, Op::kMultiply)) && is(i + 1, Op::kAdd)) {
      joined.together = 2;
    } else if (passes_on(i) && ScalesAVector(joined, packed->instructions[i + 1])) {
      joined.together = 2;
    } else {
      continue;
    }
    i += static_cast<size_t>(joined.together) - 1;
    joined.other = all[i]->operands[0] == all[i - 1]->result ? 1 : 0;
  }
  for (size_t i = 0; i + 2 < all.size(); ++i) {
    PackedInstruction& layer = packed->instructions[i];
    const bool branches = packed->instructions[i + 1].together > 1 &&
                          (activates(i + 1) || (is(i + 1, Op::kAdd) && activates(i + 2)));
    layer.activated = layer.layers != nullptr && layer.repeat == 1 && passes_on(i) && branches;
    if (layer.activated) layer.other = all[i + 1]->operands[0] == all[i]->result ? 1 : 0;
  }
}

}  // namespace deeppcr::cpu
