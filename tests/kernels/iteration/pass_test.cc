// SPDX-License-Identifier: Apache-2.0
// Balls, their shares and their signs, and the size of errors; host and device share the source.
#include "kernels/iteration/pass.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace deeppcr {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(BallTest, IsAQuarterOfTheLastUpdate) {
  static_assert(BallOf(8, 0, 1, 0) == 2);
  static_assert(BallOf(8, 0, -1, 0x1p-10F) == 2);
  static_assert(BallOf(-8, 0, 1, 0) == 2);
  EXPECT_EQ(BallOf(0x1p-12F, 0, 1, 0), 0x1p-14F);
}

TEST(BallTest, KeepsTheRoundingOfTheTestSmallInIt) {
  static_assert(BallOf(0, 0, 3, 0) == 3 * 0x1p-15F);
  static_assert(BallOf(0, 0, -3, 0) == 3 * 0x1p-15F);
  static_assert(BallOf(0, 0, 0, 1) == 16);
  static_assert(BallOf(0, 0, 0, 0) == 0);
  EXPECT_EQ(BallOf(0x1p-13F, 0, 1, 0), 0x1p-15F);
  EXPECT_EQ(BallOf(0x1p-14F, 0, 1, 0), 0x1p-15F);
  EXPECT_EQ(BallOf(0x1p-14F, 0, -1, 0x1p-18F), 16 * 0x1p-18F);
}

TEST(BallTest, IsTheLargestOfTheThree) {
  for (const float update : {0.0F, 1e-7F, -3e-4F, 2.0F})
    for (const float state : {0.0F, -1e-3F, 0.7F, -40.0F})
      for (const float rho : {0.0F, 2e-9F, 1e-6F, 0.1F})
        EXPECT_EQ(
            BallOf(update, 0, state, rho),
            std::fmax(std::fmax(0.25F * std::fabs(update), 0x1p-15F * std::fabs(state)), 16 * rho));
}

TEST(BallTest, HasTheSignOfTheCorrection) {
  static_assert(BallOf(8, 1e-9F, 1, 0) == 2);
  static_assert(BallOf(8, -1e-9F, 1, 0) == -2);
  static_assert(BallOf(0, -1, -3, 0) == -3 * 0x1p-15F);
  EXPECT_FALSE(std::signbit(BallOf(8, 0, 1, 0)));
  EXPECT_EQ(BallOf(8, kNan, 1, 0), 2.0F);
}

// An element that moves at all may grow, even if it has been zero so far.
TEST(BallTest, OfAnElementThatMovesIsANormalNumber) {
  static_assert(BallOf(0, 0x1p-149F, 0, 0) == kLeastNormal);
  static_assert(BallOf(0, -0x1p-149F, 0, 0x1p-149F) == -kLeastNormal);
  static_assert(BallOf(0x1p-130F, 1e-39F, 1e-39F, 0) == kLeastNormal);
  static_assert(BallOf(0, 0, 0, 0x1p-149F) == 0x1p-145F);
}

// A ball of unknown size holds nothing.
TEST(BallTest, OfRoundingThatIsNotANumberHoldsNothing) {
  EXPECT_TRUE(std::isnan(BallOf(1, 0, 1, kNan)));
  EXPECT_EQ(ShareOfBall(1e-6F, BallOf(1, 0, 1, kNan)), kInfinity);
  EXPECT_EQ(BallOf(kNan, 0, 1, 0), 0x1p-15F) << "an update that is none foretells nothing";
  EXPECT_EQ(BallOf(kNan, 0, 0, 0), 0.0F);
}

TEST(ShareOfBallTest, IsTheErrorByTheBall) {
  static_assert(ShareOfBall(1, 4) == 0.25F);
  static_assert(ShareOfBall(4, 4) == 1);
  static_assert(ShareOfBall(5, 4) == 1.25F);
  static_assert(ShareOfBall(1, -4) == 0.25F);
  static_assert(ShareOfBall(1, kInfinity) == 0);
  EXPECT_EQ(ShareOfBall(kInfinity, 1), kInfinity);
}

// The size of the ball does not matter: it may be smaller than the error, zero or NaN.
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

TEST(AlongTest, TurnsTheBallTheWayThatWasFound) {
  static_assert(Along(1, 2) == 2 && Along(1, -2) == 2);
  static_assert(Along(-1e-30F, 2) == -2 && Along(-1e-30F, -2) == -2);
  static_assert(Along(0, 2) == 2 && Along(0, -2) == -2);
  EXPECT_EQ(Along(kNan, -2), -2.0F) << "no way";
  EXPECT_EQ(Along(-kInfinity, kInfinity), -kInfinity);
}

TEST(ConfirmationTest, TriesTheStatesWhereTheMapTakesThemAndWhereTheirBallsEnd) {
  static_assert(TriedAt(Confirmation::kNone, 3, 0.25F, 0.5F) == 3);
  static_assert(TriedAt(Confirmation::kStates, 3, 0.25F, 0.5F) == 3);
  static_assert(TriedAt(Confirmation::kUpdated, 3, 0.25F, 0.5F) == 3.25F);
  static_assert(TriedAt(Confirmation::kUpdated, 3, -0.25F, 0.5F) == 2.75F);
  static_assert(TriedAt(Confirmation::kDisplaced, 3, 0.25F, 0.5F) == 3.5F);
  static_assert(TriedAt(Confirmation::kDisplaced, 3, 0.25F, -0.5F) == 2.5F);
  EXPECT_TRUE(std::isnan(TriedAt(Confirmation::kUpdated, 1, kNan, 1)));
  EXPECT_TRUE(std::isnan(TriedAt(Confirmation::kDisplaced, 1, 1, kNan)));
}

TEST(ErrorBoundTest, IsTwiceTheWayAndRoundingOrTheRoundingAlone) {
  static_assert(ErrorBound(0, 0) == 0);
  static_assert(ErrorBound(1, 0) == 2);
  static_assert(ErrorBound(0, 1) == 2);
  static_assert(ErrorBound(0.25, 1) == 2);
  static_assert(ErrorBound(0.5, 1) == 2);
  static_assert(ErrorBound(1, 1) == 3);
  constexpr double kBeyond = std::numeric_limits<double>::infinity();
  EXPECT_EQ(ErrorBound(kBeyond, 0), kBeyond);
  EXPECT_EQ(ErrorBound(0, kBeyond), kBeyond);
  EXPECT_TRUE(std::isnan(ErrorBound(kNan, 1)));
  EXPECT_TRUE(std::isnan(ErrorBound(1, kNan)));
}

}  // namespace
}  // namespace deeppcr
