// SPDX-License-Identifier: Apache-2.0
#include "client/solver_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace deeppcr {
namespace {

using ::testing::HasSubstr;

TEST(SolverOptionsTest, EveryOptionInTheTableIsAField) {
  for (const SolverOptionText& text : SolverOptionTexts()) {
    EXPECT_NE(v1::SolverOptions::descriptor()->FindFieldByName(text.name), nullptr) << text.name;
  }
}

// Flags of their own ask for trajectories and keep them.
TEST(SolverOptionsTest, EveryFieldButThoseOfTrajectoriesIsInTheTable) {
  const auto* type = v1::SolverOptions::descriptor();
  for (const char* name : {"return_trajectory", "keep_trajectory"})
    EXPECT_NE(type->FindFieldByName(name), nullptr) << name;

  EXPECT_EQ(SolverOptionTexts().size() + 2, static_cast<size_t>(type->field_count()));
}

TEST(SolverOptionsTest, ParsesARowOnTopOfTheBase) {
  v1::SolverOptions base;
  base.set_rtol(1e-3);

  const auto row = ParseSolverRow(
      "newton,shooting_interval=16,warm_sweeps=0,initial_guess=calibrated,"
      "jacobian_refresh=while_contracting,on_no_convergence=error",
      base);

  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_EQ(row->solver(), "newton");
  EXPECT_EQ(row->rtol(), 1e-3);
  EXPECT_EQ(row->shooting_interval(), 16);
  EXPECT_TRUE(row->has_warm_sweeps());
  EXPECT_FALSE(row->has_atol());
  EXPECT_EQ(row->initial_guess(), v1::INITIAL_GUESS_CALIBRATED);
  EXPECT_EQ(row->jacobian_refresh(), v1::JACOBIAN_REFRESH_WHILE_CONTRACTING);
  EXPECT_EQ(row->on_no_convergence(), v1::ON_NO_CONVERGENCE_ERROR);
}

TEST(SolverOptionsTest, PreviousStatesAreTheOnlyGuessBesideThem) {
  v1::SolverOptions options;
  ASSERT_TRUE(StartFromPrevious(&options).ok());
  EXPECT_EQ(options.initial_guess(), v1::INITIAL_GUESS_PREVIOUS);
  EXPECT_TRUE(StartFromPrevious(&options).ok());
  options.set_initial_guess(v1::INITIAL_GUESS_COARSE);
  EXPECT_EQ(StartFromPrevious(&options).message(),
            "initial_guess: expected previous, or nothing, beside --previous");
}

TEST(SolverOptionsTest, NamesWhatIsWrong) {
  const auto error = [](const char* row) {
    return std::string(ParseSolverRow(row, {}).status().message());
  };

  EXPECT_EQ(error("newton,rtol=small"), "rtol: expected a number, got 'small'");
  EXPECT_EQ(error("newton,max_iterations=1.5"),
            "max_iterations: expected a whole number, got '1.5'");
  EXPECT_EQ(error("newton,max_iterations=99999999999"),
            "max_iterations: expected a whole number, got '99999999999'");
  EXPECT_EQ(error("newton,initial_guess=zero"),
            "initial_guess: expected constant, coarse, calibrated, previous, got 'zero'");
  EXPECT_THAT(error("newton,speed=9"), HasSubstr("option: expected one of solver, rtol"));
  EXPECT_THAT(error(""), HasSubstr("solver: expected a name"));
}

}  // namespace
}  // namespace deeppcr
