// SPDX-License-Identifier: Apache-2.0
// The models found in the repository, the versions that are wanted, and whether these are ready.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "server/models/model_store.h"
#include "tests/server/models/model_store_rig.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

using ModelStoreReadinessTest = ModelStoreRig;

TEST_F(ModelStoreReadinessTest, LoadsTheVersionsThatThePolicyChooses) {
  for (const char* version : {"1", "2", "3"}) {
    Write("a", version);
    Write("b", version);
    Write("c", version);
  }
  ModelStore store({.repository = repository_.path(),
                    .versions = *VersionPolicies::Parse("latest:2,b=1+3,c=2+7")},
                   engine_, metrics_, logger_);

  ASSERT_TRUE(store.LoadAll().ok());

  std::string ready, failed;
  for (const ModelStatus& status : store.List()) {
    (status.state == ModelState::kReady ? ready : failed) +=
        status.name + std::to_string(status.version) + " ";
  }
  EXPECT_EQ(ready, "a2 a3 b1 b3 c2 ");
  EXPECT_EQ(failed, "c7 ");
  EXPECT_THAT(store.Missing(), ElementsAre("c/7 has failed"));  // the configuration asks for it
}

TEST_F(ModelStoreReadinessTest, EveryVersionThatWasAskedForCounts) {
  Write("a", "1", "broken");
  Write("a", "3");
  ModelStore both({.repository = repository_.path(), .versions = *VersionPolicies::Parse("all")},
                  engine_, metrics_, logger_);
  ASSERT_TRUE(both.LoadAll().ok());
  EXPECT_FALSE(both.Ready());  // requests for version 1 fail
  Write("a", "4");
  ASSERT_TRUE(both.Load("a", 4).ok());
  EXPECT_FALSE(both.Ready());  // version 4 does not replace version 1, which is wanted
  ASSERT_TRUE(both.Unload("a", 1).ok());
  EXPECT_TRUE(both.Ready());

  ModelStore missing({.repository = repository_.path(),
                      .versions = *VersionPolicies::Parse("misspelt=3,gone=latest")},
                     engine_, metrics_, logger_);
  ASSERT_TRUE(missing.LoadAll().ok());
  EXPECT_THAT(missing.Missing(), UnorderedElementsAre("gone was refused", "misspelt/3 has failed"));
  EXPECT_THAT(missing.Describe("misspelt", 3)->reason, HasSubstr("is not there"));
  EXPECT_THAT(missing.Describe("gone", 0)->reason, HasSubstr("is not there"));
}

TEST_F(ModelStoreReadinessTest, LoadsTheLatestVersionOfEachModel) {
  Write("a", "2");
  Write("a", "10");
  Write("b", "1");

  ASSERT_TRUE(store_.LoadAll().ok());

  const auto list = store_.List();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].name, "a");
  EXPECT_EQ(list[0].version, 10);
  EXPECT_EQ(list[0].state, ModelState::kReady);
  EXPECT_EQ(list[1].name, "b");
  EXPECT_TRUE(store_.Ready());
  EXPECT_EQ((*store_.Find("a", 0))->version, 10);
  EXPECT_TRUE(store_.Find("a", 10).ok());
}

TEST_F(ModelStoreReadinessTest, IsNotReadyBeforeItHasLooked) {
  ModelStore store({.repository = repository_.path(), .allow_empty = true}, engine_, metrics_,
                   logger_);
  EXPECT_FALSE(store.Ready());
  ASSERT_TRUE(store.LoadAll().ok());
  EXPECT_TRUE(store.Ready());
}

// An empty volume, or the wrong one, must not take traffic; nor a server whose last model is gone.
TEST_F(ModelStoreReadinessTest, WithoutAModelItIsNotReady) {
  ASSERT_TRUE(store_.LoadAll().ok());
  EXPECT_THAT(store_.Missing(), ElementsAre("no model is ready"));
  Write("a", "1");
  ASSERT_TRUE(store_.Load("a", 1).ok());
  EXPECT_TRUE(store_.Ready());
  ASSERT_TRUE(store_.Unload("a", 1).ok());
  EXPECT_THAT(store_.Missing(), ElementsAre("no model is ready"));
}

TEST_F(ModelStoreReadinessTest, FailuresMayBeAllowedAsLongAsOneModelIsThere) {
  Write("bad", "1", "torn");
  Write("unversioned", "latest");
  ModelStore store({.repository = repository_.path(), .allow_failed = true}, engine_, metrics_,
                   logger_);
  ASSERT_TRUE(store.LoadAll().ok());
  EXPECT_THAT(store.Missing(), ElementsAre("no model is ready"));
  Write("good", "1");
  bool seen_while_loading = true;
  store.set_warm_up([&](const auto&, const CancelToken&) {
    seen_while_loading = store.Ready();
    return absl::OkStatus();
  });
  ASSERT_TRUE(store.LoadAll().ok());
  EXPECT_FALSE(seen_while_loading);
  EXPECT_TRUE(store.Ready());
  EXPECT_EQ(store.Describe("bad", 0)->state, ModelState::kFailed);
}

TEST_F(ModelStoreReadinessTest, OneFailureDoesNotStopTheOthersButReadiness) {
  Write("bad", "1", "weights are torn");
  Write("good", "1");

  ASSERT_TRUE(store_.LoadAll().ok());

  EXPECT_TRUE(store_.Find("good", 0).ok());
  ExpectError(store_.Find("bad", 0), absl::StatusCode::kFailedPrecondition, "weights are torn");
  EXPECT_EQ(store_.Describe("bad", 0)->state, ModelState::kFailed);
  EXPECT_FALSE(store_.Ready());
  EXPECT_THAT(log_, HasSubstr("weights are torn"));

  Write("bad", "1");
  ASSERT_TRUE(store_.Load("bad", 0).ok());
  EXPECT_TRUE(store_.Ready());
}

TEST_F(ModelStoreReadinessTest, DroppingAFailedModelMakesReady) {
  Write("bad", "1", "torn");
  Write("good", "1");
  ASSERT_TRUE(store_.LoadAll().ok());

  ASSERT_TRUE(store_.Unload("bad", 0).ok());

  EXPECT_TRUE(store_.Ready());
  ExpectError(store_.Find("bad", 0), absl::StatusCode::kNotFound, "bad");
}

TEST_F(ModelStoreReadinessTest, IgnoresWhatCannotBeAModel) {
  std::ofstream(fs::path(repository_.path()) / "README.md") << "text";
  fs::create_directories(fs::path(repository_.path()) / ".git");
  Write("good", "1");
  ASSERT_TRUE(store_.LoadAll().ok());
  EXPECT_TRUE(store_.Ready());

  fs::create_directories(fs::path(repository_.path()) / "lost+found" / "1");
  ASSERT_TRUE(store_.LoadAll().ok());
  EXPECT_TRUE(store_.Ready());
  EXPECT_EQ(store_.List().size(), 1u);
  EXPECT_THAT(log_, HasSubstr("directory_ignored name=\"lost+found\""));
}

TEST_F(ModelStoreReadinessTest, ListsADirectoryWithoutAVersionAsFailed) {
  Write("b", "1");
  Write("a", "latest");
  Write("c", "latest");

  ASSERT_TRUE(store_.LoadAll().ok());

  const auto list = store_.List();
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0].name, "a");
  EXPECT_EQ(list[0].version, 0);
  EXPECT_EQ(list[0].state, ModelState::kFailed);
  EXPECT_THAT(list[0].reason, HasSubstr("positive integer"));
  EXPECT_EQ(list[1].name, "b");
  EXPECT_EQ(list[2].name, "c");
  EXPECT_FALSE(store_.Ready());
}

TEST_F(ModelStoreReadinessTest, ARefusedNameSaysWhyWhereverItIsAskedFor) {
  Write("a", "latest");
  ASSERT_TRUE(store_.LoadAll().ok());

  const auto described = store_.Describe("a", 0).value();
  EXPECT_EQ(described.version, 0);
  EXPECT_EQ(described.state, ModelState::kFailed);
  EXPECT_THAT(described.reason, HasSubstr("positive integer"));
  EXPECT_EQ(described.model, nullptr);
  for (const int64_t version : {0, 3}) {
    ExpectError(store_.Find("a", version), absl::StatusCode::kFailedPrecondition,
                "model 'a' failed to load: model 'a' has no version");
  }
  ExpectError(store_.Describe("a", 3), absl::StatusCode::kFailedPrecondition, "positive integer");
  ExpectError(store_.Unload("a", 3), absl::StatusCode::kFailedPrecondition, "positive integer");
  ExpectError(store_.Find("b", 0), absl::StatusCode::kNotFound, "b");
}

TEST_F(ModelStoreReadinessTest, UnloadForgetsARefusedName) {
  Write("good", "1");
  Write("a", "latest");
  Write("b", "latest");
  ASSERT_TRUE(store_.LoadAll().ok());
  Write("b", "1", "torn");
  EXPECT_FALSE(store_.Load("b", 1).ok());  // the failed load now has an entry beside the refusal

  ASSERT_TRUE(store_.Unload("a", 0).ok());
  EXPECT_FALSE(store_.Ready());
  ASSERT_TRUE(store_.Unload("b", 0).ok());

  EXPECT_TRUE(store_.Ready());
  EXPECT_EQ(store_.List().size(), 1u);
  for (const char* name : {"a", "b"}) {
    ExpectError(store_.Find(name, 0), absl::StatusCode::kNotFound, name);
    ExpectError(store_.Unload(name, 0), absl::StatusCode::kNotFound, name);
  }
}

TEST_F(ModelStoreReadinessTest, AFileNamedLikeAVersionHidesNoModel) {
  Write("a", "1");
  std::ofstream(fs::path(repository_.path()) / "a" / "20241231") << "notes";

  ASSERT_TRUE(store_.LoadAll().ok());

  EXPECT_TRUE(store_.Ready());
  EXPECT_EQ((*store_.Find("a", 0))->version, 1);
}

TEST_F(ModelStoreReadinessTest, TheListenerOfARepairSeesReadiness) {
  Write("a", "latest");
  ASSERT_TRUE(store_.LoadAll().ok());
  bool seen = false;
  store_.set_listener([&] { seen = store_.Ready(); });
  Write("a", "1");

  ASSERT_TRUE(store_.Load("a", 0).ok());

  EXPECT_TRUE(seen);
}

TEST_F(ModelStoreReadinessTest, AHigherVersionMakesUpForAFailedOne) {
  Write("a", "2", "torn");
  ASSERT_TRUE(store_.LoadAll().ok());
  Write("a", "1");
  ASSERT_TRUE(store_.Load("a", 1).ok());
  EXPECT_FALSE(store_.Ready());
  Write("a", "3");

  ASSERT_TRUE(store_.Load("a", 3).ok());

  EXPECT_TRUE(store_.Ready());
}

TEST(ModelStoreRepositoryTest, AMissingRepositoryIsAnError) {
  FakeEngine engine([](const std::string&) { return absl::InternalError("unused"); });
  Metrics metrics({}, "v", "d", "b");
  Logger logger(LogFormat::kText, LogLevel::kError, [](std::string_view) {});
  ModelStore store({.repository = std::string("/nowhere/at/all")}, engine, metrics, logger);

  ExpectError(store.LoadAll(), absl::StatusCode::kNotFound, "/nowhere/at/all");
  EXPECT_FALSE(store.Ready());
}

}  // namespace
}  // namespace deeppcr::testing
