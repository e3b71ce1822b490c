// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/program_index.h"

#include <algorithm>

namespace deeppcr::program {

std::optional<double> NumberOf(const Value& value) {
  const std::vector<double>& elements = value.constant;
  if (elements.empty()) return std::nullopt;
  const auto differs = [&](double element) { return element != elements.front(); };
  if (std::any_of(elements.begin(), elements.end(), differs)) return std::nullopt;
  return elements.front();
}

ProgramIndex::ProgramIndex(const Program& program)
    : program_(program),
      makers_(program.values.size(), -1),
      reads_(program.values.size(), 0),
      readers_(program.values.size(), -1) {
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    makers_[static_cast<size_t>(instruction.result)] = static_cast<int32_t>(i);
    for (const ValueId operand : instruction.operands) {
      ++reads_[static_cast<size_t>(operand)];
      readers_[static_cast<size_t>(operand)] = static_cast<int32_t>(i);
    }
  }
  for (const ValueId end : {program.output, program.prediction}) {
    if (end == kNoValue) continue;
    ++reads_[static_cast<size_t>(end)];
  }
  numbers_.reserve(program.values.size());
  for (const Value& value : program.values) numbers_.push_back(NumberOf(value));
}

const Instruction* ProgramIndex::Inner(ValueId id, Op op) const {
  const Instruction* maker = Producer(id);
  return maker != nullptr && maker->op == op && ReadOnce(id) ? maker : nullptr;
}

const Instruction* ProgramIndex::OnlyReader(ValueId id) const {
  return ReadOnce(id) ? At(readers_[static_cast<size_t>(id)]) : nullptr;
}

}  // namespace deeppcr::program
