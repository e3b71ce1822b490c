// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/compare_call.h"

#include <utility>

#include "kernels/base/never_fits.h"
#include "kernels/base/strings.h"
#include "server/codec/generation_controls.h"
#include "server/codec/reply_codec.h"
#include "server/rpc/solve_call.h"

namespace deeppcr {
namespace {

double SecondsSince(CancelToken::Clock::time_point start) {
  return std::chrono::duration<double>(CancelToken::Clock::now() - start).count();
}

}  // namespace

void CompareCall::Start() {
  if (absl::Status status = Admit(); !status.ok()) End(status);
}

absl::Status CompareCall::Admit() {
  if (context_.compare == ComparePolicy::kAdmin) role_ = Role::kAdmin;
  DEEPPCR_RETURN_IF_ERROR(Receive(&request_));
  if (context_.compare == ComparePolicy::kOff)
    return absl::UnimplementedError("this server makes no comparisons: it runs with --compare=off");
  DEEPPCR_ASSIGN_OR_RETURN(served_, context_.store.Find(model_, version_));
  model_metrics_ = served_->metrics;
  DEEPPCR_ASSIGN_OR_RETURN(
      input_, DecodeCompare(request_, served_->model->info(), context_.max_message_bytes));
  series_ = model_metrics_->ForSolver(kSeveralSolvers, Method::kCompare);
  version_ = served_->version;
  const auto request_bytes = static_cast<int64_t>(request_.SpaceUsedLong());
  const SolveInput& solve = input_.request;
  if (const int64_t limit = context_.batcher.max_bytes(); solve.scratch_bytes > limit)
    return NeverFits("the noise and inputs that are made would have ", solve.scratch_bytes,
                     " bytes; the limit is ", limit, ". Ask for fewer samples");
  DEEPPCR_RETURN_IF_ERROR(HoldBytes(request_bytes + solve.reply_bytes + solve.scratch_bytes));
  // Solvers are compared on one backend.
  const LoadedModel& model = *served_->model;
  system_ = model.Find(input_.request.system, input_.request.num_samples, model.info().backend);
  if (system_ != nullptr) return Post();
  return context_.preparer.Wait(served_, input_.request.system, &token_, this);
}

void CompareCall::Ready(SystemPreparer::Made made) {
  if (!made.ok())
    return End(AboutSteps(input_.request.names, input_.request.system, made.status()));
  system_ = *std::move(made);
  if (absl::Status status = Post(); !status.ok()) End(status);
}

absl::Status CompareCall::Post() {
  submitted_ = Clock::now();
  if (context_.comparisons.Post([this] { Run(); }, this)) return absl::OkStatus();
  return absl::ResourceExhaustedError("too many comparisons wait; try again later");
}

void CompareCall::OnCancelled() {
  Call::OnCancelled();
  if (!context_.comparisons.Withdraw(this)) return;
  NoteQueueTime();
  End(ExpiredStatus(token_, Clock::now()));
}

void CompareCall::NoteQueueTime() {
  timings_.queued = true;
  timings_.queue_seconds = SecondsSince(submitted_);
}

void CompareCall::Run() {
  NoteQueueTime();
  v1::CompareResponse reply;
  const absl::Status status = Compute(&reply);
  if (!status.ok()) return End(status);
  system_.reset();
  served_.reset();
  Complete(absl::OkStatus(), &reply);
}

absl::Status CompareCall::Compute(v1::CompareResponse* reply) {
  if (Fired(&token_)) return ExpiredStatus(token_, Clock::now());
  DEEPPCR_RETURN_IF_ERROR(CheckFinite(input_.request));
  CompleteGeneration(served_->model->info(), &input_.request);
  std::vector<absl::StatusOr<ResolvedOptions>> options;
  for (const SolveOptions& row : input_.rows)
    options.push_back(system_->Resolve(row, input_.request.num_samples));
  const Clock::time_point start = Clock::now();
  const double seconds = context_.compare_seconds;
  const CancelToken budget(
      start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)),
      &token_);
  const absl::StatusOr<std::vector<ComparisonRow>> rows =
      system_->Compare(input_.request.Samples(), options,
                       {.repetitions = input_.repetitions, .seconds = seconds}, &budget);
  timings_.run.wall_seconds = SecondsSince(start);
  timings_.batch_samples = input_.request.num_samples;
  if (absl::IsDeadlineExceeded(rows.status()) && !Fired(&token_))
    return ResourceExhausted("the comparison takes longer than the ", seconds,
                             " seconds of this server's --compare_seconds; ask for fewer samples ",
                             "or rows");
  if (!rows.ok()) return rows.status();
  FillCompare(system_->plan(), input_, *rows, reply);
  return absl::OkStatus();
}

void CompareCall::End(const absl::Status& error) {
  system_.reset();
  served_.reset();
  Refuse(error);
}

void CompareCall::FreeRequest() {
  v1::CompareRequest().Swap(&request_);
  input_ = {};
}

}  // namespace deeppcr
