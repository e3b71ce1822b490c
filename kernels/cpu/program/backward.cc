// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/program/backward.h"

#include <algorithm>

#include "kernels/cpu/program/condition_rows.h"
#include "kernels/cpu/program/sharing.h"

namespace deeppcr::cpu {
namespace {

// Steps times samples whose values are computed together.
constexpr int64_t kTapeRows = 24;

std::span<const PackedDense> EncodeOf(const PackedProgramSystem& model) {
  return {&model.encode, model.encode.rows == 0 ? size_t{0} : size_t{1}};
}

// Cotangents at a time, so that memory is bounded for any D.
int64_t CapacityOf(const PackedProgramSystem& model, const BackwardLimits& limits) {
  const int64_t wanted = std::max(limits.samples * limits.columns,
                                  limits.parallel ? model.shape.state_dim : int64_t{1});
  return std::min<int64_t>(wanted, kTangentTile);
}

int64_t RowsOf(const BackwardLimits& limits) {
  return std::max<int64_t>(kTapeRows, limits.samples);
}

// The steps whose noise the way back reads: those of a learned scale, which all multiply theirs.
std::span<const ReverseCoefficients> NoisySteps(const PackedProgramSystem& model) {
  if (model.noise_scale == NoiseScale::kFixed) return {};
  return model.coefficients;
}

// True if the steps depend on a vector that each sample brings.
bool TakesVector(const PackedProgramSystem& model) {
  return model.program.condition_input.width > 0 && model.condition_per_sample();
}

// Runs what depends on the condition alone, and returns what it read.
RowContext RunCondition(const PackedProgramSystem& model, const PackedTape& tape,
                        const SampleInput& input, const Sharing* sharing, Executor& executor) {
  TakeCondition(input, tape.condition, tape.label, executor);
  RowContext context = {};
  context.rows[static_cast<size_t>(Home::kConstant)] = model.program.constants.data();
  executor.Run(&context, 1, {}, sharing);
  return context;
}

}  // namespace

ProgramBackward::ProgramBackward(const PackedProgramSystem& model, const BackwardLimits& limits)
    : model_(model),
      dim_(model.shape.state_dim),
      num_steps_(model.shape.num_steps),
      width_(model.width),
      state_width_(model.program.state_input.width),
      capacity_(CapacityOf(model, limits)),
      sharing_{&ShareByTeam, nullptr},
      encode_(EncodeOf(model), dim_),
      decode_(model.decoder, model.shape.sample_dim()),
      noise_(NoisySteps(model), model.shape.sample_dim(), model.noise_width(), limits.samples),
      state_(model.state_tape.section, model.program_kernels, model.clip_range, RowsOf(limits),
             capacity_, Carried::kCotangents),
      contexts_(RowsOf(limits)),
      condition_rows_(0),
      mixed_rows_(0),
      condition_sums_(0),
      mixed_sums_(0),
      mixed_contexts_(RowsOf(limits)),
      rows_(limits.samples) {
  if (!model.condition_per_sample()) return;
  const int64_t condition = model.program.condition.row_floats;
  const int64_t mixed = model.program.mixed.row_floats;
  const int64_t cotangents = TakesVector(model) ? capacity_ : 0;
  condition_ = std::make_unique<Executor>(model.condition_tape.section, model.program_kernels,
                                          model.clip_range, 1, cotangents, Carried::kCotangents);
  mixed_ =
      std::make_unique<Executor>(model.mixed_tape.section, model.program_kernels, model.clip_range,
                                 RowsOf(limits), cotangents, Carried::kCotangents);
  condition_rows_ = AlignedBuffer<float>(limits.samples * condition);
  mixed_rows_ = AlignedBuffer<float>(RowsOf(limits) * mixed);
  if (!TakesVector(model)) return;
  condition_sums_ = AlignedBuffer<float>(limits.samples * limits.columns * condition);
  mixed_sums_ = AlignedBuffer<float>(capacity_ * mixed);
}

int64_t ProgramBackward::Bytes(const PackedProgramSystem& model, const BackwardLimits& limits) {
  const int64_t capacity = CapacityOf(model, limits), rows = RowsOf(limits);
  int64_t floats =
      Executor::Floats(model.state_tape.section, rows, capacity, Carried::kCotangents) +
      StepNoise::Floats(std::ssize(NoisySteps(model)), model.noise_width(), limits.samples);
  if (model.condition_per_sample()) {
    const int64_t condition = model.program.condition.row_floats;
    const int64_t mixed = model.program.mixed.row_floats;
    const int64_t cotangents = TakesVector(model) ? capacity : 0;
    floats += limits.samples * condition + rows * mixed +
              Executor::Floats(model.condition_tape.section, 1, cotangents, Carried::kCotangents) +
              Executor::Floats(model.mixed_tape.section, rows, cotangents, Carried::kCotangents);
    if (cotangents > 0) floats += limits.samples * limits.columns * condition + capacity * mixed;
  }
  return floats * int64_t{sizeof(float)} +
         OuterBackward::Bytes(EncodeOf(model), model.shape.state_dim) +
         OuterBackward::Bytes(model.decoder, model.shape.sample_dim());
}

bool ProgramBackward::ok() const {
  return encode_.ok() && decode_.ok() && noise_.ok() && state_.ok() && condition_rows_.ok() &&
         mixed_rows_.ok() && condition_sums_.ok() && mixed_sums_.ok() &&
         (condition_ == nullptr || condition_->ok()) && (mixed_ == nullptr || mixed_->ok());
}

void ProgramBackward::Begin(int32_t sample, const BackwardSample& taken, float* g) {
  if (condition_ != nullptr) {
    TakeCondition(sample, *taken.input);
  } else {
    rows_[sample] = model_.classes.data() + taken.input->label * model_.condition_floats();
  }
  noise_.Encode(sample, *taken.input, model_.program_kernels);
  const int64_t floats = taken.columns * model_.program.condition.row_floats;
  if (TakesVector(model_)) std::fill_n(condition_sums_.data() + sample * floats, floats, 0.0F);
  BeginOutputs(decode_, model_.shape, width_, taken, g);
}

// Computes what a sample's condition gives for all steps.
void ProgramBackward::TakeCondition(int32_t sample, const SampleInput& input) {
  const PackedTape& tape = model_.condition_tape;
  float* row = condition_rows_.data() + sample * model_.program.condition.row_floats;
  RunCondition(model_, tape, input, sharing(), *condition_);
  GiveExports(tape.section, *condition_, 0, row);
  rows_[sample] = row;
}

int64_t ProgramBackward::Retreat(const RetreatPass& pass) {
  const int64_t m = pass.columns;
  if (pass.num_samples * m <= capacity_)
    return RetreatRows(pass, {pass.first_sample, pass.num_samples, 0, m}, pass.g);
  int64_t stages = 0;
  for (int32_t b = 0; b < pass.num_samples; ++b) {
    for (int64_t j = 0; j < m; j += capacity_)
      stages = RetreatRows(pass, {pass.first_sample + b, 1, j, std::min(capacity_, m - j)},
                           pass.g + (b * m + j) * width_);
  }
  return stages;
}

int64_t ProgramBackward::RetreatRows(const RetreatPass& pass, const Rows& rows, float* g) {
  const int64_t together = std::max<int64_t>(1, kTapeRows / rows.num_samples);
  int64_t stages = 0;
  for (int64_t end = pass.end; end > pass.begin;) {
    const int64_t begin = std::max(pass.begin, end - together);
    RunForwards(pass, rows, begin, end);
    for (int64_t step = end - 1; step >= begin; --step, ++stages)
      Back(pass, rows, step, (step - begin) * rows.num_samples, g);
    end = begin;
  }
  return stages;
}

// Computes what the conditions give for steps [begin, end), a step behind the other.
void ProgramBackward::RunMixed(const Rows& rows, int64_t begin, int64_t end) {
  const int64_t floats = model_.program.mixed.row_floats;
  const int64_t count = (end - begin) * rows.num_samples;
  for (int64_t row = 0; row < count; ++row) {
    const int64_t step = begin + row / rows.num_samples;
    const float* condition = rows_[rows.first_sample + row % rows.num_samples];
    float* mixed = mixed_rows_.data() + row * floats;
    contexts_[row] = model_.ContextOf(step, condition, mixed);
    mixed_contexts_[row] = contexts_[row];
  }
  if (floats == 0) return;
  mixed_->Run(mixed_contexts_.data(), count, {}, sharing());
  for (int64_t row = 0; row < count; ++row)
    GiveExports(model_.mixed_tape.section, *mixed_, row, mixed_rows_.data() + row * floats);
}

// Computes the values of steps [begin, end), a step behind the other.
void ProgramBackward::RunForwards(const RetreatPass& pass, const Rows& rows, int64_t begin,
                                  int64_t end) {
  if (condition_ != nullptr) RunMixed(rows, begin, end);
  int64_t row = 0;
  for (int64_t step = begin; step < end; ++step) {
    for (int32_t b = 0; b < rows.num_samples; ++b, ++row) {
      const int32_t sample = rows.first_sample + b;
      float* state = state_.Row(model_.state_tape.state, row);
      std::copy_n(pass.samples[sample].states + step * dim_, dim_, state);
      std::fill(state + dim_, state + state_width_, 0.0F);
      if (condition_ == nullptr) contexts_[row] = model_.ContextOf(step, rows_[sample]);
      if (model_.noise_scale != NoiseScale::kFixed) contexts_[row].noise = noise_.At(sample, step);
    }
  }
  state_.Run(contexts_.data(), row, {}, sharing());
}

// Takes the cotangents of a step back, whose values lie from `row` on.
void ProgramBackward::Back(const RetreatPass& pass, const Rows& rows, int64_t step, int64_t row,
                           float* g) {
  const PackedTape& tape = model_.state_tape;
  state_.BeginBack(tape, rows.count());
  for (int64_t i = 0; i < rows.count(); ++i) {
    float* to = state_.Cotangent(tape.output, i);
    std::copy_n(g + i * width_, dim_, to);
    std::fill(to + dim_, to + state_width_, 0.0F);
  }
  std::array<CotangentRows, kNumHomes> homes = {};
  CotangentRows& of_condition = homes[static_cast<size_t>(Home::kCondition)];
  CotangentRows& of_mixed = homes[static_cast<size_t>(Home::kMixed)];
  const bool condition =
      pass.results && TakesVector(model_) && pass.samples[rows.first_sample].inputs != nullptr;
  if (pass.results) GiveStateCotangents(pass, rows, step, g);
  if (condition) {
    const int64_t row_floats = model_.program.condition.row_floats;
    of_condition = {condition_sums_.data() +
                        (rows.first_sample * pass.columns + rows.first_column) * row_floats,
                    row_floats};
    of_mixed = {mixed_sums_.data(), model_.program.mixed.row_floats};
    std::fill_n(mixed_sums_.data(), rows.count() * of_mixed.stride, 0.0F);
  }
  state_.RunBack(tape, contexts_.data(), row, rows.num_samples, rows.columns, homes, sharing());
  if (pass.results) GiveStepNoise(pass, rows, step);
  if (condition && of_mixed.stride > 0) BackMixed(rows, row, of_condition);
  for (int64_t i = 0; i < rows.count(); ++i)
    std::copy_n(state_.Cotangent(tape.state, i), dim_, g + i * width_);
}

// The noise comes with its factor in one instruction, whose cotangent is there.
void ProgramBackward::GiveStepNoise(const RetreatPass& pass, const Rows& rows, int64_t step) {
  if (!model_.shape.draws_noise) return;
  const int64_t dim = model_.shape.sample_dim();
  const float sigma = model_.coefficients[step].sigma;
  for (int32_t b = 0; b < rows.num_samples; ++b) {
    float* noise = pass.samples[rows.first_sample + b].step_noise;
    if (noise == nullptr) continue;
    for (int64_t j = 0; j < rows.columns; ++j) {
      float* to = noise + ((rows.first_column + j) * num_steps_ + step) * dim;
      const float* from = state_.Cotangent(model_.state_tape.noise, b * rows.columns + j);
      for (int64_t i = 0; i < dim; ++i) to[i] = program::MovedBy(sigma, from[i]);
    }
  }
}

void ProgramBackward::GiveStateCotangents(const RetreatPass& pass, const Rows& rows, int64_t step,
                                          const float* g) const {
  for (int32_t b = 0; b < rows.num_samples; ++b) {
    float* const to = pass.samples[rows.first_sample + b].state_cotangents;
    if (to != nullptr) std::copy_n(g + b * rows.columns * width_, dim_, to + step * dim_);
  }
}

// Takes what a step has given to its rows of the mixed section, from `row` on, back to those of the
// condition.
void ProgramBackward::BackMixed(const Rows& rows, int64_t row, const CotangentRows& of_condition) {
  const PackedTape& tape = model_.mixed_tape;
  mixed_->BeginBack(tape, rows.count());
  for (int64_t i = 0; i < rows.count(); ++i) {
    const float* sums = mixed_sums_.data() + i * model_.program.mixed.row_floats;
    for (const Export& value : tape.section.exports)
      std::copy_n(sums + value.to, value.from.width, mixed_->Cotangent(value.from, i));
  }
  std::array<CotangentRows, kNumHomes> homes = {};
  homes[static_cast<size_t>(Home::kCondition)] = of_condition;
  mixed_->RunBack(tape, mixed_contexts_.data(), row, rows.num_samples, rows.columns, homes,
                  sharing());
}

// The cotangents of the conditioning vector, from the sums over all steps.
void ProgramBackward::FinishCondition(int32_t sample, const BackwardSample& taken) {
  const PackedTape& tape = model_.condition_tape;
  const int64_t inputs = model_.shape.input_dim, row = model_.program.condition.row_floats;
  const RowContext context = RunCondition(model_, tape, *taken.input, sharing(), *condition_);
  for (int64_t j = 0; j < taken.columns; j += capacity_) {
    const int64_t count = std::min(capacity_, taken.columns - j);
    condition_->BeginBack(tape, count);
    for (int64_t i = 0; i < count; ++i) {
      const float* sums = condition_sums_.data() + (sample * taken.columns + j + i) * row;
      for (const Export& value : tape.section.exports)
        std::copy_n(sums + value.to, value.from.width, condition_->Cotangent(value.from, i));
    }
    condition_->RunBack(tape, &context, 0, 1, count, {}, sharing());
    for (int64_t i = 0; i < count; ++i)
      std::copy_n(condition_->Cotangent(tape.condition, i), inputs,
                  taken.inputs + (j + i) * inputs);
  }
}

void ProgramBackward::Finish(int32_t sample, const BackwardSample& taken, const float* g) {
  if (taken.initial != nullptr) {
    const int64_t dim = model_.shape.sample_dim();
    for (int64_t j = 0; j < taken.columns; ++j)
      for (int64_t i = 0; i < dim; ++i)
        taken.initial[j * dim + i] = model_.initial_scale * g[j * width_ + i];
  }
  if (!model_.shape.draws_noise) return FinishInputs(encode_, model_.shape, width_, taken, g);
  if (taken.inputs == nullptr) return;
  if (TakesVector(model_)) return FinishCondition(sample, taken);
  // The program does not read the condition that the model takes.
  std::fill_n(taken.inputs, taken.columns * model_.shape.input_dim, 0.0F);
}

}  // namespace deeppcr::cpu
