// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_TRAINING_CHECKPOINT_H_
#define DEEPPCR_KERNELS_TRAINING_CHECKPOINT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/training/trainer.h"

namespace deeppcr::training {

// What a run has found on its validation data after a step.
struct EvaluationRecord {
  int64_t step = 0;
  Evaluation evaluation;
};

struct Checkpoint {
  // What decides the bits of a run: options and hashes of config and data. An object of scalars.
  nlohmann::json run = nlohmann::json::object();
  TrainerState state;
  std::vector<EvaluationRecord> evaluations;
};

// A checkpoint is one safetensors file: `state`, JSON as bytes; `parameters`, `first` and `second`,
// the vectors of the optimiser; `losses`, of the steps done; where a run keeps trajectories,
// `trajectories` and `kept`; `sha256`, a checksum of them all, which ParseCheckpoint does not ask
// for. Errors: kInvalidArgument saying what was expected, what came; kInternal as Sha256Hex.
absl::StatusOr<Checkpoint> ParseCheckpoint(std::string_view bytes);
absl::StatusOr<std::string> FormatCheckpoint(const Checkpoint& checkpoint);

// Replaces the file at once (WriteFileAtomically): whenever a process ends, even in here, the file
// is this checkpoint or the one before. Errors: as WriteFileAtomically.
absl::Status WriteCheckpoint(const std::string& path, const Checkpoint& checkpoint);

// Errors: as ReadFile; kInvalidArgument naming the file, what was expected, what came, also where
// a byte is not as it was written.
absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& path);

// Errors: kFailedPrecondition naming the first key in which the runs differ, with both values.
absl::Status CheckSameRun(const nlohmann::json& saved, const nlohmann::json& asked);

}  // namespace deeppcr::training

#endif  // DEEPPCR_KERNELS_TRAINING_CHECKPOINT_H_
