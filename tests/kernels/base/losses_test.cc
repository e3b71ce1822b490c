// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/losses.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace deeppcr {
namespace {

// log(e^1 + e^2 + e^3) - 2 = 1.407605964...
TEST(LossesTest, CrossEntropyIsThatOfSoftmax) {
  const std::vector<float> outputs = {1, 2, 3};
  std::vector<float> gradient(3);
  const SampleLoss loss = CrossEntropy(outputs, 1, 0.5, gradient);
  EXPECT_NEAR(loss.loss, 1.4076059644443804, 1e-15);
  EXPECT_FALSE(loss.correct);
  EXPECT_NEAR(gradient[0], 0.5 * 0.09003057317038046, 2e-8);
  EXPECT_NEAR(gradient[1], 0.5 * (0.24472847105479767 - 1), 2e-8);
  EXPECT_NEAR(gradient[2], 0.5 * 0.6652409557748219, 2e-8);
  EXPECT_TRUE(CrossEntropy(outputs, 2, 1, {}).correct);
}

TEST(LossesTest, CrossEntropyStaysFiniteForLargeOutputs) {
  const std::vector<float> outputs = {3e38F, -3e38F};
  std::vector<float> gradient(2);
  EXPECT_EQ(CrossEntropy(outputs, 0, 1, gradient).loss, 0);
  EXPECT_EQ(gradient, (std::vector<float>{0, 0}));
  EXPECT_NEAR(CrossEntropy(outputs, 1, 1, gradient).loss, 6e38, 1e33);
  EXPECT_EQ(gradient, (std::vector<float>{1, -1}));
}

TEST(LossesTest, ATieIsNotCorrect) {
  const std::vector<float> outputs = {2, 2, 1};
  EXPECT_FALSE(CrossEntropy(outputs, 0, 1, {}).correct);
  EXPECT_FALSE(CrossEntropy(outputs, 1, 1, {}).correct);
}

TEST(LossesTest, IsNotFiniteWhereAnOutputIsNot) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity()};
  for (const float value : bad) {
    for (int place = 0; place < 3; ++place) {
      std::vector<float> outputs = {1, 2, 3};
      outputs[place] = value;
      for (const int32_t label : {0, 1, 2}) {
        EXPECT_FALSE(std::isfinite(CrossEntropy(outputs, label, 1, {}).loss)) << place << label;
      }
      EXPECT_FALSE(
          std::isfinite(MeanSquaredError(outputs, std::vector<float>{1, 2, 3}, 1, {}).loss));
    }
  }
}

TEST(LossesTest, MeanSquaredErrorIsAMeanOverOutputs) {
  const std::vector<float> outputs = {1, 2}, targets = {0, 4};
  std::vector<float> gradient(2);
  EXPECT_EQ(MeanSquaredError(outputs, targets, 0.25, gradient).loss, 2.5);
  EXPECT_EQ(gradient, (std::vector<float>{0.25, -0.5}));
}

}  // namespace
}  // namespace deeppcr
