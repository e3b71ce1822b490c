// SPDX-License-Identifier: Apache-2.0
#include "kernels/training/loss.h"

#include <gtest/gtest.h>

namespace deeppcr::training {
namespace {

TEST(LossTest, NamesAreThoseOfTheFlags) {
  for (const LossKind kind : {LossKind::kCrossEntropy, LossKind::kMse})
    EXPECT_EQ(ParseLossKind(ToString(kind)).value(), kind);
  EXPECT_EQ(ParseLossKind("mae").status().message(),
            "loss: expected cross_entropy or mse, got \"mae\"");
}

}  // namespace
}  // namespace deeppcr::training
