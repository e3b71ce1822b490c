// SPDX-License-Identifier: Apache-2.0
// Checkpoints of training. What is accepted has the bits of the file, comes back as it was, and is
// either refused by a run or goes on in it.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/model/weights.h"
#include "kernels/training/checkpoint.h"
#include "kernels/training/trainer.h"
#include "tests/fuzz/fuzz_target.h"

namespace deeppcr::fuzz {
namespace {

using training::Checkpoint;
using training::TrainerState;

#if defined(DEEPPCR_FUZZ_PLANTED_BUG)
// Mends losses that are not finite, which steps that were skipped have.
absl::StatusOr<Checkpoint> Parse(std::string_view bytes) {
  absl::StatusOr<Checkpoint> checkpoint = training::ParseCheckpoint(bytes);
  if (!checkpoint.ok()) return checkpoint;
  for (float& loss : checkpoint->state.losses)
    if (!std::isfinite(loss)) loss = 0;
  return checkpoint;
}
#else
absl::StatusOr<Checkpoint> Parse(std::string_view bytes) {
  return training::ParseCheckpoint(bytes);
}
#endif

void RequireBits(const std::vector<float>& values, const char* name, std::string_view bytes) {
  const absl::StatusOr<Tensors> tensors = ParseSafetensors(bytes);
  Require(tensors.ok(), "a checkpoint is a safetensors file");
  const TensorEntry* const entry = tensors->Find(name);
  Require(entry != nullptr && entry->data.size() == values.size() * sizeof(float),
          "a vector has the size of its tensor");
  Require(values.empty() || std::memcmp(values.data(), entry->data.data(), entry->data.size()) == 0,
          "a vector has the bits of its tensor");
}

void RequireLimits(const Checkpoint& checkpoint) {
  const TrainerState& state = checkpoint.state;
  for (const int64_t count : {state.step, state.optimizer.updates, state.skips_in_a_row})
    Require(count >= 0 && count <= 1'000'000, "counts are in range");
  const auto finite = [](float x) { return std::isfinite(x); };
  for (const auto* values :
       {&state.optimizer.parameters, &state.optimizer.first, &state.optimizer.second})
    Require(std::ranges::all_of(*values, finite), "parameters and moments are finite");
  Require(std::ranges::all_of(state.optimizer.second, [](float x) { return x >= 0; }),
          "means of squares are not negative");
  for (const training::EvaluationRecord& record : checkpoint.evaluations)
    Require(record.step >= 0 && record.step <= state.step, "evaluations are of steps done");
  Require(checkpoint.run.is_object(), "a run is an object");
  for (const auto& value : checkpoint.run) Require(value.is_primitive(), "a run has scalars only");
}

void RequireRoundTrip(const Checkpoint& checkpoint) {
  const std::string written = training::FormatCheckpoint(checkpoint).value();
  const absl::StatusOr<Checkpoint> again = training::ParseCheckpoint(written);
  Require(again.ok(), "a checkpoint that was read can be written");
  Require(training::FormatCheckpoint(*again).value() == written, "and comes back as it was");
}

// A network of 2 layers that is 1 wide, and three steps of it.
struct Run {
  training::Dataset data = {
      .num_samples = 2, .input_dim = 1, .inputs = {0.5F, -0.25F}, .labels = {0, 0}};
  std::unique_ptr<training::Trainer> trainer;

  Run() {
    const ModelConfig config = {.model_type = "resnet",
                                .input_dim = 1,
                                .output_dim = 1,
                                .state_dim = 1,
                                .num_layers = 2,
                                .activation = Activation::kTanh};
    trainer =
        training::Trainer::Create(
            config,
            {.batch_size = 1, .num_steps = 3, .system = {.backend = "cpu", .num_threads = 1}}, data)
            .value();
  }
};

void TryRun(const TrainerState& state) {
  static Run run;
  training::Trainer& trainer = *run.trainer;
  const absl::Status restored = trainer.Restore(state);
  if (!restored.ok()) return RequireCleanRefusal(restored);
  Require(trainer.step() == state.step, "a run goes on where it was");
  if (trainer.finished()) return;
  const absl::StatusOr<training::StepReport> report = trainer.Step();
  Require(report.ok() || absl::IsFailedPrecondition(report.status()),
          "a step is taken, or the run has diverged");
}

}  // namespace

bool TryInput(std::string_view bytes) {
  const absl::StatusOr<Checkpoint> checkpoint = Parse(bytes);
  if (!checkpoint.ok()) {
    RequireCleanRefusal(checkpoint.status());
    return false;
  }
  RequireLimits(*checkpoint);
  RequireBits(checkpoint->state.losses, "losses", bytes);
  RequireBits(checkpoint->state.optimizer.parameters, "parameters", bytes);
  RequireRoundTrip(*checkpoint);
  TryRun(checkpoint->state);
  return true;
}

}  // namespace deeppcr::fuzz
