// SPDX-License-Identifier: Apache-2.0
#include "kernels/loaded_model.h"

#include <gtest/gtest.h>

#include "tests/kernels/loaded_model_rig.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using LoadedModelTest = LoadedModelRig;

TEST_F(LoadedModelTest, ALoadStopsWhenItsTokenFires) {
  CancelToken token;
  token.Cancel();
  token_ = &token;
  ExpectError(Load(), absl::StatusCode::kCancelled, "stopped");
}

TEST_F(LoadedModelTest, TheNumberOfStepsOfAStackIsFixed) {
  const auto model = Load().value();
  EXPECT_EQ(model->info().max_inference_steps, 0);
  EXPECT_EQ(model->Find(kSteps), model->Find());
  EXPECT_EQ(model->Find(kSteps / 2), nullptr);
  ExpectError(model->Prepare(kSteps / 2, nullptr), absl::StatusCode::kInvalidArgument,
              "num_inference_steps: expected one of 64, got 32");
  EXPECT_EQ(*model->Prepare(kSteps, nullptr), model->Find());
}

}  // namespace
}  // namespace deeppcr::testing
