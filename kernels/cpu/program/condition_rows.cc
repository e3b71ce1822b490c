// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/program/condition_rows.h"

#include <algorithm>

namespace deeppcr::cpu {

void GiveExports(const PackedSection& section, Executor& executor, int64_t r, float* row) {
  for (const Export& value : section.exports)
    std::copy_n(executor.Row(value.from, r), value.from.width, row + value.to);
}

void TakeCondition(const SampleInput& input, const Place& vector, const Place& label,
                   Executor& executor) {
  const auto take = [&](const Place& place, const float* from) {
    if (place.width == 0) return;
    float* to = executor.Row(place, 0);
    std::copy_n(from, place.size, to);
    std::fill(to + place.size, to + place.width, 0.0F);
  };
  const auto index = static_cast<float>(input.label);
  take(vector, input.inputs);
  take(label, &index);
}

ConditionRows::ConditionRows(const PackedProgramSystem& model)
    : model_(model),
      condition_(model.program.condition, model.program_kernels, model.clip_range, 1, 0),
      mixed_(model.program.mixed, model.program_kernels, model.clip_range, kModulationTile, 0) {}

int64_t ConditionRows::Floats(const PackedProgramSystem& model) {
  return Executor::Floats(model.program.condition, 1, 0) +
         Executor::Floats(model.program.mixed, kModulationTile, 0);
}

void ConditionRows::Fill(const SampleInput& input, const Sharing* sharing, float* rows) {
  const PackedProgram& p = model_.program;
  TakeCondition(input, p.condition_input, p.label_input, condition_);
  contexts_[0] = {};
  contexts_[0].rows[static_cast<size_t>(Home::kConstant)] = p.constants.data();
  condition_.Run(contexts_.data(), 1, {}, nullptr, input.token);
  GiveExports(p.condition, condition_, 0, rows);
  if (p.mixed.row_floats == 0) return;
  const int64_t num_steps = model_.shape.num_steps;
  for (int64_t begin = 0; begin < num_steps && !Fired(input.token); begin += kModulationTile) {
    const int64_t count = std::min(kModulationTile, num_steps - begin);
    for (int64_t r = 0; r < count; ++r) contexts_[r] = model_.ContextOf(begin + r, rows);
    mixed_.Run(contexts_.data(), count, {}, sharing, input.token);
    for (int64_t r = 0; r < count; ++r)
      GiveExports(p.mixed, mixed_, r,
                  rows + p.condition.row_floats + (begin + r) * p.mixed.row_floats);
  }
}

}  // namespace deeppcr::cpu
