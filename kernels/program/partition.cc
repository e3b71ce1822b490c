// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/partition.h"

#include "kernels/program/dependence.h"

namespace deeppcr::program {
namespace {

// Section of a class; null for constants.
Section* SectionOf(Sections& sections, int dependence) {
  switch (dependence) {
    case kOnTime:
      return &sections.time;
    case kOnCondition:
      return &sections.condition;
    case kOnTimeAndCondition:
      return &sections.mixed;
    case kOnState:
      return &sections.state;
    default:
      return nullptr;
  }
}

// Which sections read a value: bits by class.
std::vector<uint32_t> ReadersOf(const Program& program) {
  std::vector<uint32_t> readers(program.values.size());
  for (const Instruction& instruction : program.instructions) {
    const int by = ClassOf(program.at(instruction.result));
    for (const ValueId id : instruction.operands) readers[static_cast<size_t>(id)] |= 1U << by;
  }
  if (program.prediction != kNoValue) {
    readers[static_cast<size_t>(program.prediction)] |= 1U << kOnState;
  }
  return readers;
}

}  // namespace

Sections Partition(const Program& program) {
  Sections sections;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const int of = ClassOf(program.at(program.instructions[i].result));
    if (Section* section = SectionOf(sections, of)) {
      section->instructions.push_back(static_cast<int32_t>(i));
    }
  }
  const std::vector<uint32_t> readers = ReadersOf(program);
  for (size_t i = 0; i < program.values.size(); ++i) {
    const int of = ClassOf(program.values[i]);
    Section* section = SectionOf(sections, of);
    const auto read_by = [&](int by) { return by > of && (readers[i] >> by & 1U) != 0; };
    if (section == nullptr) continue;
    if (read_by(kOnTimeAndCondition)) section->read_by_mixed.push_back(static_cast<ValueId>(i));
    if (read_by(kOnState)) section->read_by_step.push_back(static_cast<ValueId>(i));
  }
  return sections;
}

}  // namespace deeppcr::program
