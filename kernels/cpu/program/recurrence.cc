// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/program/recurrence.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/diffusion/coarse_hold.h"
#include "kernels/cpu/diffusion/sharing.h"

namespace deeppcr::cpu {
namespace {

// Sizes of the buffers, in floats.
struct ProgramSizes {
  int64_t noise, inputs, conditions, states, tangents, condition_frames, step_frame;

  explicit ProgramSizes(const PackedProgramSystem& model) {
    const PackedProgram& p = model.program;
    const int64_t num_steps = model.shape.num_steps, width = p.state_input.width;
    noise = StepNoise::Floats(num_steps, width, model.group);
    const bool per_sample = model.condition_per_sample();
    inputs = per_sample ? model.group * model.shape.input_dim : 0;
    conditions = per_sample ? model.group * model.condition_floats() : 0;
    states = (kStatesTogether + 1) * width;
    tangents = std::max<int64_t>(kTangentTile, kNumProbes + model.shape.state_dim) * width;
    condition_frames = ConditionRows::Floats(model);
    step_frame =
        Executor::Floats(p.state, std::max(kDiffusionGroup, kStatesTogether), kTangentTile);
  }
  int64_t total() const {
    return noise + inputs + conditions + states + tangents + condition_frames + step_frame;
  }
};

}  // namespace

ProgramRecurrence::ProgramRecurrence(const PackedProgramSystem& model)
    : model_(model),
      dim_(model.shape.state_dim),
      num_steps_(model.shape.num_steps),
      width_(model.width),
      state_width_(model.program.state_input.width),
      sharing_{&ShareByTeam, nullptr},
      decoder_(model.decoder, dim_, model.denoiser_kernels),
      noise_(model.coefficients, dim_, state_width_, model.group),
      inputs_(ProgramSizes(model).inputs),
      conditions_(ProgramSizes(model).conditions),
      states_(kStatesTogether * state_width_),
      tangents_(ProgramSizes(model).tangents),
      prediction_(state_width_),
      condition_(model),
      step_(model.program.state, model.program_kernels, model.clip_range, kRows, kTangentTile) {}

int64_t ProgramRecurrence::Bytes(const PackedProgramSystem& model) {
  return ProgramSizes(model).total() * int64_t{sizeof(float)} +
         DenseChain::Bytes(model.decoder, model.shape.state_dim);
}

bool ProgramRecurrence::ok() const {
  return decoder_.ok() && noise_.ok() && inputs_.ok() && conditions_.ok() && states_.ok() &&
         tangents_.ok() && prediction_.ok() && condition_.ok() && step_.ok();
}

void ProgramRecurrence::Encode(int32_t sample, const SampleInput& input, float* z) {
  EncodeInitialNoise(input, dim_, width_, z);
  noise_.Encode(sample, input, model_.denoiser_kernels);
  EncodeCondition(sample, input);
}

// Points the sample to its rows. Samples of one condition that follow one another share theirs.
void ProgramRecurrence::EncodeCondition(int32_t sample, const SampleInput& input) {
  if (!model_.condition_per_sample()) {
    rows_[sample] = model_.classes.data() + input.label * model_.condition_floats();
    return;
  }
  const auto bytes = static_cast<size_t>(model_.shape.input_dim) * sizeof(float);
  float* inputs = inputs_.data() + sample * model_.shape.input_dim;
  if (bytes > 0) std::memcpy(inputs, input.inputs, bytes);
  labels_[sample] = input.label;
  if (sample > 0 && labels_[sample - 1] == input.label && complete_[sample - 1] &&
      (bytes == 0 || std::memcmp(inputs - model_.shape.input_dim, inputs, bytes) == 0)) {
    rows_[sample] = rows_[sample - 1];
  } else {
    float* rows = conditions_.data() + sample * model_.condition_floats();
    condition_.Fill(input, sharing(), rows);
    rows_[sample] = rows;
  }
  complete_[sample] = !Fired(input.token);
}

RowContext ProgramRecurrence::ContextOf(int32_t sample, int64_t step) const {
  RowContext context = model_.ContextOf(step, rows_[sample]);
  context.noise = noise_.At(sample, step);
  return context;
}

int64_t ProgramRecurrence::Advance(float* states, int32_t n, int64_t begin, int64_t end,
                                   float* const* trajectories) {
  for (int32_t b = 0; b < n; ++b) std::copy_n(states + b * width_, dim_, State(b));
  int64_t stages = 0;
  for (int64_t l = begin; l < end; ++l, ++stages) {
    for (int32_t b = 0; b < n; ++b) contexts_[b] = ContextOf(b, l);
    step_.Run(contexts_.data(), n, {}, sharing());
    for (int32_t b = 0; b < n; ++b) {
      std::copy_n(Next(b), state_width_, State(b));
      if (trajectories != nullptr && trajectories[b] != nullptr)
        std::copy_n(State(b), dim_, trajectories[b] + (l + 1) * dim_);
    }
  }
  for (int32_t b = 0; b < n; ++b) std::copy_n(State(b), dim_, states + b * width_);
  return stages;
}

PassCount ProgramRecurrence::Propagate(const IntervalPass& pass) {
  const int64_t probes = pass.probes ? kNumProbes : 0;
  const int64_t matrix_columns = pass.matrices != nullptr ? dim_ : 0;
  PassCount cost;
  cost.columns = 1 + probes + matrix_columns;
  Block block = {.first = 0, .count = 1, .probes = probes, .columns = probes};
  while (block.first < pass.num_intervals && !Fired(pass.token)) {
    // The first interval's matrix is never used; the first interval goes alone, so that the other
    // intervals get their matrices.
    const bool alone = block.first == 0 && matrix_columns > 0;
    block.columns = alone ? probes : probes + matrix_columns;
    const int64_t fit = block.columns == 0
                            ? kStatesTogether
                            : std::clamp<int64_t>(kTangentTile / block.columns, 1, kStatesTogether);
    block.count = alone ? 1 : std::min(fit, pass.num_intervals - block.first);
    cost.stages = std::max(cost.stages, PropagateBlock(pass, block));
    block.first += block.count;
  }
  return cost;
}

// Propagates a block; returns the steps of its longest interval.
int64_t ProgramRecurrence::PropagateBlock(const IntervalPass& pass, const Block& block) {
  for (int64_t r = 0; r < block.count; ++r)
    std::copy_n(pass.states + (block.first + r) * kColumns * width_, dim_,
                states_.data() + r * state_width_);
  // Probes of zero, then the identity.
  std::fill_n(tangents_.data(), block.count * block.columns * state_width_, 0.0F);
  for (int64_t r = 0; r < block.count; ++r)
    for (int64_t j = block.probes; j < block.columns; ++j)
      tangents_[(r * block.columns + j) * state_width_ + j - block.probes] = 1.0F;
  int64_t count = block.count, stages = 0;
  for (; stages < pass.interval && !Fired(pass.token); ++stages) {
    // Only the last interval may have fewer steps than the others.
    if ((block.first + count - 1) * pass.interval + stages >= num_steps_) --count;
    if (count == 0) break;
    for (int64_t r = 0; r < count; ++r)
      contexts_[r] = ContextOf(0, (block.first + r) * pass.interval + stages);
    StepTangents(block, count);
  }
  FinishBlock(pass, block);
  return stages;
}

// One step of the first `count` rows and their tangents. A row with more tangents than go along at
// a time is evaluated once for each part of them.
void ProgramRecurrence::StepTangents(const Block& block, int64_t count) {
  const Place& in = model_.program.state_input;
  const Place& out = model_.program.output;
  const int64_t columns = block.columns;
  const int64_t parts = columns > kTangentTile ? (columns + kTangentTile - 1) / kTangentTile : 1;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = part * columns / parts, end = (part + 1) * columns / parts;
    const TangentRows along = {.columns = end - first, .probes = part == 0 ? block.probes : 0};
    for (int64_t r = 0; r < count; ++r) {
      std::copy_n(states_.data() + r * state_width_, state_width_, step_.Row(in, r));
      if (along.probes > 0)
        model_.program_kernels.scaled_size(1, step_.Row(in, r), step_.Size(in, r), state_width_);
      for (int64_t j = first; j < end; ++j)
        std::copy_n(tangents_.data() + (r * columns + j) * state_width_, state_width_,
                    step_.Tangent(in, r * along.columns + j - first));
    }
    step_.Run(contexts_.data(), count, along, sharing());
    for (int64_t r = 0; r < count; ++r)
      for (int64_t j = first; j < end; ++j)
        std::copy_n(step_.Tangent(out, r * along.columns + j - first), state_width_,
                    tangents_.data() + (r * columns + j) * state_width_);
  }
  for (int64_t r = 0; r < count; ++r)
    std::copy_n(step_.Row(out, r), state_width_, states_.data() + r * state_width_);
}

void ProgramRecurrence::FinishBlock(const IntervalPass& pass, const Block& block) const {
  float* propagated = pass.propagated + block.first * kColumns * width_;
  const float* from = tangents_.data();
  for (int64_t r = 0; r < block.count; ++r) {
    std::copy_n(states_.data() + r * state_width_, width_, propagated + r * kColumns * width_);
    for (int64_t j = 0; j < block.columns; ++j, from += state_width_) {
      float* to = j < block.probes
                      ? propagated + (r * kColumns + 1 + j) * width_
                      : pass.matrices + ((block.first + r) * width_ + j - block.probes) * width_;
      std::copy_n(from, width_, to);
    }
  }
}

PassCount ProgramRecurrence::GuessCoarse(int64_t interval, int64_t stride, float* states,
                                         const CancelToken* token) {
  const int64_t every = CoarseStride(num_steps_);
  PassCount cost;
  cost.columns = 1;
  float* z = states_.data();
  std::copy_n(states, dim_, z);
  std::fill(z + dim_, z + state_width_, 0.0F);
  const CoarseHold hold = {.coefficients = model_.coefficients,
                           .holds = model_.holds,
                           .clip_range = model_.clip_range,
                           .dim = dim_,
                           .width = width_,
                           .interval = interval,
                           .stride = stride};
  for (int64_t begin = 0; begin < num_steps_ && !Fired(token); begin += every, ++cost.stages) {
    std::copy_n(z, state_width_, State(0));
    contexts_[0] = ContextOf(0, begin);
    step_.Run(contexts_.data(), 1, {}, sharing());
    std::copy_n(step_.Row(model_.program.prediction, 0), state_width_, prediction_.data());
    hold.Advance(begin, std::min(begin + every, num_steps_), noise_, z, prediction_.data(), states);
  }
  return cost;
}

}  // namespace deeppcr::cpu
