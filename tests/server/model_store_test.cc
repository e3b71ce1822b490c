// SPDX-License-Identifier: Apache-2.0
#include "server/model_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/testing/expect_error.h"
#include "tests/testing/fake_engine.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::ExpectError;
using testing::FakeEngine;
using testing::FakeModel;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryDirectory;
using ::testing::UnorderedElementsAre;

class ModelStoreTest : public ::testing::Test {
 protected:
  ModelStoreTest()
      : engine_([this](const std::string& directory) { return Load(directory); }),
        metrics_({"sequential"}, "v", "d", "b"),
        logger_(LogFormat::kText, LogLevel::kDebug,
                [this](std::string_view line) { log_ += line; }),
        store_(
            {.repository = repository_.path(), .unload_patience = std::chrono::milliseconds(200)},
            engine_, metrics_, logger_) {}

  // A model directory as the fake engine reads it: its config is the error of loading it, or empty.
  void Write(const std::string& name, const std::string& version, const std::string& error = "") {
    const fs::path directory = fs::path(repository_.path()) / name / version;
    fs::create_directories(directory);
    std::ofstream(directory / "config.json") << error;
  }

  absl::StatusOr<std::shared_ptr<const LoadedModel>> Load(const std::string& directory) {
    std::ifstream file(fs::path(directory) / "config.json");
    std::string error;
    if (fault_ != absl::StatusCode::kOk) {
      return absl::Status(fault_, "cannot open " + directory + "/config.json");
    }
    if (!file.is_open()) return absl::NotFoundError("config.json is not there");
    if (std::getline(file, error)) return absl::InvalidArgumentError(error);
    return std::make_shared<FakeModel>();
  }

  TemporaryDirectory repository_;
  absl::StatusCode fault_ = absl::StatusCode::kOk;  // of every load while set
  std::string log_;
  FakeEngine engine_;
  Metrics metrics_;
  Logger logger_;
  ModelStore store_;
};

TEST_F(ModelStoreTest, AModelIsTriedBeforeItCanBeFound) {
  Write("a", "1");
  std::string found_meanwhile;
  store_.set_warm_up([&](const auto&, const CancelToken&) {
    found_meanwhile = std::string(store_.Find("a", 0).status().message());
    return absl::OkStatus();
  });
  ASSERT_TRUE(store_.LoadAll().ok());
  EXPECT_THAT(found_meanwhile, HasSubstr("is being loaded"));
  const auto before = store_.Find("a", 1);
  ASSERT_TRUE(before.ok());

  store_.set_warm_up(
      [](const auto&, const CancelToken&) { return absl::InternalError("cannot answer"); });
  EXPECT_FALSE(store_.Load("a", 1).ok());

  EXPECT_EQ(*store_.Find("a", 1), *before);  // the old one serves on
  EXPECT_THAT(store_.Describe("a", 1)->reason, HasSubstr("cannot answer"));

  store_.set_warm_up(
      [](const auto&, const CancelToken&) { return absl::UnavailableError("the device is lost"); });
  ExpectError(store_.Load("a", 1).status(), absl::StatusCode::kFailedPrecondition,
              "the device is lost");
}

TEST_F(ModelStoreTest, WhatALoadDoesWithoutIsAWarning) {
  Write("a", "1");
  engine_.problem = "no plan could be kept";
  store_.set_warm_up(
      [](const auto&, const CancelToken&) { return absl::DeadlineExceededError("all too slow"); });
  ASSERT_TRUE(store_.LoadAll().ok());
  EXPECT_TRUE(store_.Ready());
  for (const char* reason : {"no plan could be kept", "all too slow"})
    EXPECT_THAT(log_, HasSubstr("model_load_problem model=\"a\" version=1 reason=\"" +
                                std::string(reason)));
  EXPECT_THAT(log_, HasSubstr("model_loading model=\"a\" version=1 step=\"pretending\""));
}

TEST_F(ModelStoreTest, LoadsTheVersionsThatThePolicyChooses) {
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
  EXPECT_THAT(store.Missing(), ElementsAre("c/7 has failed"));  // which was asked for
}

TEST_F(ModelStoreTest, EveryVersionThatWasAskedForCounts) {
  Write("a", "1", "broken");
  Write("a", "3");
  ModelStore both({.repository = repository_.path(), .versions = *VersionPolicies::Parse("all")},
                  engine_, metrics_, logger_);
  ASSERT_TRUE(both.LoadAll().ok());
  EXPECT_FALSE(both.Ready());  // clients of version 1 fail
  Write("a", "4");
  ASSERT_TRUE(both.Load("a", 4).ok());
  EXPECT_FALSE(both.Ready());  // as before: it does not stand in for one that was asked for
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

TEST_F(ModelStoreTest, LoadsTheLatestVersionOfEachModel) {
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

TEST_F(ModelStoreTest, IsNotReadyBeforeItHasLooked) {
  EXPECT_FALSE(store_.Ready());
  ASSERT_TRUE(store_.LoadAll().ok());
  EXPECT_TRUE(store_.Ready());
}

TEST_F(ModelStoreTest, OneFailureDoesNotStopTheOthersButReadiness) {
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

TEST_F(ModelStoreTest, DroppingAFailedModelMakesReady) {
  Write("bad", "1", "torn");
  ASSERT_TRUE(store_.LoadAll().ok());

  ASSERT_TRUE(store_.Unload("bad", 0).ok());

  EXPECT_TRUE(store_.Ready());
  ExpectError(store_.Find("bad", 0), absl::StatusCode::kNotFound, "bad");
}

TEST_F(ModelStoreTest, IgnoresWhatCannotBeAModel) {
  std::ofstream(fs::path(repository_.path()) / "README.md") << "text";
  fs::create_directories(fs::path(repository_.path()) / ".git");
  ASSERT_TRUE(store_.LoadAll().ok());
  EXPECT_TRUE(store_.Ready());

  fs::create_directories(fs::path(repository_.path()) / "lost+found" / "1");
  ASSERT_TRUE(store_.LoadAll().ok());
  EXPECT_TRUE(store_.Ready());
  EXPECT_TRUE(store_.List().empty());
  EXPECT_THAT(log_, HasSubstr("directory_ignored name=\"lost+found\""));
}

TEST_F(ModelStoreTest, ListsADirectoryWithoutAVersionAsFailed) {
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

TEST_F(ModelStoreTest, ARefusedNameSaysWhyWhereverItIsAskedFor) {
  Write("a", "latest");
  ASSERT_TRUE(store_.LoadAll().ok());

  const auto described = store_.Describe("a", 0);
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_EQ(described->version, 0);
  EXPECT_EQ(described->state, ModelState::kFailed);
  EXPECT_THAT(described->reason, HasSubstr("positive integer"));
  EXPECT_EQ(described->model, nullptr);
  for (const int64_t version : {0, 3}) {
    ExpectError(store_.Find("a", version), absl::StatusCode::kFailedPrecondition,
                "model 'a' failed to load: model 'a' has no version");
  }
  ExpectError(store_.Describe("a", 3), absl::StatusCode::kFailedPrecondition, "positive integer");
  ExpectError(store_.Unload("a", 3), absl::StatusCode::kFailedPrecondition, "positive integer");
  ExpectError(store_.Find("b", 0), absl::StatusCode::kNotFound, "b");
}

TEST_F(ModelStoreTest, UnloadForgetsARefusedName) {
  Write("a", "latest");
  Write("b", "latest");
  ASSERT_TRUE(store_.LoadAll().ok());
  Write("b", "1", "torn");
  EXPECT_FALSE(store_.Load("b", 1).ok());  // has an entry beside the refusal now

  ASSERT_TRUE(store_.Unload("a", 0).ok());
  EXPECT_FALSE(store_.Ready());
  ASSERT_TRUE(store_.Unload("b", 0).ok());

  EXPECT_TRUE(store_.Ready());
  EXPECT_TRUE(store_.List().empty());
  for (const char* name : {"a", "b"}) {
    ExpectError(store_.Find(name, 0), absl::StatusCode::kNotFound, name);
    ExpectError(store_.Unload(name, 0), absl::StatusCode::kNotFound, name);
  }
}

TEST_F(ModelStoreTest, AFileNamedLikeAVersionHidesNoModel) {
  Write("a", "1");
  std::ofstream(fs::path(repository_.path()) / "a" / "20241231") << "notes";

  ASSERT_TRUE(store_.LoadAll().ok());

  EXPECT_TRUE(store_.Ready());
  EXPECT_EQ((*store_.Find("a", 0))->version, 1);
}

TEST_F(ModelStoreTest, FaultsOfTheMachineAreNotTheCallersToRetryAndNameNoPath) {
  Write("a", "1");
  for (const auto& [code, told] :
       {std::pair{absl::StatusCode::kUnavailable, absl::StatusCode::kFailedPrecondition},
        {absl::StatusCode::kResourceExhausted, absl::StatusCode::kFailedPrecondition},
        {absl::StatusCode::kNotFound, absl::StatusCode::kInvalidArgument}}) {
    fault_ = code;
    const absl::Status status = store_.Load("a", 1).status();
    ExpectError(status, told, "cannot open a/1/config.json");
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(repository_.path())));
    EXPECT_THAT(store_.Describe("a", 1)->reason, Not(HasSubstr(repository_.path())));
  }
}

TEST_F(ModelStoreTest, TheListenerOfARepairSeesReadiness) {
  Write("a", "latest");
  ASSERT_TRUE(store_.LoadAll().ok());
  bool seen = false;
  store_.set_listener([&] { seen = store_.Ready(); });
  Write("a", "1");

  ASSERT_TRUE(store_.Load("a", 0).ok());

  EXPECT_TRUE(seen);
}

TEST_F(ModelStoreTest, AHigherVersionMakesUpForAFailedOne) {
  Write("a", "2", "torn");
  ASSERT_TRUE(store_.LoadAll().ok());
  Write("a", "1");
  ASSERT_TRUE(store_.Load("a", 1).ok());
  EXPECT_FALSE(store_.Ready());
  Write("a", "3");

  ASSERT_TRUE(store_.Load("a", 3).ok());

  EXPECT_TRUE(store_.Ready());
}

TEST_F(ModelStoreTest, AVersionWithoutItsFilesIsAnInvalidOne) {
  fs::create_directories(fs::path(repository_.path()) / "a" / "1");
  ExpectError(store_.Load("a", 1), absl::StatusCode::kInvalidArgument, "config.json");
}

TEST_F(ModelStoreTest, RefusesSymbolicLinks) {
  Write("real", "1");
  TemporaryDirectory outside;
  fs::create_directories(fs::path(outside.path()) / "1");
  std::ofstream(fs::path(outside.path()) / "1" / "config.json") << "";
  fs::create_directory_symlink(outside.path(), fs::path(repository_.path()) / "link");
  fs::create_directories(fs::path(repository_.path()) / "halflink");
  fs::create_directory_symlink(fs::path(outside.path()) / "1",
                               fs::path(repository_.path()) / "halflink" / "1");
  Write("filelink", "1");
  fs::create_symlink("/etc/passwd",
                     fs::path(repository_.path()) / "filelink" / "1" / "model.safetensors");

  ASSERT_TRUE(store_.LoadAll().ok());

  EXPECT_TRUE(store_.Find("real", 0).ok());
  EXPECT_FALSE(store_.Ready());
  for (const std::string name : {"link", "halflink", "filelink"}) {
    ExpectError(store_.Load(name, 1), absl::StatusCode::kFailedPrecondition, "symbolic link");
    EXPECT_FALSE(store_.Find(name, 0).ok()) << name;
  }
}

TEST_F(ModelStoreTest, NamesNeverLeaveTheRepository) {
  TemporaryDirectory outside;
  fs::create_directories(fs::path(outside.path()) / "1");
  for (const std::string& name :
       {std::string(".."), std::string("."), std::string(), std::string("../x"),
        std::string("/etc"), std::string("a/../b"), std::string("a\0b", 3), std::string("%2e%2e"),
        std::string(129, 'a')}) {
    ExpectError(store_.Load(name, 1), absl::StatusCode::kInvalidArgument, "model: expected");
    ExpectError(store_.Unload(name, 1), absl::StatusCode::kInvalidArgument, "model: expected");
  }
  EXPECT_TRUE(store_.List().empty());
}

TEST_F(ModelStoreTest, UnknownNamesAndVersionsLeaveNoTrace) {
  Write("a", "1");
  ExpectError(store_.Load("nothing", 0), absl::StatusCode::kNotFound, "nothing");
  ExpectError(store_.Load("a", 7), absl::StatusCode::kNotFound, "version 7");
  ExpectError(store_.Load("a", -1), absl::StatusCode::kInvalidArgument, "version");
  ExpectError(store_.Find("a", 7), absl::StatusCode::kNotFound, "a");
  ExpectError(store_.Unload("a", 0), absl::StatusCode::kNotFound, "a");
  EXPECT_TRUE(store_.List().empty());
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("nothing")));
}

TEST_F(ModelStoreTest, OnlyPositiveIntegersAreVersions) {
  Write("a", "latest");
  ASSERT_TRUE(store_.LoadAll().ok());
  EXPECT_FALSE(store_.Ready());
  ExpectError(store_.Load("a", 0), absl::StatusCode::kNotFound, "positive integer");
}

TEST_F(ModelStoreTest, AFailedReloadKeepsTheOldOne) {
  Write("a", "1");
  ASSERT_TRUE(store_.LoadAll().ok());
  const ServedModel* before = store_.Find("a", 1)->get();
  Write("a", "1", "torn");

  ExpectError(store_.Load("a", 1), absl::StatusCode::kInvalidArgument, "torn");

  EXPECT_EQ(store_.Find("a", 1)->get(), before);
  const auto status = store_.Describe("a", 1);
  EXPECT_EQ(status->state, ModelState::kReady);
  EXPECT_THAT(status->reason, HasSubstr("torn"));
  EXPECT_TRUE(store_.Ready());

  Write("a", "1");
  ASSERT_TRUE(store_.Load("a", 1).ok());
  EXPECT_NE(store_.Find("a", 1)->get(), before);
  EXPECT_EQ(store_.Describe("a", 1)->reason, "");
}

TEST_F(ModelStoreTest, ASwapLeavesRequestsInProgressOnTheOldOne) {
  Write("a", "1");
  ASSERT_TRUE(store_.LoadAll().ok());
  std::shared_ptr<ServedModel> in_progress = *store_.Find("a", 0);
  const std::weak_ptr<ServedModel> old = in_progress;

  ASSERT_TRUE(store_.Load("a", 0).ok());

  EXPECT_NE(store_.Find("a", 0)->get(), in_progress.get());
  EXPECT_EQ(in_progress->model->info().num_layers, 8);
  in_progress.reset();
  EXPECT_TRUE(old.expired());
}

TEST_F(ModelStoreTest, UnloadWaitsForRequestsInProgress) {
  Write("a", "1");
  ASSERT_TRUE(store_.LoadAll().ok());
  std::shared_ptr<ServedModel> in_progress = *store_.Find("a", 0);
  std::string seen;
  std::thread releaser([&] {
    while (store_.Find("a", 0).ok()) std::this_thread::yield();
    seen = std::string(store_.Find("a", 0).status().message());
    in_progress.reset();
  });

  ASSERT_TRUE(store_.Unload("a", 1).ok());

  releaser.join();
  EXPECT_THAT(seen, HasSubstr("is being unloaded"));
  ExpectError(store_.Find("a", 0), absl::StatusCode::kNotFound, "a");
}

TEST_F(ModelStoreTest, ANewVersionBecomesTheLatest) {
  Write("a", "1");
  ASSERT_TRUE(store_.LoadAll().ok());
  Write("a", "2", "torn");
  EXPECT_FALSE(store_.Load("a", 2).ok());
  // The broken one does not hide the ready one.
  EXPECT_EQ((*store_.Find("a", 0))->version, 1);
  EXPECT_TRUE(store_.Ready());

  Write("a", "2");
  ASSERT_TRUE(store_.Load("a", 0).ok());

  EXPECT_EQ((*store_.Find("a", 0))->version, 2);
  EXPECT_TRUE(store_.Find("a", 1).ok());
  ASSERT_TRUE(store_.Unload("a", 2).ok());
  EXPECT_EQ((*store_.Find("a", 0))->version, 1);
}

TEST_F(ModelStoreTest, RecordsLoadsInMetrics) {
  Write("a", "1");
  ASSERT_TRUE(store_.LoadAll().ok());

  const std::string text = metrics_.Text();

  EXPECT_THAT(text, HasSubstr("deeppcr_model_load_seconds_count{model=\"a\",version=\"1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("deeppcr_model_plan_seconds_sum{model=\"a\",version=\"1\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("deeppcr_model_memory_bytes{model=\"a\",version=\"1\"} 1000\n"));
  EXPECT_THAT(text, HasSubstr("deeppcr_model_load_failures_total 0\n"));
  Write("a", "1", "broken");
  EXPECT_FALSE(store_.Load("a", 1).ok());
  EXPECT_THAT(metrics_.Text(), HasSubstr("deeppcr_model_load_failures_total 1\n"));
  ASSERT_TRUE(store_.Unload("a", 1).ok());
  EXPECT_THAT(metrics_.Text(),
              HasSubstr("deeppcr_model_memory_bytes{model=\"a\",version=\"1\"} 0\n"));
}

TEST(ModelStoreRepositoryTest, AMissingRepositoryIsAnError) {
  FakeEngine engine([](const std::string&) { return absl::InternalError("unused"); });
  Metrics metrics({}, "v", "d", "b");
  Logger logger(LogFormat::kText, LogLevel::kError, [](std::string_view) {});
  ModelStore store({"/nowhere/at/all", {}}, engine, metrics, logger);

  ExpectError(store.LoadAll(), absl::StatusCode::kNotFound, "/nowhere/at/all");
  EXPECT_FALSE(store.Ready());
}

}  // namespace
}  // namespace deeppcr
