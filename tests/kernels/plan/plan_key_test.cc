// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/plan_key.h"

#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <vector>

#include "tests/kernels/plan/sample_plan.h"

namespace deeppcr::testing {
namespace {

TEST(PlanTest, LookupTakesTheFirstEntryThatIsLargeEnough) {
  const Plan plan = MakePlan();
  EXPECT_EQ(plan.Lookup(1).max_samples, 1);
  EXPECT_EQ(plan.Lookup(2).max_samples, 16);
  EXPECT_EQ(plan.Lookup(16).max_samples, 16);
  EXPECT_EQ(plan.Lookup(17).max_samples, 16);
}

TEST(PlanTest, ChoiceOfFindsASolverOrNothing) {
  const Plan plan = MakePlan();
  ASSERT_NE(plan.ChoiceOf("newton"), nullptr);
  EXPECT_EQ(plan.ChoiceOf("newton")->shooting_interval, 32);
  EXPECT_EQ(plan.ChoiceOf("picard"), nullptr);
}

TEST(PlanTest, TimeOfAnEntryIsThatOfItsSolver) {
  EXPECT_EQ(MakePlan().entries[0].seconds(), 1.0 / 3);
  EXPECT_EQ(MakePlan().entries[1].seconds(), 4e-5);
}

TEST(PlanIdTest, IsSixteenHexDigits) {
  const std::string id = MakePlan().id;
  EXPECT_EQ(id.size(), 16U);
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos);
}

TEST(PlanIdTest, NamesWhatBitsDependOnAndNotTheMeasuredTimes) {
  const Plan plan = MakePlan();
  Plan timed = plan;
  timed.measured_seconds = 9;
  timed.candidates.clear();
  timed.entries[0].parallel_seconds = 9;
  timed.entries[0].sequential_seconds = 9;
  timed.entries[0].parallel_error = 9;
  EXPECT_EQ(*PlanId(MakeKey(), timed), plan.id);

  const std::vector<std::function<void(Plan&)>> changes = {
      [](Plan& p) { p.choices[0].shooting_interval = 16; },
      [](Plan& p) { p.choices[0].warm_sweeps = 5; },
      [](Plan& p) { p.choices[0].initial_guess = InitialGuess::kConstant; },
      [](Plan& p) { p.choices[0].jacobian_refresh = JacobianRefresh::kEveryIteration; },
      [](Plan& p) { p.choices.pop_back(); },
      [](Plan& p) { p.entries[0].max_samples = 2; },
      [](Plan& p) { p.entries[0].solver = "sequential"; },
      [](Plan& p) { p.entries[1].parallel.solver = "picard"; },
      [](Plan& p) { p.entries.pop_back(); },
      [](Plan& p) { p.least_rtol = 1e-5; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    Plan changed = plan;
    changes[i](changed);
    EXPECT_NE(*PlanId(MakeKey(), changed), plan.id) << "change " << i;
  }
}

// The device class affects speed only: two machines that make the same choices give the same
// answers.
TEST(PlanIdTest, NamesTheKeyButNotTheDeviceClass) {
  PlanKey key = MakeKey();
  key.device_class = "cpu-test l1d=64K";
  EXPECT_EQ(*PlanId(key, MakePlan()), MakePlan().id);
  key = MakeKey();
  key.build = "0.1.0+abd";
  EXPECT_NE(*PlanId(key, MakePlan()), MakePlan().id);
  for (size_t i = 0; i < std::size(kKeyChanges); ++i) {
    key = MakeKey();
    kKeyChanges[i](key);
    EXPECT_NE(*PlanId(key, MakePlan()), MakePlan().id) << "change " << i;
  }
}

TEST(MisfitTest, NamesEveryPartThatDiffersButTheBuild) {
  PlanKey theirs = MakeKey();
  EXPECT_EQ(MisfitOf(MakeKey(), theirs), "");
  theirs.build = "0.0.9+xyz";
  EXPECT_EQ(MisfitOf(MakeKey(), theirs), "");
  theirs.weights_sha256 = "f\xC3\xA9";
  theirs.num_steps = 64;
  EXPECT_EQ(MisfitOf(MakeKey(), theirs),
            "num_steps: expected 128, got 64; weights_sha256: expected \"0123\", got \"f\\u00e9\"");
}

}  // namespace
}  // namespace deeppcr::testing
