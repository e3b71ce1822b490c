// SPDX-License-Identifier: Apache-2.0
// Layers before and behind the recurrence have the bits of sums in double, term by term.
#include <gtest/gtest.h>

#include <limits>

#include "tests/kernels/cpu/kernels_fixture.h"

namespace deeppcr::testing {
namespace {

using OuterLayersTest = CpuKernelsTest;

TEST_P(OuterLayersTest, EachOutputIsOneSumInDouble) {
  constexpr float kEndless = std::numeric_limits<float>::infinity();
  for (const int64_t cols : {1, 2, 7, 64, 133}) {
    const AlignedBuffer<float> weights = RandomRows(cols), bias = RandomRows(1);
    for (const float special : {0.0F, -0.0F, 1e30F, -3e38F, kEndless, std::nanf("")}) {
      std::vector<float> in(cols);
      std::normal_distribution<float> normal;
      for (float& x : in) x = normal(generator_);
      in[cols / 2] = special;
      if (cols > 1) in[0] = -in[cols - 1];  // nearly cancels
      AlignedBuffer<float> out(width_ + 1);
      out[width_] = 7;
      kernels_.sum_columns({.width = width_,
                            .cols = cols,
                            .weights = weights.data(),
                            .bias = bias.data(),
                            .in = in.data(),
                            .out = out.data()});
      EXPECT_EQ(out[width_], 7);
      for (int64_t i = 0; i < width_; ++i) {
        double sum = bias[i];
        for (int64_t k = 0; k < cols; ++k) sum += double{weights[k * width_ + i]} * in[k];
        const auto want = static_cast<float>(sum);
        ASSERT_TRUE(SameBits(&out[i], &want, 1) || (std::isnan(out[i]) && std::isnan(want)))
            << cols << " columns, output " << i << ": " << out[i] << " for " << want;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, OuterLayersTest, KernelsCases(), KernelsCaseName);

}  // namespace
}  // namespace deeppcr::testing
