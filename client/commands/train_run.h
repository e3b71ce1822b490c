// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_COMMANDS_TRAIN_RUN_H_
#define DEEPPCR_CLIENT_COMMANDS_TRAIN_RUN_H_

#include <csignal>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/status_line.h"
#include "kernels/base/cancel_token.h"
#include "kernels/base/file_lock.h"
#include "kernels/training/checkpoint.h"
#include "kernels/training/trainer.h"

namespace deeppcr {

// The file that stands for the lock of a checkpoint.
std::string LockPath(const std::string& checkpoint);

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

// Lets SIGINT and SIGTERM fire a token, while it lives; one at a time in a process.
class SignalsStopRun {
 public:
  SignalsStopRun();
  ~SignalsStopRun();
  SignalsStopRun(const SignalsStopRun&) = delete;
  SignalsStopRun& operator=(const SignalsStopRun&) = delete;

  const CancelToken* token() const { return &token_; }
  int signal() const;  // the first that came; 0: none

 private:
  CancelToken token_;
  struct sigaction old_int_ = {}, old_term_ = {};
};

// Takes a trainer through its steps, with everything that a run leaves behind on the way:
// checkpoints, one JSON object per step in the log, a progress bar, curves. A file that cannot be
// written is reported at once and ends no run.
class TrainRun {
 public:
  // `validation` may be null; what is pointed to outlives the run. `fingerprint`: see
  // training::Checkpoint::run.
  TrainRun(const RunOptions& options, training::Trainer* trainer,
           const training::Dataset* validation, nlohmann::json fingerprint);

  // Locks the checkpoint, for the life of this object: two runs never write one. Takes it up, or
  // sees that there is none to be lost, and opens the log. From here on signals stop the run.
  // Errors: kFailedPrecondition where another run has the checkpoint; kAlreadyExists for one that
  // is not to be resumed; as ReadCheckpoint, CheckSameRun.
  absl::Status Prepare();

  // Runs to the last step, or until SIGINT or SIGTERM, and saves a checkpoint. Returns the signal
  // that ended the run; 0: it took its last step. Errors: as Trainer::Step and Evaluate;
  // kFailedPrecondition where every step was skipped; of saving, where a signal ended the run.
  absl::StatusOr<int> Run();

  // What could not be written on the way, and was reported then. kUnavailable.
  absl::Status Unwritten() const;

  // The last evaluation, if there was any.
  std::optional<training::Evaluation> last_evaluation() const;
  // What the trained model makes of the validation data without its layers
  // (Trainer::EvaluateBypassed); of a run that finished.
  const std::optional<training::Evaluation>& bypassed() const { return bypassed_; }

 private:
  absl::Status Advance();
  bool EvaluationIsDue() const;
  absl::Status Evaluate();
  absl::Status EvaluateBypassed();
  absl::Status Save();
  absl::Status SaveAtEnd(int signal);
  void Log(const nlohmann::json& line);
  // Reports an error of writing, once.
  void Note(const absl::Status& status);
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
  std::optional<FileLock> lock_;
  std::optional<SignalsStopRun> signals_;
  std::vector<std::string> unwritten_;
  int64_t saved_step_ = -1;  // -1: what is saved is not all there is
  bool shows_bar_ = false;
  StatusLine line_;
};

// The curves of a run: losses of steps and of evaluations, by their logarithm, and below, where
// there is one, the accuracy of evaluations.
absl::StatusOr<std::string> CurvesPng(const std::vector<float>& losses,
                                      const std::vector<training::EvaluationRecord>& evaluations);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_COMMANDS_TRAIN_RUN_H_
