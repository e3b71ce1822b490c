// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/diffusion/tangent.h"

#include <gtest/gtest.h>

namespace deeppcr::cuda {
namespace {

// A reverse step with x0 = z.
constexpr ReverseCoefficients kOfState = {.x0_z = 1, .z_x0 = 1};
constexpr DenoiserView kClipped = {.clip_range = 1};

ReverseOfProbes At(float z) { return {kOfState, kClipped, 0, z, z, 0}; }

TEST(ReverseTangentTest, IsOneInsideTheClipAndOnItsBoundary) {
  for (const float z : {0.5F, 1.0F, -1.0F, 1.0000001F, -2.0F}) {
    const ReverseTangent tangent(kOfState, BeyondClip(kOfState, 1, 0, z) > 0);
    EXPECT_EQ(tangent.by_z, z >= -1 && z <= 1 ? 1 : 0) << z;
  }
}

TEST(ReverseTangentTest, ProbesMeetBothSidesOfAClipNearBy) {
  EXPECT_EQ(At(-1.00001F).Carry(kOfState, 0, 1e-5F), 1e-5F);
  EXPECT_EQ(At(1.001F).Carry(kOfState, 0, 1e-5F), 0);
  EXPECT_EQ(At(1.001F).Carry(kOfState, 0, -1e-3F), -1e-3F);
  EXPECT_EQ(At(-2.0F).Carry(kOfState, 0, 1e-3F), 0);
  EXPECT_EQ(At(-2.0F).Carry(kOfState, 0, 0.1F), 0.1F);
  // Inside, x0 cancels the rest.
  constexpr ReverseCoefficients kCancels = {.x0_z = 1, .z_z = 1, .z_x0 = -1};
  const auto image = [&](float z, float probe) {
    return ReverseOfProbes(kCancels, kClipped, 0, z, z, 0).Carry(kCancels, 0, probe);
  };
  EXPECT_EQ(image(0.5F, 1e-3F), 0);
  EXPECT_EQ(image(0.99999F, 1e-5F), 1e-5F);
  EXPECT_EQ(image(1.00001F, 1e-5F), 1e-5F);
  EXPECT_EQ(image(2.0F, 1e-3F), 1e-3F);
}

TEST(SlopeRangeTest, CarriesWhatTheLargestSlopeWouldCancel) {
  const SlopeRange slopes = {0, 1};
  EXPECT_EQ(slopes.Carry(-1e-4F, 1e-4F), 1e-4F);
  EXPECT_EQ(slopes.Carry(1e-4F, 1e-4F), 2e-4F);
  EXPECT_EQ(slopes.Largest(), 1);
  EXPECT_EQ((SlopeRange{-0.1F, 0.05F}).Largest(), -0.1F);
}

}  // namespace
}  // namespace deeppcr::cuda
