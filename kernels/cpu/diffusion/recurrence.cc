// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/diffusion/recurrence.h"

#include <algorithm>

#include "kernels/cpu/diffusion/coarse_hold.h"
#include "kernels/cpu/diffusion/sharing.h"

namespace deeppcr::cpu {

// Intervals [first, first + count) that are propagated together.
struct DiffusionRecurrence::Block {
  int64_t first, count;
  int64_t probes;   // 0 or kNumProbes
  int64_t columns;  // columns of each interval: its probes, then the D of its matrix, if wanted
};

namespace {

// Number of intervals that fill a tile of the tangent kernel.
int64_t IntervalsTogether(int64_t columns) {
  if (columns == 0) return kStatesTogether;
  return std::clamp<int64_t>(kTangentTile / columns, 1, kStatesTogether);
}

// Sizes of the buffers, in floats.
struct RecurrenceSizes {
  int64_t noise, modulation, condition, states, tapes, tangents, scratch;

  explicit RecurrenceSizes(const PackedDiffusion& model) {
    const DenoiserView& d = model.denoiser;
    const bool per_sample = model.modulation_per_sample();
    const int64_t columns = kNumProbes + model.shape.state_dim;
    noise = StepNoise::Floats(model.shape.num_steps, d.state_width, model.group);
    modulation = per_sample ? model.group * model.table_floats() : 0;
    condition = per_sample ? std::max(model.condition.width, d.hidden_width) +
                                 kModulationTile * d.hidden_width
                           : 0;
    const int64_t rows = std::max<int64_t>(model.group, kStatesTogether);
    states = rows * d.state_width;
    tapes = kStatesTogether * d.tape_floats;
    tangents = std::max<int64_t>(kTangentTile, columns) * d.state_width;
    const int64_t of_step = 3 * rows * d.hidden_width;
    const int64_t of_tangents = kTangentTile * (3 * d.hidden_width + d.state_width);
    scratch = std::max(of_step, of_tangents);
  }
  int64_t total() const {
    return noise + modulation + condition + 2 * states + tapes + tangents + scratch;
  }
};

}  // namespace

DiffusionRecurrence::DiffusionRecurrence(const PackedDiffusion& model)
    : model_(model),
      dim_(model.shape.state_dim),
      num_steps_(model.shape.num_steps),
      width_(model.width),
      state_width_(model.denoiser.state_width),
      sharing_{&ShareByTeam, nullptr},
      decoder_(model.decoder, dim_, model.denoiser_kernels),
      noise_(model.coefficients, dim_, state_width_, model.group) {
  const RecurrenceSizes sizes(model);
  modulation_ = AlignedBuffer<float>(sizes.modulation);
  condition_ = AlignedBuffer<float>(sizes.condition);
  states_ = AlignedBuffer<float>(sizes.states);
  predictions_ = AlignedBuffer<float>(sizes.states);
  tapes_ = AlignedBuffer<float>(sizes.tapes);
  tangents_ = AlignedBuffer<float>(sizes.tangents);
  scratch_ = AlignedBuffer<float>(sizes.scratch);
}

int64_t DiffusionRecurrence::Bytes(const PackedDiffusion& model) {
  return RecurrenceSizes(model).total() * int64_t{sizeof(float)} +
         DenseChain::Bytes(model.decoder, model.shape.state_dim);
}

bool DiffusionRecurrence::ok() const {
  return decoder_.ok() && noise_.ok() && modulation_.ok() && condition_.ok() && states_.ok() &&
         predictions_.ok() && tapes_.ok() && tangents_.ok() && scratch_.ok();
}

void DiffusionRecurrence::Encode(int32_t sample, const SampleInput& input, float* z) {
  EncodeInitialNoise(input, dim_, width_, z);
  noise_.Encode(sample, input, model_.denoiser_kernels);
  EncodeCondition(sample, input);
}

void DiffusionRecurrence::EncodeCondition(int32_t sample, const SampleInput& input) {
  if (!model_.modulation_per_sample()) {
    const int64_t of_label = model_.shape.num_classes > 0 ? input.label : 0;
    table_[sample] = model_.tables.data() + of_label * model_.table_floats();
    return;
  }
  const DenoiserView& d = model_.denoiser;
  float* condition = condition_.data();
  float* y = condition + std::max(model_.condition.width, d.hidden_width);
  if (model_.condition.rows > 0) {
    model_.condition.Apply(input.inputs, condition);
  } else {
    std::copy_n(model_.class_embedding.data() + input.label * d.hidden_width, d.hidden_width,
                condition);
  }
  float* table = modulation_.data() + sample * model_.table_floats();
  model_.Modulate(condition, y, table, input.token);
  table_[sample] = table;
}

StepRow DiffusionRecurrence::RowOf(int32_t sample, int64_t step) const {
  return {.coefficients = &model_.coefficients[step],
          .modulation = table_[sample] + step * model_.denoiser.modulation_floats,
          .noise = noise_.At(sample, step),
          .step = step};
}

// Takes the first `count` rows of states_ through one step each, as rows_ says.
void DiffusionRecurrence::Step(int64_t count, bool tapes, bool sizes) {
  model_.denoiser_kernels.step({.denoiser = &model_.denoiser,
                                .rows = rows_.data(),
                                .count = count,
                                .states = states_.data(),
                                .predictions = predictions_.data(),
                                .scratch = scratch_.data(),
                                .tapes = tapes ? tapes_.data() : nullptr,
                                .sizes = sizes,
                                .sharing = sharing()});
}

// Copies between rows of W and of X floats: the first D elements count, the rest is zero.
void DiffusionRecurrence::TakeStates(const float* from, int64_t stride, int64_t count) {
  for (int64_t r = 0; r < count; ++r)
    std::copy_n(from + r * stride, dim_, states_.data() + r * state_width_);
}
void DiffusionRecurrence::GiveStates(float* to, int64_t stride, int64_t count) const {
  for (int64_t r = 0; r < count; ++r)
    std::copy_n(states_.data() + r * state_width_, width_, to + r * stride);
}

int64_t DiffusionRecurrence::Advance(float* states, int32_t n, int64_t begin, int64_t end,
                                     float* const* trajectories) {
  TakeStates(states, width_, n);
  int64_t stages = 0;
  for (int64_t l = begin; l < end; ++l, ++stages) {
    for (int32_t b = 0; b < n; ++b) rows_[b] = RowOf(b, l);
    Step(n, false, false);
    for (int32_t b = 0; trajectories != nullptr && b < n; ++b) {
      if (trajectories[b] != nullptr)
        std::copy_n(states_.data() + b * state_width_, dim_, trajectories[b] + (l + 1) * dim_);
    }
  }
  GiveStates(states, width_, n);
  return stages;
}

PassCount DiffusionRecurrence::Propagate(const IntervalPass& pass) {
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
    block.count =
        alone ? 1 : std::min(IntervalsTogether(block.columns), pass.num_intervals - block.first);
    cost.stages = std::max(cost.stages, PropagateBlock(pass, block));
    block.first += block.count;
  }
  return cost;
}

// Propagates a block; returns the steps of its longest interval.
int64_t DiffusionRecurrence::PropagateBlock(const IntervalPass& pass, const Block& block) {
  TakeStates(pass.states + block.first * kColumns * width_, kColumns * width_, block.count);
  StartTangents(block);
  int64_t count = block.count, stages = 0;
  for (; stages < pass.interval && !Fired(pass.token); ++stages) {
    // Only the last interval may have fewer steps than the others.
    if ((block.first + count - 1) * pass.interval + stages >= num_steps_) --count;
    if (count == 0) break;
    for (int64_t r = 0; r < count; ++r)
      rows_[r] = RowOf(0, (block.first + r) * pass.interval + stages);
    Step(count, block.columns > 0, block.probes > 0);
    if (block.columns == 0) continue;
    model_.denoiser_kernels.tangents({.denoiser = &model_.denoiser,
                                      .rows = rows_.data(),
                                      .tapes = tapes_.data(),
                                      .count = count * block.columns,
                                      .columns = block.columns,
                                      .probes = block.probes,
                                      .tangents = tangents_.data(),
                                      .scratch = scratch_.data(),
                                      .sharing = sharing()});
  }
  FinishBlock(pass, block);
  return stages;
}

// Places the tangents: probes of zero, then the identity.
void DiffusionRecurrence::StartTangents(const Block& block) {
  float* to = tangents_.data();
  std::fill_n(to, block.count * block.columns * state_width_, 0.0F);
  for (int64_t r = 0; r < block.count; ++r) {
    for (int64_t j = 0; j < block.columns; ++j, to += state_width_)
      if (j >= block.probes) to[j - block.probes] = 1.0F;
  }
}

void DiffusionRecurrence::FinishBlock(const IntervalPass& pass, const Block& block) {
  float* propagated = pass.propagated + block.first * kColumns * width_;
  GiveStates(propagated, kColumns * width_, block.count);
  const float* from = tangents_.data();
  for (int64_t r = 0; r < block.count; ++r) {
    for (int64_t j = 0; j < block.columns; ++j, from += state_width_) {
      float* to = j < block.probes
                      ? propagated + (r * kColumns + 1 + j) * width_
                      : pass.matrices + ((block.first + r) * width_ + j - block.probes) * width_;
      std::copy_n(from, width_, to);
    }
  }
}

PassCount DiffusionRecurrence::GuessCoarse(int64_t interval, int64_t stride, float* states,
                                           const CancelToken* token) {
  const int64_t every = CoarseStride(num_steps_);
  PassCount cost;
  cost.columns = 1;
  std::copy_n(states, dim_, states_.data());
  float* z = states_.data() + state_width_;
  std::copy_n(states_.data(), state_width_, z);
  const CoarseHold hold = {.coefficients = model_.coefficients,
                           .holds = model_.holds,
                           .clip_range = model_.denoiser.clip_range,
                           .dim = dim_,
                           .width = width_,
                           .interval = interval,
                           .stride = stride};
  for (int64_t begin = 0; begin < num_steps_ && !Fired(token); begin += every, ++cost.stages) {
    // Row 0 goes into the step, which overwrites it; row 1 is the guess.
    std::copy_n(z, state_width_, states_.data());
    rows_[0] = RowOf(0, begin);
    Step(1, false, false);
    hold.Advance(begin, std::min(begin + every, num_steps_), noise_, z, predictions_.data(),
                 states);
  }
  return cost;
}

}  // namespace deeppcr::cpu
