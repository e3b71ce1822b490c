// SPDX-License-Identifier: Apache-2.0
#include "server/observe/inference_statistics.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace deeppcr {
namespace {

TEST(ScaleToWallTest, StagesAddUpToTheWallTime) {
  // Two threads did 6 s of work in 3 s.
  const RunTimings scaled = ScaleToWall({1, 4, 1, 3});
  EXPECT_DOUBLE_EQ(scaled.encode_seconds, 0.5);
  EXPECT_DOUBLE_EQ(scaled.solve_seconds, 2);
  EXPECT_DOUBLE_EQ(scaled.decode_seconds, 0.5);
  EXPECT_DOUBLE_EQ(ScaleToWall({0, 0, 0, 3}).solve_seconds, 3);
}

TEST(InferenceStatisticsTest, RequestsAndBatchesAreCountedApart) {
  InferenceStatistics statistics;
  const RunTimings timings = {0.001, 0.002, 0.003, 0.006};

  // A batch has two requests, of 2 and 3 samples; a third request failed.
  statistics.AddBatch(5, timings);
  statistics.AddSuccess(2, 0.010, 0.004, timings);
  statistics.AddSuccess(3, 0.020, 0.014, timings);
  statistics.AddFailure(0.5);

  const InferenceStatistics::Snapshot got = statistics.Read();
  EXPECT_EQ(got.inference_count, 5u);
  EXPECT_EQ(got.execution_count, 1u);
  EXPECT_EQ(got.success.count, 2u);
  EXPECT_EQ(got.success.nanoseconds, 30'000'000u);
  EXPECT_EQ(got.fail.count, 1u);
  EXPECT_EQ(got.fail.nanoseconds, 500'000'000u);
  EXPECT_EQ(got.queue.count, 2u);
  EXPECT_EQ(got.queue.nanoseconds, 18'000'000u);
  EXPECT_EQ(got.stages.infer.count, 2u);
  EXPECT_EQ(got.stages.infer.nanoseconds, 4'000'000u);
  EXPECT_GT(got.last_inference_ms, 1'500'000'000'000u);
  ASSERT_EQ(got.batches.size(), 1u);
  EXPECT_EQ(got.batches.at(5).input.nanoseconds, 1'000'000u);
  EXPECT_EQ(got.batches.at(5).output.count, 1u);
}

TEST(InferenceStatisticsTest, TimesThatWereNotMeasuredCountAndAddNothing) {
  InferenceStatistics statistics;
  statistics.AddSuccess(1, 0, 0, {});
  EXPECT_EQ(statistics.Read().queue.count, 1u);
  EXPECT_EQ(statistics.Read().queue.nanoseconds, 0u);
}

TEST(InferenceStatisticsTest, ManyThreadsLoseNothing) {
  InferenceStatistics statistics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) statistics.AddSuccess(2, 1e-6, 0, {});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(statistics.Read().inference_count, 8000u);
  EXPECT_EQ(statistics.Read().success.nanoseconds, 4'000'000u);
}

}  // namespace
}  // namespace deeppcr
