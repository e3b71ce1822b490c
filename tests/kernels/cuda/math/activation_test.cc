// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/math/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/problem/spec.h"
#include "kernels/reference/reference_ops.h"

namespace deeppcr {
namespace {

std::vector<float> Points() {
  std::vector<float> points = {0.0F, -0.0F, 1e-30F, -1e-30F, 88.0F, -88.0F, 3e38F, -3e38F};
  for (int i = -400; i <= 400; ++i) points.push_back(0.05F * static_cast<float>(i));
  return points;
}

// Compares relative to the value, plus a little for values near zero.
void ExpectNear(float got, double want, double tolerance, const char* what, float at) {
  EXPECT_LE(std::fabs(got - want), tolerance * (std::fabs(want) + 1e-6)) << what << " at " << at;
}

TEST(CudaActivationTest, ValuesAndDerivativesAreThoseOfTheReference) {
  for (const ActivationName& row : kActivationNames) {
    const std::string name(row.name);
    for (const float x : Points()) {
      ExpectNear(cuda::Activate(row.activation, x), reference::Activate(row.activation, x), 2e-6,
                 name.c_str(), x);
      ExpectNear(cuda::Differentiate(row.activation, x),
                 reference::Differentiate(row.activation, x), 1e-5, name.c_str(), x);
    }
  }
}

TEST(CudaActivationTest, ANaNStaysOneAndInfinitiesMakeNone) {
  for (const ActivationName& row : kActivationNames) {
    EXPECT_TRUE(std::isnan(cuda::Activate(row.activation, NAN))) << row.name;
    for (const float x : {INFINITY, -INFINITY}) {
      EXPECT_FALSE(std::isnan(cuda::Activate(row.activation, x))) << row.name << " at " << x;
    }
  }
}

}  // namespace
}  // namespace deeppcr
