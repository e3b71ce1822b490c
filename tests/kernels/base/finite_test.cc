// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/finite.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace deeppcr {
namespace {

TEST(FiniteTest, FindsTheFirstNanOrInfinity) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(AllFinite({}));
  for (const size_t size : {1, 2, 31, 33}) {
    std::vector<float> values(size, std::numeric_limits<float>::max());
    EXPECT_TRUE(AllFinite(values));
    EXPECT_EQ(FirstNonFinite(values), size);
    for (const float bad : {kInfinity, -kInfinity, kNan}) {
      for (size_t i = 0; i < size; ++i) {
        std::vector<float> spoilt = values;
        spoilt[i] = spoilt[size - 1] = bad;
        EXPECT_FALSE(AllFinite(spoilt));
        EXPECT_EQ(FirstNonFinite(spoilt), i);
      }
    }
  }
}

}  // namespace
}  // namespace deeppcr
