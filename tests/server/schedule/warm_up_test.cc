// SPDX-License-Identifier: Apache-2.0
#include "server/schedule/warm_up.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/testing/expect_error.h"
#include "tests/testing/fake_engine.h"

namespace deeppcr::testing {
namespace {

using ::testing::ElementsAre;

class WarmUpTest : public ::testing::Test {
 protected:
  Batcher batcher_{{.schedule = {.workers = 1}}};
  std::shared_ptr<FakeModel> fake_ = std::make_shared<FakeModel>();
  CancelToken stop_;
};

TEST_F(WarmUpTest, ComputesOneSampleAndAFullBatch) {
  EXPECT_TRUE(WarmUp(batcher_, fake_, stop_).ok());

  const auto batches = fake_->batches();
  ASSERT_EQ(batches.size(), 2u);
  EXPECT_THAT(batches[0].samples, ElementsAre(1));
  EXPECT_THAT(batches[1].samples, ElementsAre(fake_->info().max_batch_size));
}

TEST_F(WarmUpTest, AModelThatCannotAnswerIsAnError) {
  fake_->run_status = absl::InternalError("broken");
  ExpectError(WarmUp(batcher_, fake_, stop_), absl::StatusCode::kInternal, "broken");
}

// A sample may run out of time in the queue or in its computation; the full batch is tried in any
// case.
TEST_F(WarmUpTest, SaysThatItRanOutOfTime) {
  fake_->gate.Close();
  absl::Status status;
  std::thread loader([&] { status = WarmUp(batcher_, fake_, stop_); });
  ASSERT_TRUE(fake_->gate.WaitForArrivals(1));
  std::this_thread::sleep_for(kWarmUpSeconds + std::chrono::milliseconds(50));
  fake_->gate.Open();
  loader.join();
  ExpectError(status, absl::StatusCode::kDeadlineExceeded, "a batch of 1 was not computed");
  EXPECT_EQ(fake_->batches().size(), 2u);
}

TEST_F(WarmUpTest, DoesNotOutliveItsServer) {
  fake_->gate.Close();
  absl::Status status;
  std::thread loader([&] { status = WarmUp(batcher_, fake_, stop_); });
  ASSERT_TRUE(fake_->gate.WaitForArrivals(1));
  stop_.Cancel();
  fake_->gate.Open();
  loader.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(fake_->batches().size(), 1u);

  batcher_.Shutdown();
  const CancelToken running;
  ExpectError(WarmUp(batcher_, fake_, running), absl::StatusCode::kUnavailable, "shutting down");
}

}  // namespace
}  // namespace deeppcr::testing
