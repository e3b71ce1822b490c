// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_SERVER_SCHEDULE_PLAIN_JOB_H_
#define DEEPPCR_TESTS_SERVER_SCHEDULE_PLAIN_JOB_H_

// Models and jobs that are only scheduled, in simulated time.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "server/schedule/schedule.h"
#include "tests/testing/fake_engine.h"

namespace deeppcr::testing {

using TimePoint = Schedule::TimePoint;
using ModelPtr = std::shared_ptr<ServedModel>;

inline constexpr TimePoint kStart(std::chrono::hours(1));
inline constexpr int64_t kMaxBatch = 16;  // the limit of a FakeModel

inline ModelPtr NewModel(const std::string& name, const ServingSettings& serving = {}) {
  return std::make_shared<ServedModel>(name, 1, std::make_shared<FakeModel>(), nullptr, serving);
}

class PlainJob : public Job {
 public:
  PlainJob(ModelPtr served, int64_t n, double rtol = 1e-4, TimePoint deadline = TimePoint::max())
      : token_(deadline) {
    model = std::move(served);
    system = model->model->Find();
    samples = n;
    options.rtol = rtol;
    token = &token_;
  }
  void Done(absl::Status, const JobTimings&) override { ADD_FAILURE() << "not the schedule's"; }

 private:
  CancelToken token_;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_SERVER_SCHEDULE_PLAIN_JOB_H_
