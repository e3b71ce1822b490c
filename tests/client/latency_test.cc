// SPDX-License-Identifier: Apache-2.0
#include "client/latency.h"

#include <gtest/gtest.h>

#include <numeric>

namespace deeppcr {
namespace {

// The values 1, 2, ..., n: the percentile of rank r is r.
std::vector<double> Counting(int n) {
  std::vector<double> values(static_cast<size_t>(n));
  std::iota(values.begin(), values.end(), 1.0);
  return values;
}

TEST(PercentileTest, NearestRankWorkedByHand) {
  // The standard example: of 15, 20, 35, 40, 50 the ranks are ceil(p / 100 * 5).
  const std::vector<double> values = {15, 20, 35, 40, 50};

  EXPECT_EQ(Percentile(values, 0), 15);
  EXPECT_EQ(Percentile(values, 20), 15);
  EXPECT_EQ(Percentile(values, 21), 20);
  EXPECT_EQ(Percentile(values, 40), 20);
  EXPECT_EQ(Percentile(values, 50), 35);
  EXPECT_EQ(Percentile(values, 100), 50);
}

TEST(PercentileTest, ExactRanksAreNotRoundedUp) {
  EXPECT_EQ(Percentile(Counting(100), 99), 99);
  EXPECT_EQ(Percentile(Counting(1000), 99.9), 999);
  EXPECT_EQ(Percentile(Counting(100000), 99.9), 99900);
  EXPECT_EQ(Percentile(Counting(1001), 99.9), 1000);
}

TEST(PercentileTest, OneAndNoValue) {
  EXPECT_EQ(Percentile(std::vector<double>{7}, 99.9), 7);
  EXPECT_EQ(Percentile(std::vector<double>{}, 50), 0);
}

TEST(SummarizeTest, SortsAndSummarizes) {
  const LatencySummary summary = Summarize({4, 1, 3, 2});

  EXPECT_EQ(summary.count, 4);
  EXPECT_EQ(summary.mean, 2.5);
  EXPECT_EQ(summary.min, 1);
  EXPECT_EQ(summary.p50, 2);
  EXPECT_EQ(summary.p90, 4);
  EXPECT_EQ(summary.max, 4);
}

}  // namespace
}  // namespace deeppcr
