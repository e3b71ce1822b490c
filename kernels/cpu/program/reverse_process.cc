// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/program/reverse_process.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/diffusion/coarse_hold.h"

namespace deeppcr::cpu {
namespace {

int64_t InputFloats(const PackedProgramSystem& model) {
  return model.condition_per_sample() ? model.group * model.shape.input_dim : 0;
}
int64_t ConditionFloats(const PackedProgramSystem& model) {
  return model.condition_per_sample() ? model.group * model.condition_floats() : 0;
}

}  // namespace

ReverseProcess::ReverseProcess(const PackedProgramSystem& model)
    : ProgramRecurrence(model),
      noise_(model.coefficients, model.shape.sample_dim(), model.noise_width(), model.group),
      inputs_(InputFloats(model)),
      conditions_(ConditionFloats(model)),
      prediction_(model.program.prediction.width),
      condition_(model) {
  slots_.fill(kNoSlot);
}

int64_t ReverseProcess::Bytes(const PackedProgramSystem& model) {
  const int64_t floats =
      StepNoise::Floats(model.shape.num_steps, model.noise_width(), model.group) +
      InputFloats(model) + ConditionFloats(model) + model.program.prediction.width +
      ConditionRows::Floats(model);
  return floats * int64_t{sizeof(float)} + ProgramRecurrence::Bytes(model);
}

bool ReverseProcess::ok() const {
  return ProgramRecurrence::ok() && noise_.ok() && inputs_.ok() && conditions_.ok() &&
         prediction_.ok() && condition_.ok();
}

void ReverseProcess::Encode(int32_t sample, const SampleInput& input, float* z) {
  EncodeInitialNoise(input, model_.initial_scale, model_.shape.sample_dim(), width_, z);
  noise_.Encode(sample, input, model_.program_kernels);
  EncodeCondition(sample, input);
}

// Points the sample to its rows. Samples of one condition that follow one another share theirs: a
// slot is filled only while no sample points to it.
void ReverseProcess::EncodeCondition(int32_t sample, const SampleInput& input) {
  if (!model_.condition_per_sample()) {
    rows_[sample] = model_.classes.data() + input.label * model_.condition_floats();
    return;
  }
  slots_[sample] = kNoSlot;
  int32_t slot = sample > 0 ? slots_[sample - 1] : kNoSlot;
  if (slot == kNoSlot || !Holds(slot, input)) {
    slot = FreeSlot();
    Fill(slot, input);
  }
  slots_[sample] = slot;
  rows_[sample] = conditions_.data() + slot * model_.condition_floats();
}

bool ReverseProcess::Holds(int32_t slot, const SampleInput& input) const {
  const auto bytes = static_cast<size_t>(model_.shape.input_dim) * sizeof(float);
  const float* inputs = inputs_.data() + slot * model_.shape.input_dim;
  return complete_[slot] && labels_[slot] == input.label &&
         (bytes == 0 || std::memcmp(inputs, input.inputs, bytes) == 0);
}

// There are as many slots as samples.
int32_t ReverseProcess::FreeSlot() const {
  int32_t slot = 0;
  while (std::ranges::find(slots_, slot) != slots_.end()) ++slot;
  return slot;
}

void ReverseProcess::Fill(int32_t slot, const SampleInput& input) {
  const int64_t inputs = model_.shape.input_dim;
  if (inputs > 0) std::copy_n(input.inputs, inputs, inputs_.data() + slot * inputs);
  labels_[slot] = input.label;
  condition_.Fill(input, sharing(), conditions_.data() + slot * model_.condition_floats());
  complete_[slot] = !Fired(input.token);
}

RowContext ReverseProcess::ContextOf(int32_t sample, int64_t step) const {
  RowContext context = model_.ContextOf(step, rows_[sample]);
  context.noise = noise_.At(sample, step);
  return context;
}

PassCount ReverseProcess::GuessCoarse(int64_t interval, int64_t stride, float* states,
                                      const CancelToken* token) {
  const int64_t every = CoarseStride(num_steps_);
  PassCount cost;
  cost.columns = 1;
  float* z = states_.data();
  std::copy_n(states, dim_, z);
  std::fill(z + dim_, z + state_width_, 0.0F);
  const CoarseHold hold = {.coefficients = model_.coefficients,
                           .holds = model_.holds,
                           .memory_holds = model_.memory_holds,
                           .clip_range = model_.clip_range,
                           .dim = model_.shape.sample_dim(),
                           .width = width_,
                           .interval = interval,
                           .stride = stride};
  for (int64_t begin = 0; begin < num_steps_ && !Fired(token); begin += every, ++cost.stages) {
    std::copy_n(z, state_width_, State(0));
    contexts_[0] = ContextOf(0, begin);
    step_.Run(contexts_.data(), 1, {}, sharing());
    std::copy_n(step_.Row(model_.program.prediction, 0), prediction_.size(), prediction_.data());
    hold.Advance(begin, std::min(begin + every, num_steps_), noise_, ScaleAt(begin), z,
                 prediction_.data(), states);
  }
  return cost;
}

// Makes the scale of the noise from the v of the prediction, in its place; null where it is fixed.
const float* ReverseProcess::ScaleAt(int64_t step) {
  if (model_.noise_scale == NoiseScale::kFixed) return nullptr;
  ReverseStep of_step;
  of_step.sigma_v = model_.parts[step * kNumStepParts + static_cast<int>(StepPart::kSpread)].z_z;
  float* v = prediction_.data() + model_.shape.sample_dim();
  for (int64_t i = 0; i < model_.shape.sample_dim(); ++i)
    v[i] = static_cast<float>(NoiseScaleAt(model_.noise_scale, of_step, v[i]));
  return v;
}

}  // namespace deeppcr::cpu
