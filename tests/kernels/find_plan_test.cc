// SPDX-License-Identifier: Apache-2.0
#include "kernels/find_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/plan/plan_cache.h"
#include "tests/kernels/plan/sample_plan.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/fake_engine.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;

class WithPlan : public FakeModel {
 public:
  WithPlan(const PlanKey& key, const Plan& plan) : key_(key), kept_(plan) {}
  const Plan* PlanOf(const PlanKey& key) const override { return key == key_ ? &kept_ : nullptr; }

 private:
  const PlanKey key_;
  const Plan kept_;
};

PlanKey OfAnotherBuild() {
  PlanKey key = MakeKey();
  key.build = "0.0.9+xyz";
  return key;
}

class FindPlanTest : public ::testing::Test {
 protected:
  FindPlanTest() {
    search_.key = MakeKey();
    search_.cache_dir = cache_.path();
    search_.unfit = [this](const Plan&) { return unfit_; };
    search_.check = [this](Plan*) {
      ++checked_;
      return check_;
    };
    search_.measure = [this]() -> absl::StatusOr<Plan> {
      ++measured_;
      Plan plan;
      plan.entries = {{.max_samples = 5}};
      return plan;
    };
    search_.say = [this](LoadNews news, std::string_view text) {
      (news == LoadNews::kProblem ? problems_ : steps_) += std::string(text) + "\n";
    };
  }

  void GiveFile(const PlanKey& key) {
    file_.Add(key, MakePlan());
    // Searches see the file as it is parsed back, not as it was built.
    file_ = *PlanFile::Parse(file_.Text());
    search_.file = &file_;
  }

  TemporaryDirectory cache_;
  PlanFile file_;
  PlanSearch search_;
  std::string unfit_;
  absl::Status check_;
  int checked_ = 0, measured_ = 0;
  std::string problems_, steps_;
};

TEST_F(FindPlanTest, AFileThatFitsIsTakenInBothModes) {
  GiveFile(MakeKey());
  for (const PlanMode mode : {PlanMode::kPrefer, PlanMode::kRequire}) {
    search_.mode = mode;
    const Plan plan = FindPlan(search_).value();
    ExpectEqual(plan, MakePlan());
    EXPECT_EQ(plan.id, MakePlan().id);
    EXPECT_EQ(plan.source, PlanSource::kFile);
  }
  EXPECT_EQ(measured_ + checked_, 0);
  EXPECT_EQ(problems_, "");
}

TEST_F(FindPlanTest, MeasuringLooksAtNothing) {
  GiveFile(MakeKey());
  ASSERT_TRUE(PlanCache(cache_.path()).Save(MakeKey(), MakePlan()).ok());
  const std::vector<std::shared_ptr<const LoadedModel>> loaded = {
      std::make_shared<WithPlan>(MakeKey(), MakePlan())};
  search_.loaded = loaded;
  search_.mode = PlanMode::kMeasure;

  const Plan plan = FindPlan(search_).value();

  EXPECT_EQ(measured_, 1);
  EXPECT_EQ(plan.source, PlanSource::kMeasured);
  EXPECT_EQ(plan.id, *PlanId(MakeKey(), plan));
}

TEST_F(FindPlanTest, AMisfitIsNamedAndThenMeasuredOrFatal) {
  PlanKey other = MakeKey();
  other.weights_sha256 = "ffff";
  GiveFile(other);
  ASSERT_TRUE(FindPlan(search_).ok());
  EXPECT_EQ(measured_, 1);
  EXPECT_THAT(problems_, HasSubstr("plan.json: not taken: weights_sha256: expected "));
  EXPECT_THAT(problems_, HasSubstr("0123"));

  search_.mode = PlanMode::kRequire;
  ExpectError(FindPlan(search_), StatusCode::kFailedPrecondition,
              "plan.json: weights_sha256: expected ");
  EXPECT_EQ(measured_, 1);
}

TEST_F(FindPlanTest, AFileWithoutThisDeviceIsNoProblemUnlessRequired) {
  PlanKey other = MakeKey();
  other.device_class = other.device_bits = "gpu";
  GiveFile(other);
  ASSERT_TRUE(FindPlan(search_).ok());
  EXPECT_EQ(problems_, "");
  EXPECT_THAT(steps_, HasSubstr("no plan for device class \"cpu-test l1d=32K\" and 128 steps; "
                                "classes (steps): \"gpu\" (128)"));
  search_.mode = PlanMode::kRequire;
  ExpectError(FindPlan(search_), StatusCode::kFailedPrecondition, "no plan for device class");
  search_.file = nullptr;
  ExpectError(FindPlan(search_), StatusCode::kFailedPrecondition, "plan.json: there is none");
}

// Nothing is timed. The id changes with the build, as bits may differ between builds.
TEST_F(FindPlanTest, APlanOfAnotherBuildIsCheckedAndKeptUnderAnotherId) {
  GiveFile(OfAnotherBuild());
  search_.mode = PlanMode::kRequire;
  const Plan plan = FindPlan(search_).value();
  EXPECT_EQ(checked_, 1);
  EXPECT_EQ(measured_, 0);
  ExpectEqual(plan, MakePlan());
  EXPECT_EQ(plan.build, MakeKey().build);
  EXPECT_EQ(plan.id, *PlanId(MakeKey(), plan));
  EXPECT_NE(plan.id, *PlanId(OfAnotherBuild(), plan));
}

TEST_F(FindPlanTest, APlanOfAnotherBuildThatMissesTheToleranceIsRefused) {
  GiveFile(OfAnotherBuild());
  check_ = absl::FailedPreconditionError("newton missed");
  search_.mode = PlanMode::kRequire;
  ExpectError(FindPlan(search_), StatusCode::kFailedPrecondition,
              ", checked in this one: newton missed");
  search_.mode = PlanMode::kPrefer;
  ASSERT_TRUE(FindPlan(search_).ok());
  EXPECT_EQ(measured_, 1);
  EXPECT_THAT(problems_, HasSubstr("newton missed"));
}

TEST_F(FindPlanTest, OptionsThatTheModelCannotRunAreRefused) {
  GiveFile(MakeKey());
  unfit_ = "newton, C = 3";
  search_.mode = PlanMode::kRequire;
  ExpectError(FindPlan(search_), StatusCode::kFailedPrecondition,
              "this model cannot run with newton, C = 3");
}

TEST_F(FindPlanTest, APlanThatServesIsTakenOverIfItsKeyIsEqual) {
  const std::vector<std::shared_ptr<const LoadedModel>> loaded = {
      std::make_shared<WithPlan>(OfAnotherBuild(), Plan()),
      std::make_shared<WithPlan>(MakeKey(), MakePlan())};
  search_.loaded = loaded;
  const Plan plan = FindPlan(search_).value();
  EXPECT_EQ(plan.id, MakePlan().id);
  EXPECT_EQ(plan.source, PlanSource::kServing);
  EXPECT_EQ(measured_, 0);

  search_.key.weights_sha256 = "ffff";
  ASSERT_TRUE(FindPlan(search_).ok());
  EXPECT_EQ(measured_, 1);
}

TEST_F(FindPlanTest, WhatWasMeasuredIsCachedAndCheckedByTheNextBuild) {
  const absl::StatusOr<Plan> first = FindPlan(search_);
  const absl::StatusOr<Plan> second = FindPlan(search_);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(measured_, 1);
  EXPECT_EQ(second->id, first->id);
  EXPECT_EQ(second->source, PlanSource::kCache);

  search_.key.build = "0.2.0+new";
  const Plan third = FindPlan(search_).value();
  EXPECT_EQ(measured_, 1);
  EXPECT_EQ(checked_, 1);
  EXPECT_NE(third.id, first->id);
}

TEST_F(FindPlanTest, ALoadThatIsStoppedDuringACheckIsNotMeasured) {
  GiveFile(OfAnotherBuild());
  check_ = absl::CancelledError("stopped");
  ExpectError(FindPlan(search_), StatusCode::kCancelled, "stopped");
  EXPECT_EQ(measured_, 0);
}

}  // namespace
}  // namespace deeppcr::testing
