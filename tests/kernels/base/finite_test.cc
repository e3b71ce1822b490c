// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/finite.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
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

TEST(FiniteTest, GivesAllNansTheSameBitsAndLeavesTheRest) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> values = {std::bit_cast<float>(0xFFC00000U), -0.0F,      kInfinity,
                               std::bit_cast<float>(0x7F800001U), -kInfinity, 0x1p-149F,
                               std::bit_cast<float>(0xFFFFFFFFU)};
  MakeNansAlike(values);
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  EXPECT_EQ(bits, (std::vector<uint32_t>{0x7FC00000, 0x80000000, 0x7F800000, 0x7FC00000, 0xFF800000,
                                         1, 0x7FC00000}));
  MakeNansAlike({});
}

TEST(FiniteTest, NarrowsWhatFloatHoldsAndMakesAnInfinityOfTheRest) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(NarrowToFloat(0.1), 0.1F);
  EXPECT_EQ(NarrowToFloat(-1e-300), 0);
  for (const float sign : {1.0F, -1.0F}) {
    EXPECT_EQ(NarrowToFloat(double{sign} * kLargest), sign * kLargest);
    for (const double large : {3.5e38, 1e300, HUGE_VAL})
      EXPECT_EQ(NarrowToFloat(sign * large), sign * kInfinity);
  }
  EXPECT_TRUE(std::isnan(NarrowToFloat(std::nan(""))));
}

}  // namespace
}  // namespace deeppcr
