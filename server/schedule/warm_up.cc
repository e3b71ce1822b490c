// SPDX-License-Identifier: Apache-2.0
#include "server/schedule/warm_up.h"

#include <algorithm>
#include <future>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

class WarmUpJob final : public Job {
 public:
  WarmUpJob(const std::shared_ptr<const LoadedModel>& loaded, int64_t n, const CancelToken& stop)
      : token_(CancelToken::Clock::now() + kWarmUpSeconds, &stop) {
    const ModelInfo& info = loaded->info();
    model = std::make_shared<ServedModel>("warm_up", 0, loaded, nullptr);
    samples = n;
    allow_delay = false;  // no other job can share its batch
    may_wait_long = true;
    token = &token_;
    inputs_.resize(static_cast<size_t>(n * info.input_dim));
    if (info.num_classes > 0) labels_.resize(static_cast<size_t>(n));
    outputs_.resize(static_cast<size_t>(n * info.output_dim));
    reports_.resize(static_cast<size_t>(n));
    run_item = {.samples = {.num_samples = n, .inputs = inputs_, .labels = labels_},
                .outputs = outputs_,
                .reports = reports_};
  }

  absl::Status Resolve() {
    system = model->model->Find(0, samples);
    DEEPPCR_ASSIGN_OR_RETURN(options, system->Resolve(SolveOptions(), samples));
    return absl::OkStatus();
  }
  void Done(absl::Status status, const JobTimings&) override { done_.set_value(std::move(status)); }
  // A batch that its token stops while it is computed is no error, but says so in its reports.
  absl::Status Wait() {
    DEEPPCR_RETURN_IF_ERROR(done_.get_future().get());
    for (const SampleReport& report : reports_) {
      if (report.termination == Termination::kDeadline) return absl::DeadlineExceededError("late");
    }
    return absl::OkStatus();
  }

 private:
  CancelToken token_;
  std::vector<float> inputs_, outputs_;
  std::vector<int32_t> labels_;
  std::vector<SampleReport> reports_;
  std::promise<absl::Status> done_;
};

absl::Status WarmUpBatch(Batcher& batcher, const std::shared_ptr<const LoadedModel>& model,
                         int64_t samples, const CancelToken& stop) {
  WarmUpJob job(model, samples, stop);
  DEEPPCR_RETURN_IF_ERROR(job.Resolve());
  absl::Status status = batcher.Enqueue(&job);
  if (status.ok()) status = job.Wait();
  if (absl::IsCancelled(status)) return absl::OkStatus();
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(StrCat("warming up: a batch of ", samples,
                                            " was not computed ", "within ", kWarmUpSeconds.count(),
                                            " s"));
}

int64_t LargestBatch(const ModelInfo& info) {
  const auto bytes = static_cast<int64_t>(sizeof(float)) * (info.input_dim + info.output_dim);
  return std::min<int64_t>(info.max_batch_size, std::max<int64_t>(1, kWarmUpBytes / bytes));
}

}  // namespace

absl::Status WarmUp(Batcher& batcher, const std::shared_ptr<const LoadedModel>& model,
                    const CancelToken& stop) {
  const absl::Status one = WarmUpBatch(batcher, model, 1, stop);
  const int64_t most = LargestBatch(model->info());
  if (most == 1 || !(one.ok() || absl::IsDeadlineExceeded(one))) return one;
  const absl::Status full = WarmUpBatch(batcher, model, most, stop);
  return full.ok() ? one : full;
}

}  // namespace deeppcr
