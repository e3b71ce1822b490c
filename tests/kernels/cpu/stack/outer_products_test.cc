// SPDX-License-Identifier: Apache-2.0
// Sums of outer products of every shape compared with plain loops, to the bit.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/cpu/kernels.h"
#include "tests/testing/packed_layers.h"

namespace deeppcr::testing {
namespace {

constexpr float kGuard = 77.0F;

class OuterProductsTest : public ::testing::TestWithParam<size_t> {
 protected:
  const cpu::Kernels kernels_ = KernelSets()[GetParam()].kernels(16);
  const bool has_fma_ = KernelSets()[GetParam()].name != "baseline";

  std::vector<float> Random(int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = normal_(generator_);
    return values;
  }

  // What is added to the sum of column k: whole vectors round the product where there is no FMA.
  float Add(float x, float y, float sum, int64_t k, int64_t cols) const {
    if (has_fma_ || k >= cols / 4 * 4) return std::fma(x, y, sum);
    const volatile float product = x * y;
    return product + sum;
  }

  std::mt19937 generator_{5};
  std::normal_distribution<float> normal_;
};

TEST_P(OuterProductsTest, EveryElementIsOneSumInTheOrderOfTheSamples) {
  constexpr int64_t kOffset = 3;
  for (const int64_t rows : {1, 3, 7, 8, 10, 15, 16, 17, 24, 31, 33, 48, 65}) {
    for (const int64_t cols : {1, 3, 4, 7, 8, 10, 12, 16, 17, 20, 24, 31, 33, 48, 65}) {
      for (const int64_t samples : {0, 1, 3, 8}) {
        std::vector<std::vector<float>> x, y;
        std::vector<const float*> to_x, to_y;
        for (int64_t b = 0; b < samples; ++b) {
          x.push_back(Random(kOffset + rows));
          y.push_back(Random(2 * kOffset + cols));
        }
        for (int64_t b = 0; b < samples; ++b) {
          to_x.push_back(x[b].data());
          to_y.push_back(y[b].data());
        }
        std::vector<float> matrix = Random(rows * cols), bias = Random(rows);
        matrix.push_back(kGuard);
        bias.push_back(kGuard);
        std::vector<float> want_matrix = matrix, want_bias = bias;
        for (int64_t b = 0; b < samples; ++b)
          for (int64_t i = 0; i < rows; ++i) {
            want_bias[i] += x[b][kOffset + i];
            for (int64_t k = 0; k < cols; ++k) {
              float& sum = want_matrix[i * cols + k];
              sum = Add(x[b][kOffset + i], y[b][2 * kOffset + k], sum, k, cols);
            }
          }
        kernels_.add_outers({.samples = samples,
                             .rows = rows,
                             .cols = cols,
                             .x = to_x.data(),
                             .y = to_y.data(),
                             .x_offset = kOffset,
                             .y_offset = 2 * kOffset,
                             .matrix = matrix.data(),
                             .bias = bias.data()});
        ASSERT_EQ(matrix, want_matrix) << rows << " x " << cols << ", " << samples << " samples";
        ASSERT_EQ(bias, want_bias) << rows << " rows, " << samples << " samples";
      }
    }
  }
}

TEST_P(OuterProductsTest, LeavesOutWhatIsNotWanted) {
  const std::vector<float> x = Random(10), y = Random(6);
  const float *to_x = x.data(), *to_y = y.data();
  std::vector<float> both(60), alone(60), bias(10), bias_alone(10);
  cpu::OuterArgs args = {.samples = 1,
                         .rows = 10,
                         .cols = 6,
                         .x = &to_x,
                         .y = &to_y,
                         .matrix = both.data(),
                         .bias = bias.data()};
  kernels_.add_outers(args);
  args.matrix = nullptr;
  args.bias = bias_alone.data();
  kernels_.add_outers(args);
  args.matrix = alone.data();
  args.bias = nullptr;
  kernels_.add_outers(args);
  EXPECT_EQ(alone, both);
  EXPECT_EQ(bias_alone, bias);
  EXPECT_EQ(bias, x);
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, OuterProductsTest,
                         ::testing::Range(size_t{0}, KernelSets().size()),
                         [](const auto& test) { return KernelSets()[test.param].name; });

}  // namespace
}  // namespace deeppcr::testing
