// SPDX-License-Identifier: Apache-2.0
#include "kernels/backend/common.h"

#include <gtest/gtest.h>

namespace deeppcr {
namespace {

// Has code for dense stacks alone.
struct NewStack {
  absl::StatusOr<std::unique_ptr<System>> operator()(const DenseStackSpec& spec) const {
    return absl::DataLossError(StrCat("stack of ", spec.num_steps));
  }
};

TEST(NewSystemOfTest, CallsTheOverloadOfTheFamily) {
  const auto made = NewSystemOf(DenseStackSpec{.num_steps = 7}, NewStack());
  EXPECT_EQ(made.status(), absl::DataLossError("stack of 7"));
}

TEST(NewSystemOfTest, SaysSoWhereThereIsNone) {
  const auto made = NewSystemOf(DiffusionSpec(), NewStack());
  EXPECT_EQ(made.status(),
            absl::UnimplementedError("this backend has no code for models of this family"));
}

}  // namespace
}  // namespace deeppcr
