// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/program/recurrence.h"

#include <algorithm>
#include <new>

#include "kernels/cpu/program/element_rows.h"
#include "kernels/cpu/program/sharing.h"

namespace deeppcr::cpu {
namespace {

// Rows of a frame. An odd number: values begin at multiples of so many rows of 64 bytes and more,
// and with 64 of them all values of one row would compete for the same sets of the first cache.
int64_t RowsOf(const PackedProgramSystem& model) {
  return std::max<int64_t>(model.group, kStatesTogether) | 1;
}

int64_t TangentFloats(const PackedProgramSystem& model) {
  return std::max<int64_t>(kTangentTile, kNumProbes + model.shape.state_dim) *
         model.program.state_input.width;
}

}  // namespace

ProgramRecurrence::ProgramRecurrence(const PackedProgramSystem& model)
    : model_(model),
      dim_(model.shape.state_dim),
      num_steps_(model.shape.num_steps),
      width_(model.width),
      state_width_(model.program.state_input.width),
      sharing_{&ShareByTeam, nullptr},
      states_(kStatesTogether * state_width_),
      step_(model.program.state, model.program_kernels, model.clip_range, RowsOf(model),
            kTangentTile),
      decoder_(model.decoder, model.shape.sample_dim()),
      tangents_(TangentFloats(model)) {}

int64_t ProgramRecurrence::Bytes(const PackedProgramSystem& model) {
  const int64_t floats = kStatesTogether * model.program.state_input.width + TangentFloats(model) +
                         Executor::Floats(model.program.state, RowsOf(model), kTangentTile);
  return floats * int64_t{sizeof(float)} +
         DenseChain::Bytes(model.decoder, model.shape.sample_dim());
}

bool ProgramRecurrence::ok() const {
  return decoder_.ok() && states_.ok() && tangents_.ok() && step_.ok();
}

int64_t ProgramRecurrence::Advance(float* states, int32_t n, int64_t begin, int64_t end,
                                   float* const* trajectories) {
  for (int32_t b = 0; b < n; ++b)
    CopyRow(states + b * width_, model_.program.state_input, State(b));
  int64_t stages = 0;
  for (int64_t l = begin; l < end; ++l, ++stages) {
    // Made in place: a copy would wait for what was just stored.
    for (int32_t b = 0; b < n; ++b) ::new (&contexts_[b]) RowContext(ContextOf(b, l));
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
    CopyRow(pass.states + (block.first + r) * kColumns * width_, model_.program.state_input,
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
    for (int64_t r = 0; r < count; ++r) {
      contexts_[r] = ContextOf(0, (block.first + r) * pass.interval + stages);
      contexts_[r].draw = DrawOfSigns(contexts_[r].step, pass.draw, num_steps_);
    }
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
      const int64_t column = j - block.probes, interval = block.first + r;
      if (j < block.probes) {
        std::copy_n(from, width_, propagated + (r * kColumns + 1 + j) * width_);
      } else if (pass.diagonal) {
        pass.matrices[interval * width_ + column] = from[column];
      } else {
        std::copy_n(from, width_, pass.matrices + (interval * width_ + column) * width_);
      }
    }
    // Full matrices may have been where the diagonal's padding is.
    if (pass.diagonal && block.columns > block.probes) {
      float* const diagonal = pass.matrices + (block.first + r) * width_;
      std::fill(diagonal + dim_, diagonal + width_, 0.0F);
    }
  }
}

}  // namespace deeppcr::cpu
