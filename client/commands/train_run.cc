// SPDX-License-Identifier: Apache-2.0
#include "client/commands/train_run.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/array_file.h"
#include "client/curve_picture.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

using nlohmann::json;
using training::EvaluationRecord;
using training::StepReport;

std::atomic<CancelToken*> stops_run = nullptr;
std::atomic<int> first_signal = 0;
static_assert(std::atomic<CancelToken*>::is_always_lock_free, "a signal handler reads it");

void OnSignal(int signal) {
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
  if (CancelToken* const token = stops_run) token->Cancel();
}

// JSON has no number for what is not finite: null.
json NumberOrNull(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

json ToJson(const StepReport& report) {
  const StepReport::Seconds& seconds = report.seconds;
  json line = {{"step", report.step},
               {"epoch", report.epoch},
               {"outcome", std::string(training::ToString(report.outcome))},
               {"loss", NumberOrNull(report.loss)},
               {"gradient_norm", NumberOrNull(report.gradient_norm)},
               {"learning_rate", report.learning_rate},
               {"iterations", report.forward.iterations},
               {"fallbacks", report.forward.fallbacks},
               {"seconds",
                {{"pack", seconds.pack},
                 {"forward", seconds.forward},
                 {"loss", seconds.loss},
                 {"backward", seconds.backward},
                 {"update", seconds.update}}}};
  if (report.accuracy.has_value()) line["accuracy"] = *report.accuracy;
  return line;
}

json ToJson(const EvaluationRecord& record) {
  json line = {{"step", record.step}, {"validation_loss", NumberOrNull(record.evaluation.loss)}};
  if (record.evaluation.accuracy.has_value())
    line["validation_accuracy"] = *record.evaluation.accuracy;
  return line;
}

std::string EvaluationText(const training::Evaluation& evaluation) {
  if (evaluation.accuracy.has_value())
    return absl::StrFormat(", held out %.1f %%", 100 * *evaluation.accuracy);
  return absl::StrFormat(", held out %.4g", evaluation.loss);
}

}  // namespace

SignalsStopRun::SignalsStopRun() {
  first_signal = 0;
  stops_run = &token_;
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  ::sigaction(SIGINT, &action, &old_int_);
  ::sigaction(SIGTERM, &action, &old_term_);
}

SignalsStopRun::~SignalsStopRun() {
  ::sigaction(SIGINT, &old_int_, nullptr);
  ::sigaction(SIGTERM, &old_term_, nullptr);
  stops_run = nullptr;
}

int SignalsStopRun::signal() const { return first_signal; }

std::string LockPath(const std::string& checkpoint) { return checkpoint + ".lock"; }

TrainRun::TrainRun(const RunOptions& options, training::Trainer* trainer,
                   const training::Dataset* validation, json fingerprint)
    : options_(options),
      trainer_(*trainer),
      validation_(validation),
      fingerprint_(std::move(fingerprint)),
      shows_bar_(!options.quiet && ::isatty(STDERR_FILENO) != 0) {}

absl::Status TrainRun::Prepare() {
  absl::StatusOr<FileLock> lock = FileLock::Take(LockPath(options_.checkpoint));
  if (absl::IsFailedPrecondition(lock.status()))
    return absl::FailedPreconditionError(
        StrCat(options_.checkpoint, " is the checkpoint of a run that goes on now (",
               lock.status().message(), "): name another file with --checkpoint"));
  DEEPPCR_RETURN_IF_ERROR(lock.status());
  lock_.emplace(*std::move(lock));
  std::error_code ignored;
  const bool there = std::filesystem::exists(options_.checkpoint, ignored);
  if (there && !options_.resume)
    return absl::AlreadyExistsError(
        StrCat(options_.checkpoint,
               " is there already: --resume goes on with that run; remove it "
               "to begin anew, or name another file with --checkpoint"));
  if (options_.resume) {
    DEEPPCR_ASSIGN_OR_RETURN(training::Checkpoint checkpoint,
                             training::ReadCheckpoint(options_.checkpoint));
    DEEPPCR_RETURN_IF_ERROR(training::CheckSameRun(checkpoint.run, fingerprint_));
    DEEPPCR_RETURN_IF_ERROR(trainer_.Restore(checkpoint.state));
    evaluations_ = std::move(checkpoint.evaluations);
    saved_step_ = checkpoint.state.step;
  } else {
    DEEPPCR_RETURN_IF_ERROR(CheckWritable(options_.checkpoint));
  }
  if (!options_.curves.empty()) DEEPPCR_RETURN_IF_ERROR(CheckWritable(options_.curves));
  trainer_.StopBy(signals_.emplace().token());
  if (options_.log.empty()) return absl::OkStatus();
  log_.reset(std::fopen(options_.log.c_str(), options_.resume ? "ae" : "we"));
  if (log_ != nullptr) return absl::OkStatus();
  return absl::UnavailableError(StrCat("cannot open ", options_.log, ": ", std::strerror(errno)));
}

absl::StatusOr<int> TrainRun::Run() {
  // An evaluation in which the run was interrupted comes first.
  absl::Status status = EvaluationIsDue() ? Evaluate() : absl::OkStatus();
  while (status.ok() && !trainer_.finished()) status = Advance();
  if (status.ok() && validation_ != nullptr) status = EvaluateBypassed();
  line_.Clear();
  const int signal = absl::IsCancelled(status) ? signals_->signal() : 0;
  if (signal != 0) status = absl::OkStatus();
  trainer_.StopBy(nullptr);
  Note(DrawCurves());
  if (status.ok() && trainer_.finished() && trainer_.skipped() == trainer_.step())
    status = absl::FailedPreconditionError(
        "every step was skipped, as its loss or gradient was not finite: nothing was trained");
  else if (status.ok() || !trainer_.diverged())
    status.Update(SaveAtEnd(signal));
  signals_.reset();
  DEEPPCR_RETURN_IF_ERROR(status);
  return signal;
}

// What finished is published all the same.
absl::Status TrainRun::SaveAtEnd(int signal) {
  const absl::Status saved = Save();
  if (saved.ok() || signal == 0) {
    Note(saved);
    return absl::OkStatus();
  }
  return WithContext(saved, StrCat("interrupted after step ", trainer_.step(), ", and not saved"));
}

absl::Status TrainRun::Advance() {
  DEEPPCR_ASSIGN_OR_RETURN(const StepReport report, trainer_.Step());
  Log(ToJson(report));
  if (EvaluationIsDue()) DEEPPCR_RETURN_IF_ERROR(Evaluate());
  if (report.step % options_.checkpoint_every == 0) Note(Save());
  Show(report);
  return absl::OkStatus();
}

bool TrainRun::EvaluationIsDue() const {
  const int64_t step = trainer_.step();
  const int64_t every =
      options_.evaluate_every > 0 ? options_.evaluate_every : trainer_.steps_per_epoch();
  if (validation_ == nullptr || step == 0) return false;
  if (!evaluations_.empty() && evaluations_.back().step == step) return false;
  return step % every == 0 || trainer_.finished();
}

absl::Status TrainRun::Evaluate() {
  DEEPPCR_ASSIGN_OR_RETURN(const training::Evaluation evaluation, trainer_.Evaluate(*validation_));
  evaluations_.push_back({.step = trainer_.step(), .evaluation = evaluation});
  saved_step_ = -1;
  Log(ToJson(evaluations_.back()));
  return absl::OkStatus();
}

absl::Status TrainRun::EvaluateBypassed() {
  DEEPPCR_ASSIGN_OR_RETURN(bypassed_, trainer_.EvaluateBypassed(*validation_));
  json line = {{"step", trainer_.step()}, {"bypassed_loss", NumberOrNull(bypassed_->loss)}};
  if (bypassed_->accuracy.has_value()) line["bypassed_accuracy"] = *bypassed_->accuracy;
  Log(line);
  return absl::OkStatus();
}

absl::Status TrainRun::Save() {
  if (saved_step_ == trainer_.step()) return absl::OkStatus();
  DEEPPCR_RETURN_IF_ERROR(training::WriteCheckpoint(
      options_.checkpoint,
      {.run = fingerprint_, .state = trainer_.state(), .evaluations = evaluations_}));
  saved_step_ = trainer_.step();
  return absl::OkStatus();
}

void TrainRun::Log(const json& line) {
  if (log_ == nullptr) return;
  const std::string text = line.dump() + "\n";
  if (std::fwrite(text.data(), 1, text.size(), log_.get()) == text.size() &&
      std::fflush(log_.get()) == 0)
    return;
  Note(absl::UnavailableError(
      StrCat("cannot write ", options_.log, ": ", std::strerror(errno), "; it ends there")));
  log_.reset();  // a log has no gaps
}

void TrainRun::Note(const absl::Status& status) {
  if (status.ok()) return;
  const std::string message(status.message());
  if (std::ranges::find(unwritten_, message) != unwritten_.end()) return;
  line_.Clear();
  absl::FPrintF(stderr, "warning: %s\n", message);
  unwritten_.push_back(message);
}

absl::Status TrainRun::Unwritten() const {
  if (unwritten_.empty()) return absl::OkStatus();
  return absl::UnavailableError(StrJoin(unwritten_, "; ", [](const auto& each) { return each; }));
}

void TrainRun::Show(const StepReport& report) {
  if (!shows_bar_ || !line_.Due()) return;
  const double finished =
      static_cast<double>(report.step) / static_cast<double>(options_.num_steps);
  const std::string held_out =
      evaluations_.empty() ? "" : EvaluationText(evaluations_.back().evaluation);
  const std::string skipped =
      trainer_.skipped() == 0 ? "" : StrCat(", ", trainer_.skipped(), " skipped");
  line_.Draw(absl::StrFormat("%s step %d of %d, epoch %d, loss %.4g%s%s", BarText(finished),
                             report.step, options_.num_steps, report.epoch + 1, report.loss,
                             skipped, held_out)
                 .substr(0, StatusLine::Width()));
}

absl::Status TrainRun::DrawCurves() const {
  if (options_.curves.empty()) return absl::OkStatus();
  DEEPPCR_ASSIGN_OR_RETURN(const std::string png, CurvesPng(trainer_.state().losses, evaluations_));
  return WriteFile(options_.curves, png);
}

std::optional<training::Evaluation> TrainRun::last_evaluation() const {
  if (evaluations_.empty()) return std::nullopt;
  return evaluations_.back().evaluation;
}

absl::StatusOr<std::string> CurvesPng(const std::vector<float>& losses,
                                      const std::vector<EvaluationRecord>& evaluations) {
  constexpr Colour kOfSteps = {120, 160, 210}, kOfEvaluations = {200, 80, 40};
  Curve steps = {.colour = kOfSteps};
  for (size_t i = 0; i < losses.size(); ++i)
    steps.points.push_back({static_cast<double>(i + 1), losses[i]});
  Curve held_out = {.colour = kOfEvaluations, .marked = true}, accuracy = held_out;
  for (const EvaluationRecord& record : evaluations) {
    const auto step = static_cast<double>(record.step);
    held_out.points.push_back({step, record.evaluation.loss});
    if (record.evaluation.accuracy.has_value())
      accuracy.points.push_back({step, *record.evaluation.accuracy});
  }
  std::vector<Panel> panels = {
      {.curves = {std::move(steps), std::move(held_out)}, .logarithmic = true}};
  if (!accuracy.points.empty()) panels.push_back({.curves = {std::move(accuracy)}});
  return EncodePng(DrawPanels(panels));
}

}  // namespace deeppcr
