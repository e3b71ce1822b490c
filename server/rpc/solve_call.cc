// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/solve_call.h"

#include <array>
#include <span>
#include <string>
#include <utility>

#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

// Tells a refused client how long the queue is, for its back-off.
constexpr char kQueueDepthKey[] = "deeppcr-queue-depth";

// Limits on requests that a handler computes itself: about as long as it takes to wake up another
// thread, and too short to be felt by the other handlers.
constexpr double kQuickSeconds = 50e-6;
constexpr int64_t kQuickBytes = int64_t{16} << 10;  // the codec's work takes time too

// Prefixes the field that a status names with the path of its message.
absl::Status Within(std::string_view path, const absl::Status& status) {
  return absl::Status(status.code(), StrCat(path, ToStd(status.message())));
}

std::string UpdateText(const SampleReport& report) {
  const std::string update =
      report.update.has_value() ? StrCat("last update ", *report.update) : "no update";
  return report.rounding_estimate.has_value()
             ? StrCat(update, ", rounding ", *report.rounding_estimate)
             : update;
}

// The reasons why samples fell back: "max_iterations 2, non_finite 1".
std::string FallbackReasons(std::span<const SampleReport> reports) {
  std::array<int64_t, kTerminations.size()> counts{};
  for (const SampleReport& report : reports) {
    if (report.fallback) ++counts[static_cast<size_t>(report.attempt.termination)];
  }
  std::string text;
  for (const Termination reason : kTerminations) {
    const int64_t count = counts[static_cast<size_t>(reason)];
    if (count > 0) text += StrCat(text.empty() ? "" : ", ", ToString(reason), " ", count);
  }
  return text;
}

}  // namespace

void QueuedCall::Start() {
  if (absl::Status status = Admit(); !status.ok()) Refuse(status);
}

absl::Status QueuedCall::Submit(std::shared_ptr<ServedModel> served, int64_t num_samples,
                                int64_t num_bytes) {
  model = std::move(served);
  version_ = model->version;
  samples = num_samples;
  bytes = num_bytes;
  if (token == nullptr) token = &token_;
  held_bytes_ = bytes;
  submitted_ = Clock::now();
  const absl::Status status = context_.batcher.Enqueue(this);
  if (!status.ok()) held_bytes_ = 0;
  if (status.code() == absl::StatusCode::kResourceExhausted) {
    TellDepth(context_.batcher.Depth(*model));
  }
  return status;
}

void QueuedCall::TellDepth(int64_t depth) {
  rpc_->AddTrailingMetadata(kQueueDepthKey, StrCat(depth));
}

void QueuedCall::Answer(const google::protobuf::Message& reply) {
  model.reset();
  Complete(absl::OkStatus(), &reply);
}

void QueuedCall::Refuse(const absl::Status& status) {
  model.reset();
  const absl::Status attributed = Attribute(status);
  if (attributed.code() != absl::StatusCode::kInvalidArgument || model_.empty()) {
    return Complete(attributed);
  }
  std::string where = StrCat(" (model ", Quoted(model_));
  if (!request_id_.empty()) where += StrCat(", request ", Quoted(request_id_));
  Complete(absl::InvalidArgumentError(StrCat(attributed.message(), where, ")")));
}

absl::Status SolveCall::Prepare() {
  if (!checked_) DEEPPCR_RETURN_IF_ERROR(CheckFinite(input_));
  reports_.resize(static_cast<size_t>(input_.num_samples));
  run_item = input_.Item();
  run_item.reports = reports_;
  AllocateReply(model->model->info());
  return absl::OkStatus();
}

void SolveCall::Done(absl::Status status, const JobTimings& timings) {
  timings_ = timings;
  if (status.ok()) status = JudgeReports();
  if (!status.ok()) return Refuse(status);
  ObserveReports();
  Reply(timings);
}

absl::StatusOr<std::shared_ptr<ServedModel>> SolveCall::FindModel() {
  DEEPPCR_ASSIGN_OR_RETURN(std::shared_ptr<ServedModel> served,
                           context_.store.Find(model_, version_));
  statistics_ = &served->metrics->statistics;
  return served;
}

absl::Status SolveCall::SubmitInput(std::shared_ptr<ServedModel> served, Method method) {
  const LoadedModel& loaded = *served->model;
  absl::StatusOr<ResolvedOptions> resolved = loaded.Resolve(input_.options, input_.num_samples);
  if (!resolved.ok()) return Within("options.", resolved.status());
  options = *std::move(resolved);
  num_samples_ = input_.num_samples;
  checked_ = input_.request_bytes <= kInlineCheckBytes;
  if (checked_) DEEPPCR_RETURN_IF_ERROR(CheckFinite(input_));
  quick = IsQuick(loaded);
  series_ = served->metrics->ForSolver(options.solver, method);
  stages_ = &served->metrics->stages();
  solver_ = options.solver;
  return Submit(std::move(served), input_.num_samples, input_.request_bytes + input_.reply_bytes);
}

// Only the time that the sequential solver takes is known beforehand.
bool SolveCall::IsQuick(const LoadedModel& loaded) const {
  const Plan& plan = loaded.plan(options.num_steps);
  const double seconds = plan.Lookup(input_.num_samples).sequential_seconds;
  return options.solver == "sequential" && seconds > 0 && seconds <= kQuickSeconds &&
         input_.request_bytes + input_.reply_bytes <= kQuickBytes;
}

// The samples' terminations as the status of the whole call.
absl::Status SolveCall::JudgeReports() const {
  for (size_t i = 0; i < reports_.size(); ++i) {
    const SampleReport& report = reports_[i];
    if (report.termination == Termination::kCancelled) {
      return absl::CancelledError("cancelled while it was computed");
    }
    if (report.termination == Termination::kDeadline) {
      return absl::DeadlineExceededError("the deadline passed while it was computed");
    }
    // The request's option counts: the sequential solver's resolved options do not hold it.
    if (report.converged || input_.options.on_no_convergence != OnNoConvergence::kError) continue;
    return absl::AbortedError(StrCat(
        "sample ", i, " did not converge: ", report.solver, " ended with ",
        ToString(report.termination), " after ", report.iterations, " iterations, ",
        UpdateText(report), ", rtol ", input_.options.rtol, " (on_no_convergence is error)"));
  }
  return absl::OkStatus();
}

void SolveCall::ObserveReports() const {
  int64_t fallbacks = 0, unconverged = 0;
  for (const SampleReport& report : reports_) {
    ObserveFinite(*series_->iterations, report.iterations);
    ObserveFinite(*series_->dependent_stages, static_cast<double>(report.dependent_stages));
    if (report.error_estimate.has_value())
      ObserveFinite(*series_->error_estimate, *report.error_estimate);
    unconverged += report.converged ? 0 : 1;
    if (!report.fallback) continue;
    ++fallbacks;
    model->metrics->fallbacks[static_cast<size_t>(report.attempt.termination)]->Increment();
  }
  if (fallbacks == 0) return;
  const std::string reasons = FallbackReasons(reports_);
  context_.logger.LogLimited(LogLevel::kInfo, "fallback",
                             {{"model", model->name},
                              {"version", model->version},
                              {"solver", options.solver},
                              {"samples", fallbacks},
                              {"reasons", reasons},
                              {"unconverged", unconverged},
                              {"request_id", request_id_}});
}

void SolveCall::AnswerAndShadow(const google::protobuf::Message& reply) {
  if (!context_.shadow.Sample()) return Answer(reply);
  // Copied before the reply: `this` and the request are gone after it.
  SampleCopy sample(run_item);
  const std::shared_ptr<ServedModel> served = model;
  const ResolvedOptions resolved = options;
  ShadowSampler& shadow = context_.shadow;
  Answer(reply);
  shadow.Offer(served, resolved, std::move(sample));
}

void SolveCall::ForgetInput() {
  run_item = {};
  input_ = {};
  reports_ = {};
}

}  // namespace deeppcr
