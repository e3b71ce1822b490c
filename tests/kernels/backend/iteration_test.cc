// SPDX-License-Identifier: Apache-2.0
// Balls, their shares, and their corners, with the same source on host and device.
#include "kernels/backend/iteration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

namespace deeppcr {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(BallTest, IsAQuarterOfTheLastUpdate) {
  static_assert(BallOf(8, 1, 0) == 2);
  static_assert(BallOf(8, -1, 0x1p-10F) == 2);
  EXPECT_EQ(BallOf(0x1p-12F, 1, 0), 0x1p-14F);
}

TEST(BallTest, KeepsTheRoundingOfTheTestSmallInIt) {
  static_assert(BallOf(0, 3, 0) == 3 * 0x1p-15F);
  static_assert(BallOf(0, -3, 0) == 3 * 0x1p-15F);
  static_assert(BallOf(0, 0, 1) == 24);
  static_assert(BallOf(0, 0, 0) == 0);
  EXPECT_EQ(BallOf(0x1p-13F, 1, 0), 0x1p-15F);
  EXPECT_EQ(BallOf(0x1p-14F, 1, 0), 0x1p-15F);
  EXPECT_EQ(BallOf(0x1p-14F, -1, 0x1p-18F), 24 * 0x1p-18F);
}

TEST(BallTest, IsTheLargestOfTheThree) {
  for (const float update : {0.0F, 1e-7F, 3e-4F, 2.0F})
    for (const float state : {0.0F, -1e-3F, 0.7F, -40.0F})
      for (const float rho : {0.0F, 2e-9F, 1e-6F, 0.1F})
        EXPECT_EQ(BallOf(update, state, rho),
                  std::fmax(std::fmax(0.25F * update, 0x1p-15F * std::fabs(state)), 24 * rho));
}

// A ball that no one knows holds nothing.
TEST(BallTest, OfRoundingThatIsNotANumberHoldsNothing) {
  EXPECT_TRUE(std::isnan(BallOf(1, 1, kNan)));
  EXPECT_EQ(ShareOfBall(1e-6F, BallOf(1, 1, kNan)), kInfinity);
  EXPECT_EQ(BallOf(kNan, 1, 0), 0x1p-15F) << "an update that is none foretells nothing";
  EXPECT_EQ(BallOf(kNan, 0, 0), 0.0F);
}

TEST(ShareOfBallTest, IsTheErrorByTheBall) {
  static_assert(ShareOfBall(1, 4) == 0.25F);
  static_assert(ShareOfBall(4, 4) == 1);
  static_assert(ShareOfBall(5, 4) == 1.25F);
  static_assert(ShareOfBall(1, kInfinity) == 0);
  EXPECT_EQ(ShareOfBall(kInfinity, 1), kInfinity);
}

// Also one whose ball is smaller still, or nothing.
TEST(ShareOfBallTest, AnErrorBelowTheLeastNormalFloatIsNone) {
  constexpr float kAbove = 0x1.000002p-126F;
  for (const float ball : {0.0F, 0x1p-149F, 1.0F, kInfinity, kNan}) {
    EXPECT_EQ(ShareOfBall(0, ball), 0.0F) << ball;
    EXPECT_EQ(ShareOfBall(0x1p-149F, ball), 0.0F) << ball;
    EXPECT_EQ(ShareOfBall(kLeastNormal, ball), 0.0F) << ball;
  }
  static_assert(kLeastNormal == std::numeric_limits<float>::min());
  EXPECT_EQ(ShareOfBall(kAbove, 0), kInfinity);
  EXPECT_EQ(ShareOfBall(kAbove, kAbove), 1.0F);
}

TEST(ShareOfBallTest, WhatIsNotANumberIsBeyondEveryBall) {
  static_assert(ShareOfBall(kNan, 1) == kInfinity);
  for (const float ball : {0.0F, 1.0F, kInfinity, kNan})
    EXPECT_EQ(ShareOfBall(kNan, ball), kInfinity) << ball;
  EXPECT_EQ(ShareOfBall(1, kNan), kInfinity);
  EXPECT_EQ(ShareOfBall(kInfinity, kInfinity), kInfinity);
  EXPECT_EQ(ShareOfBall(1, 0), kInfinity);
}

int SignOf(int64_t p, int64_t i) { return Displaced(Corner::kOne, 0, 1, p, i) > 0 ? 1 : -1; }

TEST(DisplacedTest, IsACornerOfTheBall) {
  for (int64_t p = 1; p <= 40; ++p)
    for (int64_t i = 0; i < 40; ++i) {
      const auto sign = static_cast<float>(SignOf(p, i));
      ASSERT_EQ(std::fabs(Displaced(Corner::kOne, 0, 1, p, i)), 1.0F);
      // The sign is that of the place, whatever is there.
      ASSERT_EQ(Displaced(Corner::kOne, 0.3F, 1e-3F, p, i), 0.3F + sign * 1e-3F);
      ASSERT_EQ(Displaced(Corner::kOne, -7, 0.5F, p, i), -7 + sign * 0.5F);
      ASSERT_EQ(Displaced(Corner::kOne, -7, 0, p, i), -7.0F);
      ASSERT_EQ(Displaced(Corner::kOne, 0, 0, p, i), 0.0F);
      ASSERT_EQ(Displaced(Corner::kOpposite, 0.3F, 1e-3F, p, i), 0.3F - sign * 1e-3F);
      ASSERT_EQ(Displaced(Corner::kNone, 0.3F, 1e-3F, p, i), 0.3F);
      ASSERT_EQ(Displaced(Corner::kOne, 1, kInfinity, p, i), sign * kInfinity);
      ASSERT_TRUE(std::isnan(Displaced(Corner::kOne, kNan, 1, p, i)));
      ASSERT_TRUE(std::isnan(Displaced(Corner::kOne, 1, kNan, p, i)));
    }
}

// Host and device, and two runs, take the same corner; bits of answers do not depend on it, but
// counts do.
TEST(DisplacedTest, TheCornerIsWrittenDown) {
  static_assert(Displaced(Corner::kOne, 0, 1, 0, 0) == 1);
  const std::vector<uint32_t> rows = {0x1AD8B034U, 0xB6F116CCU, 0xE4C0EE56U,
                                      0x1139C581U, 0x7804C0C1U, 0x89C4EE79U};
  for (size_t p = 0; p < rows.size(); ++p)
    for (int64_t i = 0; i < 32; ++i)
      EXPECT_EQ(SignOf(static_cast<int64_t>(p), i) < 0, (rows[p] >> i & 1U) != 0) << p << " " << i;
}

// Fair coins: 5 standard deviations of n of them are 2.5 sqrt(n).
struct Coins {
  int64_t heads = 0, all = 0;
  void Toss(bool head) {
    heads += head ? 1 : 0;
    ++all;
  }
  bool Fair() const {
    return std::fabs(static_cast<double>(heads) - static_cast<double>(all) / 2) <=
           2.5 * std::sqrt(static_cast<double>(all));
  }
};

TEST(DisplacedTest, BothSignsOccurAboutEquallyInEveryIntervalAndElement) {
  constexpr int64_t kIntervals = 1024, kWidth = 256;
  Coins all;
  for (int64_t p = 1; p <= kIntervals; ++p) {
    Coins of_interval;
    for (int64_t i = 0; i < kWidth; ++i) {
      of_interval.Toss(SignOf(p, i) > 0);
      all.Toss(SignOf(p, i) > 0);
    }
    EXPECT_TRUE(of_interval.Fair()) << p << ": " << of_interval.heads;
  }
  for (int64_t i = 0; i < kWidth; ++i) {
    Coins of_element;
    for (int64_t p = 1; p <= kIntervals; ++p) of_element.Toss(SignOf(p, i) > 0);
    EXPECT_TRUE(of_element.Fair()) << i << ": " << of_element.heads;
  }
  EXPECT_TRUE(all.Fair()) << all.heads;
}

// What a neighbour is displaced by must not take back what its own displacement does.
TEST(DisplacedTest, NeighboursAreIndependentOfEachOther) {
  for (const int64_t dp : {0, 1, 2, 3, 4, 8, 16, 64}) {
    for (const int64_t di : {-5, -2, -1, 0, 1, 2, 3, 4, 8, 16, 32}) {
      if (dp == 0 && di == 0) continue;
      Coins equal;
      for (int64_t p = 1; p <= 256; ++p)
        for (int64_t i = 8; i < 72; ++i) equal.Toss(SignOf(p, i) == SignOf(p + dp, i + di));
      EXPECT_TRUE(equal.Fair()) << dp << " " << di << ": " << equal.heads << " of " << equal.all;
    }
  }
}

TEST(DisplacedTest, NoTwoIntervalsAndNoTwoElementsShareACorner) {
  std::set<std::vector<bool>> corners, courses;
  for (int64_t p = 1; p <= 4096; ++p) {
    std::vector<bool> corner;
    for (int64_t i = 0; i < 64; ++i) corner.push_back(SignOf(p, i) > 0);
    EXPECT_TRUE(corners.insert(corner).second) << p;
  }
  for (int64_t i = 0; i < 1024; ++i) {
    std::vector<bool> course;
    for (int64_t p = 1; p <= 64; ++p) course.push_back(SignOf(p, i) > 0);
    EXPECT_TRUE(courses.insert(course).second) << i;
  }
}

// As many intervals as a solve may have.
TEST(DisplacedTest, FarIntervalsAreAsFair) {
  Coins coins, moves;
  for (int64_t p = int64_t{1} << 30; p < (int64_t{1} << 30) + 4096; ++p)
    for (int64_t i = 0; i < 4; ++i) {
      coins.Toss(SignOf(p, i) > 0);
      moves.Toss(SignOf(p, i) == SignOf(p + 1, i));
    }
  EXPECT_TRUE(coins.Fair()) << coins.heads;
  EXPECT_TRUE(moves.Fair()) << moves.heads;
}

}  // namespace
}  // namespace deeppcr
