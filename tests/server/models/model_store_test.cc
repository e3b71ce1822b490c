// SPDX-License-Identifier: Apache-2.0
#include "server/models/model_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/server/models/model_store_rig.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

using ModelStoreTest = ModelStoreRig;

TEST_F(ModelStoreTest, AModelIsTriedBeforeItCanBeFound) {
  Write("a", "1");
  std::string found_meanwhile;
  store_.set_warm_up([&](const auto&, const CancelToken&) {
    found_meanwhile = std::string(store_.Find("a", 0).status().message());
    return absl::OkStatus();
  });
  ASSERT_TRUE(store_.LoadAll().ok());
  EXPECT_THAT(found_meanwhile, HasSubstr("is being loaded"));
  const auto before = store_.Find("a", 1).value();

  store_.set_warm_up(
      [](const auto&, const CancelToken&) { return absl::InternalError("cannot answer"); });
  EXPECT_FALSE(store_.Load("a", 1).ok());

  EXPECT_EQ(*store_.Find("a", 1), before);  // the old model still serves
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

// Fake models hold 1000 bytes each.
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

TEST_F(ModelStoreTest, ALoadIsOfferedThePlansOfItsModelAlone) {
  ModelStore store({.repository = repository_.path(), .versions = *VersionPolicies::Parse("all")},
                   engine_, metrics_, logger_);
  Write("a", "1");
  Write("b", "1");
  ASSERT_TRUE(store.LoadAll().ok());
  EXPECT_TRUE(engine_.offered.empty());
  Write("a", "2");
  ASSERT_TRUE(store.Load("a", 2).ok());
  ASSERT_EQ(engine_.offered.size(), 1u);
  EXPECT_EQ(engine_.offered[0], (*store.Find("a", 1))->model);
  ASSERT_TRUE(store.Load("a", 1).ok());
  EXPECT_EQ(engine_.offered.size(), 2u);
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
  // The broken version does not hide the ready one.
  EXPECT_EQ((*store_.Find("a", 0))->version, 1);
  EXPECT_TRUE(store_.Ready());

  Write("a", "2");
  ASSERT_TRUE(store_.Load("a", 0).ok());

  EXPECT_EQ((*store_.Find("a", 0))->version, 2);
}

TEST_F(ModelStoreTest, ANewVersionRetiresThoseThatThePolicyDoesNotKeep) {
  const auto ready = [](const ModelStore& store) {
    std::string versions;
    for (const ModelStatus& status : store.List())
      versions += (status.model != nullptr ? "" : "!") + std::to_string(status.version) + " ";
    return versions;
  };
  for (const auto& [policy, expected] : {std::pair{"latest", "4 "},
                                         {"latest:2", "2 !3 4 "},
                                         {"all", "1 2 !3 4 "},
                                         {"a=1+2+3", "1 2 !3 4 "}}) {
    fs::remove_all(repository_.File("a"));
    ModelStore store(
        {.repository = repository_.path(), .versions = *VersionPolicies::Parse(policy)}, engine_,
        metrics_, logger_);
    for (const char* version : {"1", "2", "4"}) Write("a", version);
    Write("a", "3", "torn");
    for (const int version : {1, 2}) ASSERT_TRUE(store.Load("a", version).ok());
    const std::shared_ptr<ServedModel> in_use = store.Find("a", 2).value();
    EXPECT_FALSE(store.Load("a", 3).ok());
    EXPECT_EQ(store.Find("a", 0).value(), in_use) << "a version that fails retires nobody";
    ASSERT_TRUE(store.Load("a", 4).ok());
    EXPECT_EQ(ready(store), expected) << policy;
    EXPECT_EQ(in_use->model->info().num_layers, 8) << "requests in progress keep it";
  }
}

TEST_F(ModelStoreTest, AnOlderVersionThatIsLoadedAgainStandsBesideTheNewer) {
  Write("a", "1");
  Write("a", "2");
  ASSERT_TRUE(store_.Load("a", 2).ok());
  ASSERT_TRUE(store_.Load("a", 1).ok());
  EXPECT_EQ((*store_.Find("a", 0))->version, 2);
  EXPECT_EQ((*store_.Find("a", 1))->version, 1);
  ASSERT_TRUE(store_.Load("a", 2).ok());  // again
  ExpectError(store_.Find("a", 1), absl::StatusCode::kNotFound, "version 1 is not loaded");
}

// There is a plan per number of steps, and each may come from another source.
TEST_F(ModelStoreTest, TellsOfEveryPlanWhereItIsFrom) {
  Write("a", "1");
  change_ = [](FakeModel* model) {
    model->info_.num_inference_steps = {100, 50, 25};
    model->plan_.source = PlanSource::kFile;
    for (const int64_t steps : {50, 25})
      model->other_plans_[steps] = {.source = PlanSource::kMeasured, .measured_seconds = 0.5};
  };
  ASSERT_TRUE(store_.LoadAll().ok());
  EXPECT_THAT(log_, HasSubstr("plan_source=\"file, measured\""));
  const std::string series = "deeppcr_model_plan_seconds_sum{model=\"a\",version=\"1\"} ";
  EXPECT_THAT(metrics_.Text(), HasSubstr(series + "1\n"));
  change_ = [](FakeModel* model) { model->plan_.source = PlanSource::kServing; };
  ASSERT_TRUE(store_.Load("a", 1).ok());
  EXPECT_THAT(metrics_.Text(), HasSubstr(series + "1\n")) << "nothing was measured";
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
  auto in_use = store_.Find("a", 1).value();
  ASSERT_TRUE(store_.Unload("a", 1).ok());
  EXPECT_THAT(metrics_.Text(),
              HasSubstr("deeppcr_model_memory_bytes{model=\"a\",version=\"1\"} 0\n"));
  in_use.reset();
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("model=\"a\"")));
}

// A release a night must not fill Prometheus.
TEST_F(ModelStoreTest, SeriesOfVersionsThatAreGoneAreGone) {
  size_t after_the_first = 0;
  for (int version = 1; version <= 100; ++version) {
    Write("a", std::to_string(version));
    ASSERT_TRUE(store_.Load("a", version).ok());
    store_.Find("a", version).value()->metrics->ForSolver("sequential", Method::kForward);
    metrics_.CountRequest("a", Method::kForward, 0);
    if (version == 1) after_the_first = metrics_.Text().size();
  }
  EXPECT_LT(static_cast<double>(metrics_.Text().size()), 1.05 * after_the_first);
  EXPECT_THAT(metrics_.Text(), HasSubstr(R"({code="OK",method="Forward",model="a"} 100)"));
}

// Requests for it are counted under its name, so that somebody notices.
TEST_F(ModelStoreTest, AVersionThatFailedKeepsItsName) {
  Write("a", "1", "broken");
  ASSERT_TRUE(store_.LoadAll().ok());
  metrics_.CountRequest("a", Method::kForward, 9);
  EXPECT_THAT(metrics_.Text(),
              HasSubstr(R"({code="FAILED_PRECONDITION",method="Forward",model="a"} 1)"));
}

}  // namespace
}  // namespace deeppcr::testing
