// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_SERVER_SCHEDULE_BATCHER_RIG_H_
#define DEEPPCR_TESTS_SERVER_SCHEDULE_BATCHER_RIG_H_

// A model whose batches the test holds back, and jobs to put into a batcher's queue.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "server/schedule/batcher.h"
#include "tests/testing/fake_engine.h"

namespace deeppcr::testing {

// The inline_pause with which every job counts as one that came alone.
inline constexpr std::chrono::microseconds kNoPause(-1);

// A job that remembers how it ended.
class TestJob : public Job {
 public:
  TestJob(std::shared_ptr<ServedModel> served, int64_t n, double rtol = 1e-4,
          CancelToken::Clock::time_point deadline = CancelToken::Clock::time_point::max())
      : token_(deadline), inputs_(n * 2, 1.0f), outputs_(n * 3), reports_(n) {
    model = std::move(served);
    system = model->model->Find();
    samples = n;
    options.rtol = rtol;
    token = &token_;
  }

  absl::Status Prepare() override {
    run_item = {.samples = {.num_samples = samples, .inputs = inputs_},
                .outputs = outputs_,
                .reports = reports_};
    computed_by = std::this_thread::get_id();
    return prepare_status;
  }
  // Lets the job go back, with m cotangents of each sample.
  void GoBack(const BackwardOptions& back_options, int64_t m = 1) {
    back = back_options;
    back_item.columns = m;
    back_reports_.resize(reports_.size());
    gradients_.resize(reports_.size() * static_cast<size_t>(m) * 4);
  }
  absl::Status PrepareBack() override {
    solved_before_back = !solves || outputs_.front() > 0;
    back_item.samples = run_item.samples;
    back_item.initial = gradients_;
    back_item.reports = back_reports_;
    return back_status;
  }
  absl::Status FinishBack(GoBackFunction, absl::FunctionRef<void(double)>) override {
    finished_back = true;
    return finish_status;
  }
  void Done(absl::Status status, const JobTimings& timings) override {
    ++done_calls;
    told_by = std::this_thread::get_id();
    done_.set_value({std::move(status), timings});
  }

  struct End {
    absl::Status status;
    JobTimings timings;
  };
  End Wait() {
    auto future = done_.get_future();
    if (future.wait_for(std::chrono::seconds(20)) != std::future_status::ready) {
      return {absl::UnknownError("never done"), {}};
    }
    return future.get();
  }
  void Cancel() { token_.Cancel(); }

  absl::Status prepare_status, back_status, finish_status;
  bool solved_before_back = false, finished_back = false;
  float gradient() const { return gradients_.front(); }
  std::atomic<int> done_calls{0};
  std::thread::id computed_by;
  std::thread::id told_by;

 private:
  CancelToken token_;
  std::vector<float> inputs_, outputs_, gradients_;
  std::vector<SampleReport> reports_;
  std::vector<BackwardReport> back_reports_;
  std::promise<End> done_;
};

class BatcherRig : public ::testing::Test {
 protected:
  BatcherRig()
      : fake_(std::make_shared<FakeModel>()),
        model_(std::make_shared<ServedModel>("m", 1, fake_, nullptr)) {}

  // Occupies the only worker until the gate opens.
  void Occupy(Batcher& batcher, TestJob& blocker) {
    const int arrivals = static_cast<int>(fake_->batches().size());
    fake_->gate.Close();
    ASSERT_TRUE(batcher.Enqueue(&blocker).ok());
    ASSERT_TRUE(fake_->gate.WaitForArrivals(arrivals + 1));
  }

  std::shared_ptr<FakeModel> fake_;
  std::shared_ptr<ServedModel> model_;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_SERVER_SCHEDULE_BATCHER_RIG_H_
