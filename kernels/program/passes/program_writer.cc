// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/program_writer.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/program/passes/program_index.h"

namespace deeppcr::program {

ProgramWriter::ProgramWriter(const Program& from, const ProgramLimits& limits)
    : from_(from), builder_(limits), now_(from.values.size(), kNoValue) {}

absl::Status ProgramWriter::Begin(const std::vector<bool>& needed, int64_t more) {
  const auto set = [&](ValueId old, auto add) -> absl::Status {
    if (old == kNoValue) return absl::OkStatus();
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId now, add(from_.at(old)));
    Set(old, now);
    return absl::OkStatus();
  };
  DEEPPCR_RETURN_IF_ERROR(
      set(from_.state, [&](const Value& value) { return builder_.AddState(value.size); }));
  DEEPPCR_RETURN_IF_ERROR(set(from_.time, [&](const Value&) { return builder_.AddTime(); }));
  DEEPPCR_RETURN_IF_ERROR(AddCondition(more));
  DEEPPCR_RETURN_IF_ERROR(set(from_.label, [&](const Value&) { return builder_.AddLabel(); }));
  for (const StackedConstant& stacked : from_.stacked) {
    if (!needed[static_cast<size_t>(stacked.value)]) continue;
    DEEPPCR_RETURN_IF_ERROR(set(stacked.value, [&](const Value& value) {
      return builder_.AddStacked(stacked.rows, value.size);
    }));
  }
  for (size_t i = 0; i < from_.values.size(); ++i) {
    if (!needed[i] || from_.values[i].constant.empty()) continue;
    DEEPPCR_RETURN_IF_ERROR(set(static_cast<ValueId>(i), [&](const Value& value) {
      return builder_.AddConstant(value.constant);
    }));
  }
  return absl::OkStatus();
}

absl::Status ProgramWriter::AddCondition(int64_t more) {
  const int64_t size = from_.condition == kNoValue ? 0 : from_.at(from_.condition).size;
  if (size + more == 0) return absl::OkStatus();
  DEEPPCR_ASSIGN_OR_RETURN(ValueId now, builder_.AddCondition(size + more));
  if (size == 0) return absl::OkStatus();
  if (more > 0) {
    DEEPPCR_ASSIGN_OR_RETURN(now, builder_.AddPart(now, 0, size));
  }
  Set(from_.condition, now);
  return absl::OkStatus();
}

absl::StatusOr<ValueId> ProgramWriter::AddMore(int64_t first, int64_t count) {
  const int64_t size = from_.condition == kNoValue ? 0 : from_.at(from_.condition).size;
  return builder_.AddPart(builder_.program().condition, size + first, count);
}

absl::StatusOr<Program> ProgramWriter::Finish() {
  return builder_.Finish(Now(from_.output),
                         from_.prediction == kNoValue ? kNoValue : Now(from_.prediction));
}

std::vector<ValueId> ProgramWriter::Now(const std::vector<ValueId>& old) const {
  std::vector<ValueId> now;
  now.reserve(old.size());
  for (const ValueId id : old) now.push_back(Now(id));
  return now;
}

void ProgramWriter::Set(ValueId old, ValueId now) {
  now_[static_cast<size_t>(old)] = now;
  if (!from_.at(old).name.empty()) builder_.Name(now, from_.at(old).name);
}

const Instruction* ProgramWriter::Producer(ValueId id) {
  const Program& program = builder_.program();
  makers_.resize(program.values.size(), -1);
  for (; known_instructions_ < program.instructions.size(); ++known_instructions_) {
    const ValueId result = program.instructions[known_instructions_].result;
    makers_[static_cast<size_t>(result)] = static_cast<int32_t>(known_instructions_);
  }
  const int32_t maker = makers_[static_cast<size_t>(id)];
  return maker < 0 ? nullptr : &program.instructions[static_cast<size_t>(maker)];
}

std::optional<double> ProgramWriter::Number(ValueId id) {
  const std::vector<Value>& values = builder_.program().values;
  while (numbers_.size() < values.size()) numbers_.push_back(NumberOf(values[numbers_.size()]));
  return numbers_[static_cast<size_t>(id)];
}

absl::StatusOr<ValueId> ProgramWriter::AddNumber(double number, int64_t size) {
  return builder_.AddConstant(std::vector<double>(static_cast<size_t>(size), number));
}

}  // namespace deeppcr::program
