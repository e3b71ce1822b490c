// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/base/file.h"
#include "tests/kernels/loaded_model_rig.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using nlohmann::json;

class StoredPlansTest : public LoadedModelRig {
 protected:
  std::string PlanPath() const { return model_.File("plan.json"); }

  // A plan file with this text is the error of a load that needs one, and a problem of others.
  void ExpectNamed(const std::string& text, const std::string& problem) {
    ASSERT_TRUE(WriteFileAtomically(PlanPath(), text).ok());
    ExpectError(LoadWith({.backend = "cpu", .plan_mode = PlanMode::kRequire}),
                absl::StatusCode::kInvalidArgument, problem);
    ASSERT_TRUE(LoadWith({.backend = "cpu"}).ok());
    EXPECT_NE(problems_.find(problem), std::string::npos) << problems_;
  }

  // Removes cached plans: each least interval has a plan of its own.
  void ForgetPlans() {
    for (const auto& entry : std::filesystem::directory_iterator(plans_.path()))
      std::filesystem::remove(entry.path());
  }

  // Edits the only plan and gives the edited plan its right id, which the refusal of the edited
  // plan names.
  void EditPlan(const std::function<void(json&)>& edit, int64_t max_workspace_bytes) {
    const std::string path = std::filesystem::directory_iterator(plans_.path())->path().string();
    json plan = json::parse(*ReadFile(path, 1 << 20));
    edit(plan);
    plan["id"] = "0";
    ASSERT_TRUE(WriteFileAtomically(path, plan.dump()).ok());
    ASSERT_TRUE(Load(max_workspace_bytes).ok());
    const std::string marker = "id: expected ";
    const size_t at = problems_.find(marker);
    ASSERT_NE(at, std::string::npos) << problems_;
    plan["id"] = problems_.substr(at + marker.size(), 16);
    ASSERT_TRUE(WriteFileAtomically(path, plan.dump()).ok());
  }

  // The answers of every solver to two samples, one after the other.
  static std::vector<float> Answers(const LoadedModel& model) {
    std::vector<float> all, inputs = Normal(2 * kWidth), outputs(2 * kWidth);
    std::vector<SampleReport> reports(2);
    for (const std::string& solver : model.info().solvers) {
      RunItem item{
          .samples = {.num_samples = 2, .inputs = inputs}, .outputs = outputs, .reports = reports};
      const auto resolved = model.Find()->Resolve({.solver = solver}, 2);
      EXPECT_TRUE(resolved.ok() && model.Find()->Run(*resolved, {&item, 1}, nullptr).ok())
          << solver;
      all.insert(all.end(), outputs.begin(), outputs.end());
    }
    return all;
  }
};

TEST_F(StoredPlansTest, TakesThePlanOfAnEarlierLoad) {
  const auto first = Load().value();
  EXPECT_EQ(first->Find()->plan().source, PlanSource::kMeasured);

  const auto second = Load().value();

  EXPECT_EQ(second->Find()->plan().source, PlanSource::kCache);
  EXPECT_EQ(problems_, "");
  EXPECT_EQ(second->Find()->plan().id, first->Find()->plan().id);
}

// The workspace does not fit C = 1, but the entry of the cached plan runs it.
TEST_F(StoredPlansTest, AnEntryBelowTheLeastIntervalIsMeasuredAnew) {
  int64_t bytes = int64_t{1} << 20;
  while (bytes > 0 && (*Load(bytes))->info().min_shooting_interval < 4) bytes = bytes * 3 / 4;
  ForgetPlans();
  ASSERT_TRUE(Load(bytes).ok());
  EditPlan(
      [](json& plan) {
        json& entry = plan["plan"]["entries"][0];
        entry["parallel"]["solver"] = entry["solver"] = "newton";
        entry["parallel"]["shooting_interval"] = 1;
      },
      bytes);

  const auto model = Load(bytes).value();

  EXPECT_EQ(model->Find()->plan().source, PlanSource::kMeasured);
  EXPECT_NE(problems_.find("this model cannot run with its entry for "), std::string::npos)
      << problems_;
  const auto resolved = model->Find()->Resolve({}, 1).value();
  EXPECT_TRUE(resolved.solver == "sequential" || resolved.shooting_interval >= 4);
}

// Threads share only the samples of a batch.
TEST_F(StoredPlansTest, TheNumberOfThreadsChangesNeitherPlanNorBits) {
  const auto one = LoadWith({.backend = "cpu", .num_threads = 1}).value();
  for (const int threads : {2, 5}) {
    const auto more = LoadWith({.backend = "cpu", .num_threads = threads}).value();
    EXPECT_EQ(more->Find()->plan().source, PlanSource::kMeasured);
    EXPECT_EQ(more->Find()->plan().id, one->Find()->plan().id);
    EXPECT_EQ(Answers(*more), Answers(*one));
  }
}

TEST_F(StoredPlansTest, APlanFileIsEnoughWhereOneIsRequired) {
  const EngineOptions require{.backend = "cpu", .plan_mode = PlanMode::kRequire};
  ExpectError(LoadWith(require), absl::StatusCode::kFailedPrecondition, "plan.json: there is none");
  const auto measured = LoadWith({.backend = "cpu"}).value();
  ASSERT_TRUE(WriteFileAtomically(PlanPath(), measured->PlanFileText()).ok());

  const auto model = LoadWith(require).value();

  EXPECT_EQ(model->Find()->plan().source, PlanSource::kFile);
  EXPECT_EQ(model->Find()->plan().id, measured->Find()->plan().id);
  EXPECT_EQ(model->PlanFileText(), measured->PlanFileText());
  EXPECT_EQ(Answers(*model), Answers(*measured));
  EXPECT_EQ(problems_, "");
}

// The key fits except for the build: the choices of the plan are run, compared with sequential, and
// kept.
TEST_F(StoredPlansTest, APlanFileOfAnotherBuildIsCheckedAndKept) {
  const auto measured = LoadWith({.backend = "cpu"}).value();
  json root = json::parse(measured->PlanFileText());
  json& item = root["devices"].front()[0];
  item["key"]["build"] = "0.0.1+old";
  ASSERT_TRUE(WriteFileAtomically(PlanPath(), root.dump()).ok());
  const EngineOptions require{.backend = "cpu", .plan_mode = PlanMode::kRequire};

  const auto model = LoadWith(require).value();

  // The id is that of this build, which made the same plan.
  EXPECT_EQ(model->Find()->plan().id, measured->Find()->plan().id);

  item["key"]["weights_sha256"] = "0";
  ASSERT_TRUE(WriteFileAtomically(PlanPath(), root.dump()).ok());
  ExpectError(LoadWith(require), absl::StatusCode::kFailedPrecondition, "weights_sha256");
}

TEST_F(StoredPlansTest, APlanFileThatIsNoneIsNamed) {
  ExpectNamed("{\"format\": 3}", "plan.json: format: expected a string");
  // Nobody reads the file if the mode is kMeasure.
  ASSERT_TRUE(LoadWith({.backend = "cpu", .plan_mode = PlanMode::kMeasure}).ok());
  EXPECT_EQ(problems_, "");
}

// A write that was cut off leaves an empty file, which holds no plan but is not a missing file.
TEST_F(StoredPlansTest, AnEmptyPlanFileIsNamedToo) { ExpectNamed("", "plan.json: "); }

TEST_F(StoredPlansTest, AReloadTakesOverThePlanThatServes) {
  const auto serving = LoadWith({.backend = "cpu"}).value();
  const std::vector<LoadedPtr> loaded = {serving};
  const auto again = LoadWith({.backend = "cpu"}, loaded).value();
  EXPECT_EQ(again->Find()->plan().source, PlanSource::kServing);
  EXPECT_EQ(again->Find()->plan().id, serving->Find()->plan().id);

  std::string config = kConfig;
  config.replace(config.find("tanh"), 4, "silu");
  ASSERT_TRUE(WriteFileAtomically(model_.File("config.json"), config).ok());
  const auto other = LoadWith({.backend = "cpu"}, loaded).value();
  EXPECT_EQ(other->Find()->plan().source, PlanSource::kMeasured);
}

}  // namespace
}  // namespace deeppcr::testing
