// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "tests/kernels/loaded_model_rig.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

class ComparisonTest : public LoadedModelRig {
 protected:
  static std::vector<absl::StatusOr<ResolvedOptions>> SequentialAndNewton(
      const LoadedModel& model) {
    return {model.Find()->Resolve({.solver = "sequential"}, 1),
            model.Find()->Resolve({.solver = "newton"}, 1)};
  }

  const std::vector<float> one_input_ = std::vector<float>(kWidth, 0.5F);
  const SampleInputs one_{.num_samples = 1, .inputs = one_input_};
};

TEST_F(ComparisonTest, PastItsDeadlineSaysSoThoughItWasCancelledToo) {
  const auto model = Load().value();
  const auto options = SequentialAndNewton(*model);
  CancelToken token(CancelToken::Clock::now());
  token.Cancel();
  ExpectError(model->Find()->Compare(one_, options, {.repetitions = 1}, &token),
              absl::StatusCode::kDeadlineExceeded, "deadline");

  CancelToken cancelled;
  cancelled.Cancel();
  ExpectError(model->Find()->Compare(one_, options, {.repetitions = 1}, &cancelled),
              absl::StatusCode::kCancelled, "cancelled");
}

TEST_F(ComparisonTest, OutOfTimeStopsRepeatingAndSaysWhatItHas) {
  const auto model = Load().value();
  const auto options = SequentialAndNewton(*model);
  const auto rows =
      model->Find()->Compare(one_, options, {.repetitions = 100, .seconds = 1e-9}, nullptr);
  ASSERT_TRUE(rows.ok()) << rows.status();
  for (const ComparisonRow& row : *rows) {
    EXPECT_EQ(row.seconds.size(), 1U);
    EXPECT_EQ(row.outputs.size(), rows->front().outputs.size());
  }
  EXPECT_GT((*rows)[1].max_error_over_tolerance, 0);
  EXPECT_LE((*rows)[1].max_error_over_tolerance, 1);
  EXPECT_EQ((*rows)[0].max_error_over_tolerance, 0);
}

TEST_F(ComparisonTest, ARowThatCannotRunCarriesItsErrorAndLeavesTheOthersAlone) {
  const auto model = Load().value();
  const std::vector<float> inputs = Normal(2 * kWidth);
  const SampleInputs samples{.num_samples = 2, .inputs = inputs};
  const std::vector options = {
      model->Find()->Resolve({.solver = "newton", .shooting_interval = 4}, 2),
      model->Find()->Resolve({.solver = "guess"}, 2),
      model->Find()->Resolve({.solver = "newton", .initial_guess = InitialGuess::kPrevious}, 2)};

  const auto rows = model->Find()->Compare(samples, options, {.repetitions = 3}, nullptr).value();

  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].error, "");
  EXPECT_EQ(rows[0].shooting_interval, 4);
  EXPECT_EQ(rows[0].seconds.size(), 3U);
  EXPECT_EQ(rows[0].reports.size(), 2U);
  EXPECT_EQ(rows[1].error, options[1].status().message());
  EXPECT_EQ(rows[2].error, "initial_guess: previous has no meaning in a comparison");
  for (const size_t r : {1, 2}) EXPECT_TRUE(rows[r].seconds.empty());
  const auto none =
      model->Find()->Compare(samples, std::span(options).subspan(1), {.repetitions = 3}, nullptr);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ((*none)[0].error, rows[1].error);
}

// Options that were resolved for another system are a bug of the caller's, and are not run.
TEST_F(ComparisonTest, RunsNoOptionsOfAnotherNumberOfSteps) {
  const auto model = Load().value();
  const std::vector<float> inputs = Normal(kWidth);
  std::vector options(2, model->Find()->Resolve({.solver = "newton"}, 1));
  options[1]->num_steps = kSteps / 2;
  ExpectError(model->Find()->Compare({.num_samples = 1, .inputs = inputs}, options,
                                     {.repetitions = 1}, nullptr),
              absl::StatusCode::kInvalidArgument, "run item: steps: expected 64 values, got 32");
}

}  // namespace
}  // namespace deeppcr::testing
