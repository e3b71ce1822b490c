// SPDX-License-Identifier: Apache-2.0
#include "server/models/repository_poller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kernels/base/memory_budget.h"
#include "tests/server/models/model_store_rig.h"

namespace deeppcr::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class RepositoryPollerTest : public ModelStoreRig {
 protected:
  // The versions that serve, and with ! those that do not.
  std::string Versions() const {
    std::string versions;
    for (const ModelStatus& status : store_.List())
      versions +=
          (status.model != nullptr ? "" : "!") + status.name + std::to_string(status.version) + " ";
    return versions;
  }
  const LoadedModel* Model(const std::string& name) const {
    const auto model = store_.Find(name, 0);
    return model.ok() ? (*model)->model.get() : nullptr;
  }
  size_t NumFailures() const {
    size_t failures = 0;
    for (size_t at = 0; (at = log_.find("model_load_failed", at)) != std::string::npos; ++at)
      ++failures;
    return failures;
  }
  // Serves "a"; a load of "c" finds 10 bytes available, and 20 missing.
  void LeaveNoRoomForC() {
    Write("a", "1");
    ASSERT_TRUE(store_.LoadAll().ok());
    MemoryBudget budget(100);
    ASSERT_TRUE(budget.Take(70).ok());
    refusal_ = budget.Take(50);
    engine_.available = 10;
    Write("c", "1");
  }

  RepositoryPoller poller_{repository_.path(), VersionPolicies(), store_};
};

TEST_F(RepositoryPollerTest, TakesANewVersionOnceItHasSettledAndRetiresTheOld) {
  Write("a", "1");
  ASSERT_TRUE(store_.LoadAll().ok());
  const LoadedModel* const first = Model("a");
  poller_.Poll();
  poller_.Poll();
  EXPECT_EQ(Model("a"), first) << "what was loaded at the start is not loaded again";

  Write("a", "2");
  Write("b", "7");
  poller_.Poll();
  EXPECT_EQ(Versions(), "a1 ") << "it may still be being written";
  std::ofstream(repository_.File("a/2/model.safetensors")) << "more";
  poller_.Poll();
  EXPECT_EQ(Versions(), "a1 b7 ");
  poller_.Poll();
  EXPECT_EQ(Versions(), "a2 b7 ");
}

TEST_F(RepositoryPollerTest, WhatChangesBetweenTheStartAndTheFirstLookIsLoadedAgain) {
  Write("a", "1");
  Write("b", "1");
  poller_.Begin();
  ASSERT_TRUE(store_.LoadAll().ok());
  const LoadedModel* const first = Model("a");
  const LoadedModel* const other = Model("b");
  std::ofstream(repository_.File("a/1/model.safetensors")) << "other weights";
  poller_.Poll();
  poller_.Poll();
  EXPECT_NE(Model("a"), first);
  EXPECT_EQ(Model("b"), other);
}

TEST_F(RepositoryPollerTest, AFolderWithoutItsConfigIsNotAVersionYet) {
  Write("a", "1");
  ASSERT_TRUE(store_.LoadAll().ok());
  fs::create_directories(repository_.File("a/2"));
  std::ofstream(repository_.File("a/2/model.safetensors")) << "weights";
  for (int look = 0; look < 4; ++look) poller_.Poll();
  EXPECT_EQ(Versions(), "a1 ");
  fs::create_directories(repository_.File("a/.3"));
  fs::create_directories(repository_.File("a/3.partial"));
  for (int look = 0; look < 4; ++look) poller_.Poll();
  EXPECT_EQ(Versions(), "a1 ");
}

TEST_F(RepositoryPollerTest, OneThatFailsIsTriedAgainWhenItsFilesChange) {
  Write("a", "1");
  ASSERT_TRUE(store_.LoadAll().ok());
  Write("a", "2", "torn");
  for (int look = 0; look < 5; ++look) poller_.Poll();
  EXPECT_EQ(Versions(), "a1 !a2 ");
  EXPECT_EQ(NumFailures(), 1u) << "it was tried once";
  Write("a", "2");
  poller_.Poll();
  poller_.Poll();
  EXPECT_EQ(Versions(), "a2 ");
}

TEST_F(RepositoryPollerTest, OneThatHadNoRoomIsTriedAgainOnceThereIsAsMuchAsWasMissing) {
  LeaveNoRoomForC();
  for (int look = 0; look < 5; ++look) poller_.Poll();
  EXPECT_EQ(Versions(), "a1 !c1 ");
  refusal_ = absl::OkStatus();
  engine_.available = 29;
  for (int look = 0; look < 3; ++look) poller_.Poll();
  EXPECT_EQ(Versions(), "a1 !c1 ") << "20 were missing, and 19 have come";
  engine_.available = 30;
  poller_.Poll();
  EXPECT_EQ(Versions(), "a1 c1 ");
}

TEST_F(RepositoryPollerTest, ALittleMoreRoomIsTriedLessAndLessOften) {
  LeaveNoRoomForC();
  const auto tries = [&](int looks) {
    log_.clear();
    for (int look = 0; look < looks; ++look) poller_.Poll();
    return NumFailures();
  };
  EXPECT_EQ(tries(100), 1u) << "nothing has changed";
  engine_.available = 11;
  EXPECT_EQ(tries(8), 1u);
  engine_.available = 12;
  EXPECT_EQ(tries(15), 0u);
  EXPECT_EQ(tries(1), 1u);
  engine_.available = 13;
  refusal_ = absl::OkStatus();
  EXPECT_EQ(tries(32), 0u);
  EXPECT_EQ(Versions(), "a1 c1 ");
}

TEST_F(RepositoryPollerTest, OneThatAnOperatorLoadedIsNotLoadedAgain) {
  LeaveNoRoomForC();
  for (int look = 0; look < 3; ++look) poller_.Poll();
  refusal_ = absl::OkStatus();
  ASSERT_TRUE(store_.Load("c", 1).ok());
  const LoadedModel* const loaded = Model("c");
  engine_.available = 1 << 20;
  for (int look = 0; look < 3; ++look) poller_.Poll();
  EXPECT_EQ(Model("c"), loaded);
}

TEST_F(RepositoryPollerTest, OneThatIsBrokenIsNotTriedAgainForWantOfRoom) {
  Write("a", "1", "torn");
  Write("b", "1");
  ASSERT_TRUE(store_.LoadAll().ok());
  for (int look = 0; look < 3; ++look) poller_.Poll();
  log_.clear();
  ASSERT_TRUE(store_.Unload("b", 1).ok());
  engine_.available = 1 << 30;
  for (int look = 0; look < 3; ++look) poller_.Poll();
  EXPECT_THAT(log_, Not(HasSubstr("model_load_failed")));
}

TEST_F(RepositoryPollerTest, AFolderThatIsRefusedIsInTheLog) {
  Write("a", "1");
  ASSERT_TRUE(store_.LoadAll().ok());
  Write("a", "2");
  fs::create_symlink("/dev/null", repository_.File("a/2/link"));
  for (int look = 0; look < 5; ++look) poller_.Poll();
  EXPECT_EQ(Versions(), "a1 ");
  EXPECT_THAT(log_, HasSubstr("model_load_failed"));
  EXPECT_THAT(log_, HasSubstr("link"));
}

TEST_F(RepositoryPollerTest, AVersionWhoseFilesAreReplacedIsLoadedAgain) {
  Write("a", "1");
  ASSERT_TRUE(store_.LoadAll().ok());
  poller_.Poll();
  const LoadedModel* const first = Model("a");
  fs::remove(repository_.File("a/1/config.json"));
  Write("a", "1");
  std::ofstream(repository_.File("a/1/more")) << "x";
  poller_.Poll();
  poller_.Poll();
  EXPECT_NE(Model("a"), first);
  EXPECT_EQ(Versions(), "a1 ");
}

TEST_F(RepositoryPollerTest, WhatIsGoneIsUnloadedButNotForAMomentOrWithTheWholeRepository) {
  Write("a", "1");
  Write("b", "1");
  ASSERT_TRUE(store_.LoadAll().ok());
  fs::rename(repository_.File("a"), repository_.File(".away"));
  poller_.Poll();
  fs::rename(repository_.File(".away"), repository_.File("a"));
  poller_.Poll();
  EXPECT_EQ(Versions(), "a1 b1 ");
  fs::remove_all(repository_.File("a"));
  poller_.Poll();
  poller_.Poll();
  EXPECT_EQ(Versions(), "b1 ");
  fs::remove_all(repository_.File("b"));
  for (int look = 0; look < 5; ++look) poller_.Poll();
  EXPECT_EQ(Versions(), "b1 ") << "a repository that is not mounted is empty too";
}

// Half of a copy at the start, and a folder that is away while it is replaced.
TEST_F(RepositoryPollerTest, LoadsWhatWasTornAtTheStartAndWhatWasAwayForALook) {
  Write("a", "1", "torn");
  Write("b", "1");
  ASSERT_TRUE(store_.LoadAll().ok());
  Write("a", "1");
  const LoadedModel* const old = Model("b");
  poller_.Poll();
  poller_.Poll();
  EXPECT_EQ(Versions(), "a1 b1 ");
  EXPECT_EQ(Model("b"), old);
  fs::remove_all(repository_.File("b/1"));
  poller_.Poll();
  Write("b", "1");
  std::ofstream(repository_.File("b/1/model.safetensors")) << "other weights";
  poller_.Poll();
  poller_.Poll();
  EXPECT_NE(Model("b"), old);
  EXPECT_EQ(Versions(), "a1 b1 ");
}

TEST_F(RepositoryPollerTest, AnUnloadWaitsForNothingOfItsOwn) {
  Write("a", "1");
  Write("b", "1");
  ASSERT_TRUE(store_.LoadAll().ok());
  fs::remove_all(repository_.File("a"));
  const std::weak_ptr<ServedModel> served = store_.Find("a", 1).value();
  poller_.Poll();
  const auto start = std::chrono::steady_clock::now();
  poller_.Poll();
  EXPECT_TRUE(served.expired());
  // The store of this rig has a patience of 200 ms with models in use.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(150));
}

TEST_F(RepositoryPollerTest, AMountPointThatIsNotQuiteEmptyUnloadsNothing) {
  Write("a", "1");
  fs::create_directories(repository_.File("ghost"));
  ASSERT_TRUE(store_.LoadAll().ok());
  fs::remove_all(repository_.File("ghost"));
  for (int look = 0; look < 3; ++look) poller_.Poll();
  EXPECT_EQ(Versions(), "a1 ") << "what was refused is forgotten with its folder";
  fs::remove_all(repository_.File("a"));
  fs::create_directories(repository_.File("lost+found"));
  std::ofstream(repository_.File("README")) << "not mounted";
  for (int look = 0; look < 5; ++look) poller_.Poll();
  EXPECT_EQ(Versions(), "a1 ");
}

TEST_F(RepositoryPollerTest, WhatAnOperatorUnloadsStaysUnloaded) {
  Write("a", "1");
  Write("b", "1");
  ASSERT_TRUE(store_.LoadAll().ok());
  poller_.Poll();
  ASSERT_TRUE(store_.Unload("a", 1).ok());
  for (int look = 0; look < 5; ++look) poller_.Poll();
  EXPECT_EQ(Versions(), "b1 ");
}

}  // namespace
}  // namespace deeppcr::testing
