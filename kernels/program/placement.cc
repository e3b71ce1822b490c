// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/placement.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/dependence.h"
#include "kernels/program/frame_plan.h"

namespace deeppcr::program {
namespace {

Home HomeOf(int section) {
  switch (section) {
    case kOnNothing:
      return Home::kConstant;
    case kOnTime:
      return Home::kTime;
    case kOnCondition:
      return Home::kCondition;
    case kOnTimeAndCondition:
      return Home::kMixed;
    default:
      return Home::kFrame;
  }
}

class Placer {
 public:
  Placer(const Program& program, int64_t (*width_of)(int64_t size))
      : program_(program), width_of_(width_of) {}

  Placement Run() {
    FindExports();
    placed_.constant_floats = row_floats_[kOnNothing];
    placed_.time_floats = row_floats_[kOnTime];
    placed_.condition = PlaceSection(kOnCondition);
    placed_.mixed = PlaceSection(kOnTimeAndCondition);
    placed_.state = PlaceSection(kOnState);
    return std::move(placed_);
  }

 private:
  int SectionAt(ValueId id) const { return ClassOf(program_.at(id)); }
  int64_t WidthOf(ValueId id) const { return width_of_(program_.at(id).size); }

  // Gives values that another section reads a place in the row of their own section.
  void FindExports() {
    placed_.in_rows.assign(program_.values.size(), -1);
    for (const Instruction& instruction : program_.instructions) {
      const int section = SectionAt(instruction.result);
      for (const ValueId id : ReadInRows(instruction)) {
        const int from = SectionAt(id);
        if (from == section || placed_.in_rows[id] >= 0) continue;
        placed_.in_rows[id] = row_floats_[from];
        row_floats_[from] += WidthOf(id);
      }
    }
  }

  Place PlaceOf(ValueId id, int section) const {
    Place place = {.size = program_.at(id).size, .width = WidthOf(id)};
    const int from = SectionAt(id);
    place.home = from == section ? Home::kFrame : HomeOf(from);
    place.offset = from == section ? frame_[id] : placed_.in_rows[id];
    return place;
  }

  PlacedSection PlaceSection(int section) {
    PlacedSection placed;
    FramePlan plan;
    frame_.assign(program_.values.size(), -1);
    const std::vector<int64_t> last = LastReads(section);
    TakeInputs(section, &plan);
    for (size_t at = 0; at < program_.instructions.size(); ++at) {
      const Instruction& instruction = program_.instructions[at];
      if (SectionAt(instruction.result) != section) continue;
      const ValueId replaced = ReplacedBy(instruction, section, last, static_cast<int64_t>(at));
      frame_[instruction.result] =
          replaced != kNoValue ? frame_[replaced] : plan.Take(WidthOf(instruction.result));
      PlacedInstruction& made = placed.instructions.emplace_back();
      made.instruction = &instruction;
      for (const ValueId id : ReadInRows(instruction))
        made.operands.push_back(PlaceOf(id, section));
      made.result = PlaceOf(instruction.result, section);
      for (const ValueId id : Unique(instruction.operands)) {
        if (id != replaced && SectionAt(id) == section && last[id] == static_cast<int64_t>(at))
          plan.Free(frame_[id]);
      }
    }
    for (size_t i = 0; i < placed_.in_rows.size(); ++i) {
      const auto id = static_cast<ValueId>(i);
      if (placed_.in_rows[i] >= 0 && SectionAt(id) == section && section != kOnState)
        placed.exports.push_back({PlaceOf(id, section), placed_.in_rows[i]});
    }
    if (section == kOnState) {
      placed_.output = PlaceOf(program_.output, section);
      if (program_.prediction != kNoValue)
        placed_.prediction = PlaceOf(program_.prediction, section);
    }
    placed.row_floats = row_floats_[section];
    placed.frame_floats = plan.floats();
    return placed;
  }

  // The operand whose place a result takes, with its tangents: one that nothing reads behind
  // instruction `at`, of an operation whose tangents ask for no operand that moves.
  ValueId ReplacedBy(const Instruction& instruction, int section, const std::vector<int64_t>& last,
                     int64_t at) const {
    if (instruction.op != Op::kAdd && instruction.op != Op::kMultiply) return kNoValue;
    ValueId replaced = kNoValue;
    int64_t moving = 0;
    for (const ValueId id : instruction.operands) {
      if (SectionAt(id) != section) continue;
      ++moving;
      if (last[id] == at) replaced = id;
    }
    return instruction.op == Op::kAdd || moving == 1 ? replaced : kNoValue;
  }

  static std::vector<ValueId> Unique(std::vector<ValueId> ids) {
    std::ranges::sort(ids);
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
  }

  // The instruction of the section that reads a value last; the end for what lives beyond it.
  std::vector<int64_t> LastReads(int section) const {
    std::vector<int64_t> last(program_.values.size(), -1);
    for (size_t at = 0; at < program_.instructions.size(); ++at) {
      if (SectionAt(program_.instructions[at].result) != section) continue;
      for (const ValueId id : program_.instructions[at].operands)
        last[id] = static_cast<int64_t>(at);
    }
    const auto end = static_cast<int64_t>(program_.instructions.size());
    for (size_t i = 0; i < last.size(); ++i) {
      if (placed_.in_rows[i] >= 0) last[i] = end;
    }
    for (const ValueId id : {program_.output, program_.prediction, program_.state}) {
      if (id != kNoValue) last[id] = end;
    }
    return last;
  }

  void TakeInputs(int section, FramePlan* plan) {
    const auto take = [&](ValueId id, Place* place) {
      if (id == kNoValue || SectionAt(id) != section) return;
      frame_[id] = plan->Take(WidthOf(id));
      *place = PlaceOf(id, section);
    };
    take(program_.state, &placed_.state_input);
    take(program_.condition, &placed_.condition_input);
    take(program_.label, &placed_.label_input);
  }

  const Program& program_;
  int64_t (*const width_of_)(int64_t size);
  Placement placed_;
  std::array<int64_t, kNumClasses> row_floats_ = {};
  std::vector<int64_t> frame_;  // by value: offset in the frame being placed
};

// No probe passes through a value that jumps, but where a comparison makes it.
absl::Status CheckJump(const Program& program, const Instruction& instruction) {
  if (instruction.op != Op::kFloor && instruction.op != Op::kLookup) return absl::OkStatus();
  const Value& value = program.at(instruction.result);
  if (ClassOf(value) != kOnState) return absl::OkStatus();
  return absl::UnimplementedError(
      StrCat("a ", RowOf(instruction.op).name, " of something that depends on the state",
             value.name.empty() ? "" : StrCat(" (", Quoted(value.name), ")")));
}

absl::Status CheckConditionRows(const Placement& placement, int64_t num_steps, int64_t most_bytes) {
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  const int64_t once = placement.condition.row_floats * kFloat;
  const int64_t per_step = placement.mixed.row_floats * kFloat;
  const int64_t bytes = once + num_steps * per_step;
  if (bytes <= most_bytes) return absl::OkStatus();
  return ResourceExhausted("a condition gives ", once, " bytes, and ", per_step, " for each of ",
                           num_steps, " steps: ", bytes, " bytes a sample; ", most_bytes,
                           " are allowed");
}

}  // namespace

std::span<const ValueId> ReadInRows(const Instruction& instruction) {
  const std::span<const ValueId> all = instruction.operands;
  return instruction.op == Op::kProduct ? all.first(1) : all;
}

Placement PlaceValues(const Program& program, int64_t (*width_of)(int64_t size)) {
  return Placer(program, width_of).Run();
}

absl::Status CheckPlaced(const Program& program, const Placement& placement, int64_t num_steps,
                         int64_t most_condition_bytes, NoteProblem note) {
  if (program.prediction != kNoValue && ClassOf(program.at(program.prediction)) != kOnState)
    DEEPPCR_RETURN_IF_ERROR(
        note(InvalidArgument("the prediction of the denoiser does not depend on the state")));
  const absl::Status rows = CheckConditionRows(placement, num_steps, most_condition_bytes);
  if (!rows.ok()) DEEPPCR_RETURN_IF_ERROR(note(rows));
  for (const Instruction& instruction : program.instructions) {
    const absl::Status jump = CheckJump(program, instruction);
    if (!jump.ok()) DEEPPCR_RETURN_IF_ERROR(note(jump));
  }
  return absl::OkStatus();
}

}  // namespace deeppcr::program
