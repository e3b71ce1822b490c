// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_TRAINING_TRAINER_H_
#define DEEPPCR_KERNELS_TRAINING_TRAINER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/cancel_token.h"
#include "kernels/model/config.h"
#include "kernels/training/dataset.h"
#include "kernels/training/loss.h"
#include "kernels/training/optimizer.h"
#include "kernels/training/parameters.h"
#include "kernels/training/schedule.h"
#include "kernels/training/training_system.h"

namespace deeppcr::training {

// Steps of a run and parameters of a model, at most: both are kept in memory and in checkpoints.
inline constexpr int64_t kMostSteps = 1'000'000;
inline constexpr int64_t kMostParameters = int64_t{1} << 28;
// What may be kept of the trajectories of an epoch, in memory and in checkpoints.
inline constexpr int64_t kMostWarmStartBytes = int64_t{1} << 30;
// Steps in a row that may find nothing to follow before a run ends.
inline constexpr int64_t kMostSkipsInARow = 8;

struct TrainerOptions {
  LossKind loss = LossKind::kCrossEntropy;
  OptimizerOptions optimizer;
  Schedule schedule;
  int64_t batch_size = 64;  // the last batch of an epoch may be smaller
  int64_t num_steps = 1;    // in [1, kMostSteps]
  Initialization initialization;
  // The input layer writes only state elements below, the output layer reads only those from here
  // on (SplitState); in [0, state_dim), 0: either all of them.
  int64_t split_state = 0;
  uint64_t seed = 1;  // of the order of the samples
  // Newton of the parallel way begins with the trajectory that its sample had an epoch ago, where
  // those of all samples take at most so many bytes; 0, or the sequential way: it does not.
  int64_t warm_start_bytes = 0;
  SystemOptions system;
};

// What became of a step. One that was skipped has changed no parameter and no moment.
// kNonFiniteGradient: or the update would have made one of them not finite.
enum class StepOutcome : uint8_t { kUpdated, kNonFiniteLoss, kNonFiniteGradient };
// "updated", "non_finite_loss", "non_finite_gradient".
std::string_view ToString(StepOutcome outcome);

struct StepReport {
  int64_t step = 0;   // counted from 1
  int64_t epoch = 0;  // counted from 0
  StepOutcome outcome = StepOutcome::kUpdated;
  double loss = 0;                 // mean over the batch, before the update; of a skipped one, too
  std::optional<double> accuracy;  // of cross_entropy, over the batch
  double gradient_norm = 0;        // before clipping
  double learning_rate = 0;
  TrainingSystem::ForwardCounts forward;
  // Wall time.
  struct Seconds {
    double pack = 0, forward = 0, loss = 0, backward = 0, update = 0;
  } seconds;
};

struct Evaluation {
  double loss = 0;
  std::optional<double> accuracy;  // of cross_entropy
};

// The trajectories [n, L + 1, D] that samples had last, and whether they have had any. Empty where
// no step begins with them.
struct KeptTrajectories {
  std::vector<float> states;
  std::vector<uint8_t> kept;  // [n]
};

// Where a run is: with the options and the data, all that the steps to come depend on.
struct TrainerState {
  OptimizerState optimizer;
  int64_t step = 0;  // steps done, skipped ones included
  int64_t skips_in_a_row = 0;
  std::vector<float> losses;  // of the steps done
  KeptTrajectories trajectories;
};

// Trains one model, step by step. The bits of every step are a function of config, options, data
// and instruction set; not of the number of threads, nor of where a run was interrupted. Not
// thread-safe.
class Trainer {
 public:
  // `data` fits the model (CheckDataset) and outlives the trainer. Errors: kInvalidArgument naming
  // the option; as TrainingSystem::Create.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const ModelConfig& config,
                                                         const TrainerOptions& options,
                                                         const Dataset& data);

  const ParameterLayout& layout() const { return layout_; }
  std::string_view device() const { return system_->device(); }
  int64_t steps_per_epoch() const { return (data_.num_samples - 1) / options_.batch_size + 1; }
  int64_t step() const { return step_; }                                  // steps done
  int64_t skipped() const { return step_ - optimizer_.state().updates; }  // of them
  bool finished() const { return step_ == options_.num_steps; }
  bool diverged() const { return skips_in_a_row_ >= kMostSkipsInARow; }

  // Has the token, which may be null, end steps and evaluations early: between two steps of the
  // recurrence or blocks of them, so that a fired token is obeyed within some ten milliseconds
  // however long a step of training takes.
  void StopBy(const CancelToken* token) { system_->StopBy(token); }

  // Takes the next step. Precondition: !finished(). Errors: kFailedPrecondition where the run has
  // diverged; kCancelled where the token has fired, and the step is as if it had not begun; as
  // TrainingSystem.
  absl::StatusOr<StepReport> Step();

  // The mean loss of other data that fits the model. Errors: kCancelled where the token has fired.
  absl::StatusOr<Evaluation> Evaluate(const Dataset& data) { return Judge(data, false); }
  // The same where z_0 goes straight into the output layer: what the layers between are good for is
  // what this loses. No other readout is fitted.
  absl::StatusOr<Evaluation> EvaluateBypassed(const Dataset& data) { return Judge(data, true); }

  TrainerState state() const;
  // Errors: kInvalidArgument for a state of another model or run.
  absl::Status Restore(const TrainerState& state);

 private:
  Trainer(const TrainerOptions& options, const ParameterLayout& layout, int64_t output_dim,
          const Dataset& data);

  // Packs the parameters, if they have changed since.
  absl::Status Pack();
  std::span<const int64_t> BatchOf(int64_t step);
  struct Sums {
    double loss = 0;
    int64_t correct = 0;
  };
  absl::StatusOr<Evaluation> Judge(const Dataset& data, bool bypassed);
  // The outputs of samples of some data.
  absl::Status ForwardSamples(const Dataset& data, std::span<const int64_t> samples,
                              std::span<const float> guesses,
                              TrainingSystem::ForwardCounts* counts);
  // Whether all of these samples have trajectories, and these, as they were an epoch ago.
  bool AreKept(std::span<const int64_t> samples) const;
  std::span<const float> GuessesOf(std::span<const int64_t> samples);
  // Puts aside those of the last ForwardSamples, which are `count` of a batch from `first` on, and
  // keeps those of the whole batch.
  void TakeTrajectories(int64_t first, int64_t count);
  void KeepTrajectories(std::span<const int64_t> batch);
  // Takes z_0 of the last ForwardSamples straight to the outputs.
  void BypassLayers(int64_t num_samples);
  // Forward, loss and gradients of samples of a batch; `warm`: with guesses.
  absl::Status RunSamples(std::span<const int64_t> samples, int64_t of_batch, bool warm, Sums* sums,
                          StepReport* report);
  void AddLosses(const Dataset& data, std::span<const int64_t> samples, int64_t of_batch,
                 Sums* sums);
  absl::Status FormGradient(std::span<const int64_t> batch, StepReport* report);
  void Update(StepReport* report);

  const TrainerOptions options_;
  const ParameterLayout layout_;
  const int64_t output_dim_;
  const Dataset& data_;
  std::unique_ptr<TrainingSystem> system_;
  Optimizer optimizer_;
  bool packed_ = false;
  int64_t step_ = 0, skips_in_a_row_ = 0;
  std::vector<float> losses_;
  int64_t ordered_epoch_ = -1;
  std::vector<int64_t> order_;  // of that epoch
  std::vector<float> gradient_, inputs_, outputs_, of_outputs_;
  KeptTrajectories trajectories_;
  std::vector<float> guesses_, taken_;  // of samples together, of a batch
};

}  // namespace deeppcr::training

#endif  // DEEPPCR_KERNELS_TRAINING_TRAINER_H_
