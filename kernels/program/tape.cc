// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/tape.h"

#include "kernels/program/dependence.h"
#include "kernels/program/placement.h"

namespace deeppcr::program {
namespace {

class Taper {
 public:
  Taper(const Program& program, uint8_t depends, int64_t (*width_of)(int64_t size))
      : program_(program),
        depends_(depends),
        width_of_(width_of),
        places_(program.values.size(), -1) {}

  Tape Run() {
    for (const Instruction& instruction : program_.instructions)
      if (IsHere(instruction.result)) tape_.instructions.push_back({.instruction = &instruction});
    FindExports();
    PlaceValues();
    GoBack();
    return std::move(tape_);
  }

 private:
  bool IsHere(ValueId id) const { return id != kNoValue && ClassOf(program_.at(id)) == depends_; }

  // Marks the values of the section that later sections read.
  void FindExports() {
    exported_.assign(program_.values.size(), 0);
    if (depends_ == kOnState) return;
    for (const Instruction& instruction : program_.instructions) {
      if (IsHere(instruction.result)) continue;
      for (const ValueId id : ReadInRows(instruction))
        if (IsHere(id)) exported_[static_cast<size_t>(id)] = 1;
    }
  }

  int64_t PlaceOf(ValueId id) const { return places_[static_cast<size_t>(id)]; }
  int64_t TakePlace(ValueId id) {
    const int64_t place = tape_.floats;
    tape_.floats += width_of_(program_.at(id).size);
    return places_[static_cast<size_t>(id)] = place;
  }

  void PlaceValues() {
    if (IsHere(program_.state)) tape_.state = TakePlace(program_.state);
    if (IsHere(program_.condition)) tape_.condition = TakePlace(program_.condition);
    if (IsHere(program_.label)) tape_.label = TakePlace(program_.label);
    for (TapedInstruction& taped : tape_.instructions)
      taped.result = TakePlace(taped.instruction->result);
    for (TapedInstruction& taped : tape_.instructions) {
      const Instruction& instruction = *taped.instruction;
      for (const ValueId id : ReadInRows(instruction))
        taped.operands.push_back(IsHere(id) ? PlaceOf(id) : -1);
      if (AddsNoise(instruction)) {
        tape_.noise = taped.result;
        tape_.noise_part = instruction.part;
      }
    }
    for (size_t id = 0; id < program_.values.size(); ++id)
      if (exported_[id] != 0) tape_.exports.push_back(places_[id]);
    if (depends_ == kOnState) tape_.output = PlaceOf(program_.output);
  }

  static bool AddsNoise(const Instruction& instruction) {
    return RowOf(instruction.op).kind == OpKind::kReverseStep &&
           (instruction.part == StepPart::kState || instruction.part == StepPart::kNoise);
  }

  // Goes through the instructions as the backward pass does.
  void GoBack() {
    std::vector<uint8_t> written = exported_;
    for (const ValueId id : {program_.state, program_.condition, program_.label})
      if (IsHere(id)) written[static_cast<size_t>(id)] = 1;
    if (depends_ == kOnState) written[static_cast<size_t>(program_.output)] = 1;
    for (size_t at = tape_.instructions.size(); at-- > 0;) {
      TapedInstruction& taped = tape_.instructions[at];
      const Instruction& instruction = *taped.instruction;
      taped.reached = written[static_cast<size_t>(instruction.result)] != 0;
      // The index of a row is nobody's to change: no cotangent is written.
      const bool gives = instruction.op != Op::kLookup;
      for (const ValueId id : ReadInRows(instruction)) {
        const bool here = IsHere(id);
        const bool moves = here || (program_.at(id).depends & kOnCondition) != 0;
        taped.wants.push_back(gives && moves);
        taped.adds.push_back(!here || written[static_cast<size_t>(id)] != 0);
        if (taped.reached && gives && here) written[static_cast<size_t>(id)] = 1;
      }
    }
  }

  const Program& program_;
  const uint8_t depends_;
  int64_t (*const width_of_)(int64_t size);
  Tape tape_;
  std::vector<uint8_t> exported_;  // by value
  std::vector<int64_t> places_;    // by value
};

}  // namespace

Tape MakeTape(const Program& program, uint8_t depends, int64_t (*width_of)(int64_t size)) {
  return Taper(program, depends, width_of).Run();
}

}  // namespace deeppcr::program
