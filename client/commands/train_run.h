// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_COMMANDS_TRAIN_RUN_H_
#define DEEPPCR_CLIENT_COMMANDS_TRAIN_RUN_H_

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/status_line.h"
#include "kernels/training/checkpoint.h"
#include "kernels/training/trainer.h"

namespace deeppcr {

struct RunOptions {
  int64_t num_steps = 0;
  std::string checkpoint;        // file
  int64_t checkpoint_every = 0;  // steps
  int64_t evaluate_every = 0;    // steps; 0: at the end of every epoch
  std::string log;               // file; empty: none
  std::string curves;            // file; empty: none
  bool resume = false;
  bool quiet = false;
};

// Takes a trainer through its steps, with everything that a run leaves behind on the way:
// checkpoints, one JSON object per step in the log, a progress bar, curves.
class TrainRun {
 public:
  // `validation` may be null; what is pointed to outlives the run. `fingerprint`: see
  // training::Checkpoint::run.
  TrainRun(const RunOptions& options, training::Trainer* trainer,
           const training::Dataset* validation, nlohmann::json fingerprint);

  // Takes up the checkpoint, or sees that there is none to be lost, and opens the log. Errors:
  // kAlreadyExists for a checkpoint that is not to be resumed; as ReadCheckpoint, CheckSameRun.
  absl::Status Prepare();

  enum class End { kFinished, kInterrupted };
  // Runs to the last step, or until SIGINT or SIGTERM, after which all is saved. Errors: as
  // Trainer::Step; of writing files.
  absl::StatusOr<End> Run();

  // The last evaluation, if there was any.
  std::optional<training::Evaluation> last_evaluation() const;
  // What the trained model makes of the validation data without its layers
  // (Trainer::EvaluateBypassed); of a run that finished.
  const std::optional<training::Evaluation>& bypassed() const { return bypassed_; }

 private:
  absl::Status AfterStep(const training::StepReport& report);
  absl::Status Evaluate();
  absl::Status EvaluateBypassed();
  absl::Status Save();
  absl::Status Log(const nlohmann::json& line);
  absl::Status DrawCurves() const;
  void Show(const training::StepReport& report);

  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  const RunOptions options_;
  training::Trainer& trainer_;
  const training::Dataset* const validation_;
  const nlohmann::json fingerprint_;
  std::vector<training::EvaluationRecord> evaluations_;
  std::optional<training::Evaluation> bypassed_;
  std::unique_ptr<std::FILE, CloseFile> log_;
  int64_t saved_step_ = -1;
  bool shows_bar_ = false;
  StatusLine line_;
};

// The curves of a run: losses of steps and of evaluations, by their logarithm, and below, where
// there is one, the accuracy of evaluations.
absl::StatusOr<std::string> CurvesPng(const std::vector<float>& losses,
                                      const std::vector<training::EvaluationRecord>& evaluations);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_COMMANDS_TRAIN_RUN_H_
