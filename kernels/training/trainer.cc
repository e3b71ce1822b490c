// SPDX-License-Identifier: Apache-2.0
#include "kernels/training/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/base/finite.h"
#include "kernels/base/losses.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/training/noise_streams.h"

namespace deeppcr::training {
namespace {

constexpr int64_t kTogether = TrainingSystem::kSamplesTogether;
// States of the samples that are computed together, at most.
constexpr int64_t kMostStateBytes = int64_t{8} << 30;

// Adds the wall time of its life.
class Stopwatch {
 public:
  explicit Stopwatch(double* seconds) : seconds_(seconds) {}
  ~Stopwatch() {
    *seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double* const seconds_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// Of a number that is computed with as float, and multiplied by others.
absl::Status CheckAtLeast(std::string_view name, double value, double least) {
  constexpr double kMost = 1e30;
  if (value >= least && value <= kMost) return absl::OkStatus();
  return InvalidArgument(name, ": expected a finite number of at least ", least, " and at most ",
                         kMost, ", got ", value);
}
absl::Status CheckShare(std::string_view name, double value) {
  if (value >= 0 && value < 1) return absl::OkStatus();
  return InvalidArgument(name, ": expected a number in [0, 1), got ", value);
}

absl::Status CheckOptions(const TrainerOptions& options) {
  if (options.num_steps < 1 || options.num_steps > kMostSteps)
    return InvalidArgument("steps: expected 1 .. ", kMostSteps, ", got ", options.num_steps);
  if (options.batch_size < 1)
    return InvalidArgument("batch_size: expected at least 1, got ", options.batch_size);
  if (options.schedule.warmup_steps < 0 || options.schedule.warmup_steps > options.num_steps)
    return InvalidArgument("warmup_steps: expected 0 .. ", options.num_steps, " (steps), got ",
                           options.schedule.warmup_steps);
  if (options.system.shooting_interval < 1)
    return InvalidArgument("shooting_interval: expected at least 1, got ",
                           options.system.shooting_interval);
  const OptimizerOptions& optimizer = options.optimizer;
  absl::Status status = CheckAtLeast("learning_rate", options.schedule.peak, 0);
  status.Update(CheckAtLeast("weight_decay", optimizer.weight_decay, 0));
  status.Update(CheckAtLeast("clip_norm", optimizer.clip_norm, 0));
  status.Update(CheckAtLeast("epsilon", optimizer.epsilon, 1e-30));
  status.Update(CheckAtLeast("gain", options.initialization.layer_gain, 0));
  status.Update(CheckAtLeast("outer_gain", options.initialization.outer_gain, 0));
  status.Update(CheckShare("momentum", optimizer.momentum));
  status.Update(CheckShare("beta1", optimizer.beta1));
  status.Update(CheckShare("beta2", optimizer.beta2));
  if (!(options.schedule.floor >= 0 && options.schedule.floor <= 1))
    return InvalidArgument("cosine_floor: expected a number in [0, 1], got ",
                           options.schedule.floor);
  return status;
}

// Of what newton begins with, where anything is kept.
absl::Status CheckWarmStart(const TrainerOptions& options, const ModelConfig& config,
                            int64_t num_samples) {
  if (options.warm_start_bytes == 0) return absl::OkStatus();
  if (options.warm_start_bytes < 0 || options.warm_start_bytes > kMostWarmStartBytes)
    return InvalidArgument("warm_start: expected 0 .. ", kMostWarmStartBytes, " bytes, got ",
                           options.warm_start_bytes);
  const double floats = static_cast<double>(num_samples) *
                        static_cast<double>(config.num_layers + 1) *
                        static_cast<double>(config.state_dim);
  if (floats * sizeof(float) <= static_cast<double>(options.warm_start_bytes))
    return absl::OkStatus();
  return ResourceExhausted("warm_start: the trajectories of ", num_samples, " samples take ",
                           floats * sizeof(float), " bytes; ", options.warm_start_bytes,
                           " are allowed");
}

absl::Status CheckSplit(int64_t split, int64_t state_dim) {
  if (split >= 0 && split < state_dim) return absl::OkStatus();
  return InvalidArgument("split_state: expected 0 .. ", state_dim - 1, " (below state_dim), got ",
                         split);
}

std::vector<float> FirstParameters(const ParameterLayout& layout, const TrainerOptions& options) {
  std::vector<float> values = InitialParameters(layout, options.initialization);
  SplitState(layout, options.split_state, values);
  return values;
}

absl::Status CheckSizes(const ModelConfig& config, const ParameterLayout& layout) {
  if (layout.size() > kMostParameters)
    return ResourceExhausted("config: ", layout.size(), " parameters; at most ", kMostParameters,
                             " can be trained");
  const double floats = static_cast<double>(2 * config.num_layers + 2) *
                        static_cast<double>(config.state_dim) * kTogether;
  if (floats * sizeof(float) <= static_cast<double>(kMostStateBytes)) return absl::OkStatus();
  return ResourceExhausted("config: the states of ", kTogether, " samples take ",
                           floats * sizeof(float), " bytes; at most ", kMostStateBytes,
                           " are allowed");
}

}  // namespace

std::string_view ToString(StepOutcome outcome) {
  switch (outcome) {
    case StepOutcome::kUpdated:
      return "updated";
    case StepOutcome::kNonFiniteLoss:
      return "non_finite_loss";
    case StepOutcome::kNonFiniteGradient:
      return "non_finite_gradient";
  }
  return "unknown";
}

Trainer::Trainer(const TrainerOptions& options, const ParameterLayout& layout, int64_t output_dim,
                 const Dataset& data)
    : options_(options),
      layout_(layout),
      output_dim_(output_dim),
      data_(data),
      optimizer_(layout, options.optimizer, FirstParameters(layout, options)),
      gradient_(layout.size()),
      inputs_(kTogether * data.input_dim),
      outputs_(kTogether * output_dim),
      of_outputs_(kTogether * output_dim) {}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const ModelConfig& config,
                                                         const TrainerOptions& options,
                                                         const Dataset& data) {
  DEEPPCR_RETURN_IF_ERROR(CheckOptions(options));
  DEEPPCR_ASSIGN_OR_RETURN(const ParameterLayout layout, ParameterLayout::Of(config));
  DEEPPCR_RETURN_IF_ERROR(CheckSizes(config, layout));
  DEEPPCR_RETURN_IF_ERROR(CheckSplit(options.split_state, config.state_dim));
  DEEPPCR_RETURN_IF_ERROR(CheckDataset(data, config.input_dim, config.output_dim, "training data"));
  if (data.labels.empty() != (options.loss == LossKind::kMse))
    return InvalidArgument("loss: ", ToString(options.loss), " takes ",
                           options.loss == LossKind::kMse ? "targets" : "labels",
                           "; the training data has ", data.labels.empty() ? "targets" : "labels");
  DEEPPCR_RETURN_IF_ERROR(CheckWarmStart(options, config, data.num_samples));
  std::unique_ptr<Trainer> trainer(new Trainer(options, layout, config.output_dim, data));
  DEEPPCR_ASSIGN_OR_RETURN(
      trainer->system_,
      TrainingSystem::Create(layout, trainer->optimizer_.state().parameters, options.system));
  if (options.warm_start_bytes > 0 && options.system.way == BackwardWay::kParallel) {
    const int64_t size = trainer->system_->trajectory_size();
    trainer->trajectories_.states.resize(data.num_samples * size);
    trainer->trajectories_.kept.resize(data.num_samples);
    trainer->guesses_.resize(kTogether * size);
    trainer->taken_.resize(std::min(options.batch_size, data.num_samples) * size);
  }
  return trainer;
}

std::span<const int64_t> Trainer::BatchOf(int64_t step) {
  const int64_t epoch = step / steps_per_epoch();
  if (epoch != ordered_epoch_) {
    order_ =
        ShuffledOrder(data_.num_samples, options_.seed, static_cast<uint32_t>(NoiseStream::kOrder),
                      static_cast<uint64_t>(epoch));
    ordered_epoch_ = epoch;
  }
  const int64_t begin = step % steps_per_epoch() * options_.batch_size;
  return std::span<const int64_t>(order_).subspan(
      begin, std::min(options_.batch_size, data_.num_samples - begin));
}

absl::Status Trainer::Pack() {
  if (packed_) return absl::OkStatus();
  DEEPPCR_RETURN_IF_ERROR(system_->Pack(optimizer_.state().parameters));
  packed_ = true;
  return absl::OkStatus();
}

void Trainer::AddLosses(const Dataset& data, std::span<const int64_t> samples, int64_t of_batch,
                        Sums* sums) {
  const double scale = 1 / static_cast<double>(of_batch);
  for (size_t b = 0; b < samples.size(); ++b) {
    const int64_t at = static_cast<int64_t>(b) * output_dim_;
    const std::span<const float> outputs = std::span(outputs_).subspan(at, output_dim_);
    const std::span<float> gradient = std::span(of_outputs_).subspan(at, output_dim_);
    const SampleLoss loss =
        options_.loss == LossKind::kMse
            ? MeanSquaredError(outputs, data.TargetsOf(samples[b]), scale, gradient)
            : CrossEntropy(outputs, data.labels[samples[b]], scale, gradient);
    sums->loss += loss.loss;
    sums->correct += loss.correct ? 1 : 0;
  }
}

absl::Status Trainer::ForwardSamples(const Dataset& data, std::span<const int64_t> samples,
                                     std::span<const float> guesses,
                                     TrainingSystem::ForwardCounts* counts) {
  const auto n = std::ssize(samples);
  for (int64_t b = 0; b < n; ++b)
    std::ranges::copy(data.InputsOf(samples[b]), inputs_.begin() + b * data.input_dim);
  return system_->Forward(std::span(inputs_).first(n * data.input_dim), guesses,
                          std::span(outputs_).first(n * output_dim_), counts);
}

bool Trainer::AreKept(std::span<const int64_t> samples) const {
  const auto kept = [&](int64_t sample) { return trajectories_.kept[sample] != 0; };
  return !trajectories_.kept.empty() && std::ranges::all_of(samples, kept);
}

std::span<const float> Trainer::GuessesOf(std::span<const int64_t> samples) {
  const int64_t size = system_->trajectory_size();
  for (size_t b = 0; b < samples.size(); ++b)
    std::copy_n(trajectories_.states.begin() + samples[b] * size, size,
                guesses_.begin() + static_cast<int64_t>(b) * size);
  return std::span<const float>(guesses_).first(samples.size() * size);
}

void Trainer::TakeTrajectories(int64_t first, int64_t count) {
  if (trajectories_.kept.empty()) return;
  const int64_t size = system_->trajectory_size();
  for (int64_t b = 0; b < count; ++b)
    std::ranges::copy(system_->TrajectoryOf(b), taken_.begin() + (first + b) * size);
}

// One that is not finite could not be read from a checkpoint.
void Trainer::KeepTrajectories(std::span<const int64_t> batch) {
  if (trajectories_.kept.empty()) return;
  const int64_t size = system_->trajectory_size();
  for (size_t b = 0; b < batch.size(); ++b) {
    const auto states = std::span<const float>(taken_).subspan(b * size, size);
    const bool finite = AllFinite(states);
    trajectories_.kept[batch[b]] = finite ? 1 : 0;
    if (finite) std::ranges::copy(states, trajectories_.states.begin() + batch[b] * size);
  }
}

void Trainer::BypassLayers(int64_t num_samples) {
  const DenseSpec decode = layout_.SpecOf(optimizer_.state().parameters).decode;
  for (int64_t b = 0; b < num_samples; ++b) {
    const std::span<const float> state = system_->TrajectoryOf(b).first(decode.cols);
    for (int64_t i = 0; i < output_dim_; ++i) {
      const float* const row = decode.weight.data() + i * decode.cols;
      double sum = decode.bias[i];
      for (int64_t k = 0; k < decode.cols; ++k) sum += double{row[k]} * state[k];
      outputs_[b * output_dim_ + i] = static_cast<float>(sum);
    }
  }
}

absl::Status Trainer::RunSamples(std::span<const int64_t> samples, int64_t of_batch, bool warm,
                                 Sums* sums, StepReport* report) {
  StepReport::Seconds& seconds = report->seconds;
  {
    const Stopwatch watch(&seconds.forward);
    const std::span<const float> guesses = warm ? GuessesOf(samples) : std::span<const float>();
    DEEPPCR_RETURN_IF_ERROR(ForwardSamples(data_, samples, guesses, &report->forward));
  }
  {
    const Stopwatch watch(&seconds.loss);
    AddLosses(data_, samples, of_batch, sums);
  }
  if (!std::isfinite(sums->loss)) report->outcome = StepOutcome::kNonFiniteLoss;
  if (report->outcome != StepOutcome::kUpdated) return absl::OkStatus();
  const Stopwatch watch(&seconds.backward);
  DEEPPCR_ASSIGN_OR_RETURN(
      const bool finite,
      system_->Backward(std::span(of_outputs_).first(std::ssize(samples) * output_dim_),
                        gradient_));
  if (!finite) report->outcome = StepOutcome::kNonFiniteGradient;
  return absl::OkStatus();
}

// Samples that are computed together follow one another in the order of the batch, and so do their
// terms in every sum. A batch that gives no update is summed to its end all the same: how many
// samples are computed together must not be seen in its loss.
absl::Status Trainer::FormGradient(std::span<const int64_t> batch, StepReport* report) {
  std::ranges::fill(gradient_, 0.0F);
  Sums sums;
  const auto n = static_cast<double>(batch.size());
  // All of a batch or none: how many samples are computed together must not be seen here either.
  const bool warm = AreKept(batch);
  const auto together = static_cast<size_t>(system_->samples_together());
  for (size_t first = 0; first < batch.size(); first += together) {
    const size_t count = std::min(together, batch.size() - first);
    DEEPPCR_RETURN_IF_ERROR(
        RunSamples(batch.subspan(first, count), std::ssize(batch), warm, &sums, report));
    TakeTrajectories(static_cast<int64_t>(first), static_cast<int64_t>(count));
  }
  // Not before: a step that was stopped has changed nothing.
  KeepTrajectories(batch);
  SplitState(layout_, options_.split_state, gradient_);
  report->loss = sums.loss / n;
  if (options_.loss == LossKind::kCrossEntropy)
    report->accuracy = static_cast<double>(sums.correct) / n;
  return absl::OkStatus();
}

void Trainer::Update(StepReport* report) {
  const Stopwatch watch(&report->seconds.update);
  if (report->outcome == StepOutcome::kUpdated) {
    report->gradient_norm = Optimizer::NormOf(gradient_);
    const bool updated =
        optimizer_.Update(gradient_, report->gradient_norm, report->learning_rate, system_->pool());
    if (!updated) report->outcome = StepOutcome::kNonFiniteGradient;
  }
  const bool updated = report->outcome == StepOutcome::kUpdated;
  packed_ = packed_ && !updated;
  skips_in_a_row_ = updated ? 0 : skips_in_a_row_ + 1;
}

absl::StatusOr<StepReport> Trainer::Step() {
  if (diverged())
    return absl::FailedPreconditionError(
        StrCat("training has diverged: loss or gradient of the last ", kMostSkipsInARow,
               " steps was not finite; the parameters are those before them (a smaller "
               "learning_rate, a longer warm-up or clip_norm may help)"));
  StepReport report = {.step = step_ + 1,
                       .epoch = step_ / steps_per_epoch(),
                       .learning_rate = LearningRate(options_.schedule, step_, options_.num_steps)};
  {
    const Stopwatch watch(&report.seconds.pack);
    DEEPPCR_RETURN_IF_ERROR(Pack());
  }
  DEEPPCR_RETURN_IF_ERROR(FormGradient(BatchOf(step_), &report));
  Update(&report);
  ++step_;
  losses_.push_back(NarrowToFloat(report.loss));
  return report;
}

absl::StatusOr<Evaluation> Trainer::Judge(const Dataset& data, bool bypassed) {
  DEEPPCR_RETURN_IF_ERROR(Pack());
  std::vector<int64_t> samples(data.num_samples);
  std::iota(samples.begin(), samples.end(), int64_t{0});
  Sums sums;
  TrainingSystem::ForwardCounts unasked;
  const auto together = static_cast<size_t>(system_->samples_together());
  for (size_t first = 0; first < samples.size(); first += together) {
    const size_t count = std::min(together, samples.size() - first);
    const auto some = std::span<const int64_t>(samples).subspan(first, count);
    DEEPPCR_RETURN_IF_ERROR(ForwardSamples(data, some, {}, &unasked));
    if (bypassed) BypassLayers(static_cast<int64_t>(count));
    AddLosses(data, some, 1, &sums);
  }
  const auto n = static_cast<double>(data.num_samples);
  Evaluation evaluation = {.loss = sums.loss / n};
  if (options_.loss == LossKind::kCrossEntropy)
    evaluation.accuracy = static_cast<double>(sums.correct) / n;
  return evaluation;
}

TrainerState Trainer::state() const {
  return {.optimizer = optimizer_.state(),
          .step = step_,
          .skips_in_a_row = skips_in_a_row_,
          .losses = losses_,
          .trajectories = trajectories_};
}

absl::Status Trainer::Restore(const TrainerState& state) {
  const OptimizerState& own = optimizer_.state();
  const bool fits = state.optimizer.parameters.size() == own.parameters.size() &&
                    state.optimizer.first.size() == own.first.size() &&
                    state.optimizer.second.size() == own.second.size();
  if (!fits) return InvalidArgument("checkpoint: its parameters are those of another model");
  if (state.step < 0 || state.step > options_.num_steps ||
      std::cmp_not_equal(state.losses.size(), state.step))
    return InvalidArgument("checkpoint: step ", state.step, " with ", state.losses.size(),
                           " losses; expected as many, at most ", options_.num_steps);
  if (state.optimizer.updates < 0 || state.optimizer.updates > state.step ||
      state.skips_in_a_row < 0 || state.skips_in_a_row > state.step)
    return InvalidArgument("checkpoint: ", state.optimizer.updates, " updates and ",
                           state.skips_in_a_row, " skips in a row in ", state.step, " steps");
  if (state.trajectories.states.size() != trajectories_.states.size() ||
      state.trajectories.kept.size() != trajectories_.kept.size())
    return InvalidArgument("checkpoint: ", state.trajectories.kept.size(), " trajectories with ",
                           state.trajectories.states.size(), " values; expected ",
                           trajectories_.kept.size(), " with ", trajectories_.states.size());
  optimizer_.Restore(state.optimizer);
  trajectories_ = state.trajectories;
  step_ = state.step;
  skips_in_a_row_ = state.skips_in_a_row;
  losses_ = state.losses;
  packed_ = false;
  return absl::OkStatus();
}

}  // namespace deeppcr::training
