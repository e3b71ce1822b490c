// SPDX-License-Identifier: Apache-2.0
// Waits as they are predicted, and what is learned for that of waits that came.
#include "server/schedule/wait_prediction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace deeppcr::testing {
namespace {

TEST(SecondsUntilFreeTest, IsTheLevelToWhichTheWorkFillsUp) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> draw(0, 3);
  for (int n = 1; n <= 9; ++n) {
    for (int trial = 0; trial < 50; ++trial) {
      std::vector<double> busy(static_cast<size_t>(n));
      for (double& each : busy) each = trial % 3 == 0 ? 0 : draw(random);
      const double ahead = trial % 5 == 0 ? 0 : 4 * draw(random);
      const double level = SecondsUntilFree(busy, ahead);
      double filled = 0;
      for (const double each : busy) filled += std::max(0.0, level - each);
      EXPECT_NEAR(filled, ahead, 1e-12);
      EXPECT_GE(level, std::ranges::min(busy));
    }
  }
}

TEST(WaitCautionTest, SettlesWhereOneIn200WaitsTooLongAndForgets) {
  WaitCaution caution;
  EXPECT_EQ(caution.value(0, 1), 1);
  std::mt19937 random(2);
  std::normal_distribution<double> ratio(1.0, 0.15);
  double sum = 0;
  for (int i = 0; i < 200000; ++i) {
    caution.Add(0, 1, ratio(random) > caution.value(0, 1));
    if (i >= 50000) sum += caution.value(0, 1) / 150000;
  }
  EXPECT_NEAR(sum, 1.0 + 2.576 * 0.15, 0.02);
  for (int i = 0; i < 1000; ++i) caution.Add(0, 1, true);
  EXPECT_EQ(caution.value(0, 1), 2);
  for (int i = 0; i < 40000; ++i) caution.Add(0, 1, false);
  EXPECT_EQ(caution.value(0, 1), 1);
}

TEST(WaitCautionTest, FadesWithTimeWhoeverComes) {
  WaitCaution caution;
  for (int i = 0; i < 1000; ++i) caution.Add(7, 2, true);
  EXPECT_NEAR(caution.value(7 + 1200, 2), 1 + std::exp(-1), 1e-12);
  EXPECT_NEAR(caution.value(7 + 12000, 2), 1, 1e-4);
  caution.Add(7 + 1200, 2, true);
  EXPECT_NEAR(caution.value(7 + 1200, 2), 1.005 + std::exp(-1), 1e-12);
}

TEST(SecondsPerCostTest, OneBatchChangesItByAFactorOfTwoAtMost) {
  for (const double outlier : {1e-6, 100.0}) {
    SecondsPerCost seconds;
    for (int i = 0; i < 10; ++i) seconds.Add(3, 3);
    seconds.Add(outlier, 1);
    EXPECT_GE(seconds.value(), 0.5);
    EXPECT_LE(seconds.value(), 2);
    seconds.Add(100 * outlier, 100);
    EXPECT_GE(seconds.value(), 0.25);
    EXPECT_LE(seconds.value(), 4);
    // What lasts is learned.
    for (int i = 0; i < 1000; ++i) seconds.Add(outlier, 1);
    EXPECT_NEAR(seconds.value() / outlier, 1, 1e-3);
  }
}

}  // namespace
}  // namespace deeppcr::testing
