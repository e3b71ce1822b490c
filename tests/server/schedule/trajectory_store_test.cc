// SPDX-License-Identifier: Apache-2.0
#include "server/schedule/trajectory_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "tests/testing/fake_engine.h"

namespace deeppcr::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kStates = 9 * 4;  // of a sample of the fake model
constexpr int64_t kEach = kStates * 4 + 2 * 4 + TrajectoryStore::kEntryBytes;

class TrajectoryStoreTest : public ::testing::Test {
 protected:
  TrajectoryStoreTest() : metrics_({"sequential"}, "v", "d", "b") {}

  std::shared_ptr<ServedModel> Serve(const std::string& name, int64_t version) {
    return std::make_shared<ServedModel>(name, version, std::make_shared<FakeModel>(),
                                         metrics_.ForModel(name, version));
  }
  KeptTrajectory Trajectory(const std::shared_ptr<ServedModel>& model, float value,
                            const std::string& owner = "") {
    const std::vector<float> inputs = {value, value};
    return {.model = model->name,
            .version = model->version,
            .served = model,
            .owner = owner,
            .system = 8,
            .samples = OwnedSampleInputs({.num_samples = 1, .inputs = inputs}),
            .states = std::vector<float>(kStates, value)};
  }
  double Metric(const std::string& series) {
    const std::string text = metrics_.Text();
    const size_t at = text.find("\n" + series + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + series.size() + 2));
  }

  Metrics metrics_;
  std::shared_ptr<ServedModel> model_ = Serve("m", 1);
};

TEST_F(TrajectoryStoreTest, GivesBackWhatItKeeps) {
  TrajectoryStore store({.max_bytes = 10 * kEach}, metrics_);
  const std::string first = store.Keep(Trajectory(model_, 1)).value();
  const std::string second = store.Keep(Trajectory(model_, 2)).value();

  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(store.Find(first, model_, "").value()->states.front(), 1);
    EXPECT_EQ(store.Find(second, model_, "").value()->states.front(), 2);
  }
  EXPECT_EQ(store.Find(first, model_, "").value()->samples.View().inputs.front(), 1);
  EXPECT_EQ(Metric("deeppcr_kept_trajectories"), 2);
  EXPECT_EQ(Metric("deeppcr_kept_trajectory_bytes"), 2 * kEach);
}

TEST_F(TrajectoryStoreTest, HandlesDiffer) {
  TrajectoryStore store({.max_bytes = 10 * kEach}, metrics_);
  std::set<std::string> handles;
  for (int i = 0; i < 200; ++i) handles.insert(store.Keep(Trajectory(model_, 1)).value());
  EXPECT_EQ(handles.size(), 200u);
  for (const std::string& handle : handles)
    EXPECT_THAT(handle, ::testing::MatchesRegex("[0-9a-f]{32}"));
}

TEST_F(TrajectoryStoreTest, TheOldestMakeRoom) {
  TrajectoryStore store({.max_bytes = 3 * kEach}, metrics_);
  std::vector<std::string> handles;
  for (int i = 0; i < 1000; ++i)
    handles.push_back(store.Keep(Trajectory(model_, static_cast<float>(i))).value());

  for (size_t i = 0; i < handles.size(); ++i) {
    const auto found = store.Find(handles[i], model_, "");
    EXPECT_EQ(found.ok(), i >= 997) << i;
    if (!found.ok()) continue;
    EXPECT_EQ(found.value()->states.front(), static_cast<float>(i));
  }
  EXPECT_EQ(store.Find(handles[996], model_, "").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Metric("deeppcr_kept_trajectory_bytes"), 3 * kEach);
  EXPECT_EQ(Metric("deeppcr_kept_trajectories_dropped_total{reason=\"no_room\"}"), 997);
}

TEST_F(TrajectoryStoreTest, OneThatIsTooLargeTakesNobodysRoom) {
  TrajectoryStore store({.max_bytes = kEach}, metrics_);
  const std::string handle = store.Keep(Trajectory(model_, 1)).value();
  KeptTrajectory large = Trajectory(model_, 2);
  large.states.push_back(0);

  EXPECT_EQ(store.Keep(std::move(large)).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(store.Find(handle, model_, "").ok());
}

TEST_F(TrajectoryStoreTest, EndsAfterItsTimeAlsoUnasked) {
  TrajectoryStore store({.max_bytes = 10 * kEach, .life = std::chrono::milliseconds(50)}, metrics_);
  const auto start = std::chrono::steady_clock::now();
  const std::string handle = store.Keep(Trajectory(model_, 1)).value();
  for (int i = 0; i < 2000 && Metric("deeppcr_kept_trajectories") > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(50));
  EXPECT_EQ(Metric("deeppcr_kept_trajectories"), 0);
  EXPECT_EQ(Metric("deeppcr_kept_trajectory_bytes"), 0);
  EXPECT_EQ(Metric("deeppcr_kept_trajectories_dropped_total{reason=\"expired\"}"), 1);
  const absl::Status status = store.Find(handle, model_, "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("end after 0.05 seconds"));
}

TEST_F(TrajectoryStoreTest, OneInUseOutlivesItsEntry) {
  TrajectoryStore store({.max_bytes = kEach}, metrics_);
  const std::string handle = store.Keep(Trajectory(model_, 1)).value();
  const auto used = store.Find(handle, model_, "").value();
  ASSERT_TRUE(store.Keep(Trajectory(model_, 2)).ok());
  EXPECT_FALSE(store.Find(handle, model_, "").ok());
  EXPECT_EQ(used->states, std::vector<float>(kStates, 1));
}

TEST_F(TrajectoryStoreTest, BelongsToItsOwner) {
  TrajectoryStore store({.max_bytes = 10 * kEach}, metrics_);
  const std::string handle = store.Keep(Trajectory(model_, 1, "alice")).value();
  EXPECT_TRUE(store.Find(handle, model_, "alice").ok());
  const absl::Status other = store.Find(handle, model_, "bob").status();
  EXPECT_EQ(other, store.Find(std::string(32, '0'), model_, "bob").status())
      << "whether there is one tells a stranger nothing";
  EXPECT_EQ(other.code(), absl::StatusCode::kNotFound);
}

TEST_F(TrajectoryStoreTest, BelongsToItsModel) {
  TrajectoryStore store({.max_bytes = 10 * kEach}, metrics_);
  const std::string handle = store.Keep(Trajectory(model_, 1)).value();
  for (const auto& other : {Serve("m", 2), Serve("n", 1)}) {
    const absl::Status status = store.Find(handle, other, "").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("got one of m version 1"));
  }
  // The same version, loaded again, may have other weights.
  EXPECT_EQ(store.Find(handle, Serve("m", 1), "").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(store.Find(handle, model_, "").ok());
}

TEST_F(TrajectoryStoreTest, GoesWithItsModel) {
  TrajectoryStore store({.max_bytes = 10 * kEach}, metrics_);
  const auto other = Serve("n", 1);
  const std::string handle = store.Keep(Trajectory(model_, 1)).value();
  const std::string stays = store.Keep(Trajectory(other, 2)).value();
  const std::weak_ptr<ServedModel> weak = model_;

  const std::shared_ptr<ServedModel> served[] = {nullptr, other};
  store.KeepOnly(served);
  EXPECT_EQ(Metric("deeppcr_kept_trajectories"), 1);
  EXPECT_EQ(Metric("deeppcr_kept_trajectories_dropped_total{reason=\"unloaded\"}"), 1);
  EXPECT_FALSE(store.Find(handle, model_, "").ok());
  EXPECT_TRUE(store.Find(stays, other, "").ok());
  model_.reset();
  EXPECT_TRUE(weak.expired()) << "a trajectory keeps no model";
}

// A solve may end after its model is gone: nobody could find its states, which would take room.
TEST_F(TrajectoryStoreTest, KeepsNothingOfAModelThatIsGone) {
  TrajectoryStore store({.max_bytes = 10 * kEach}, metrics_);
  const auto other = Serve("n", 1), early = Serve("m", 2);
  const std::shared_ptr<ServedModel> both[] = {model_, other}, one[] = {other};
  store.KeepOnly(both);
  store.KeepOnly(one);
  for (int again = 0; again < 2; ++again) {
    const std::string handle = store.Keep(Trajectory(model_, 1)).value();
    EXPECT_EQ(store.Find(handle, model_, "").status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(Metric("deeppcr_kept_trajectory_bytes"), 0);
    store.KeepOnly(one);
  }
  EXPECT_EQ(Metric("deeppcr_kept_trajectories_dropped_total{reason=\"unloaded\"}"), 2);
  const std::string handle = store.Keep(Trajectory(other, 2)).value();
  EXPECT_TRUE(store.Find(handle, other, "").ok());
  // One that nobody has been told of yet.
  EXPECT_TRUE(store.Find(store.Keep(Trajectory(early, 3)).value(), early, "").ok());
}

TEST_F(TrajectoryStoreTest, RefusesWhatIsNoHandle) {
  TrajectoryStore store({.max_bytes = 10 * kEach}, metrics_);
  for (const std::string& text : {std::string(), std::string(31, '0'), std::string(33, '0'),
                                  std::string(32, 'G'), std::string(32, '\0')}) {
    const absl::Status status = store.Find(text, model_, "").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("expected 32 hexadecimal digits"));
  }
}

TEST_F(TrajectoryStoreTest, ManyThreadsShareIt) {
  TrajectoryStore store({.max_bytes = 4 * kEach, .life = std::chrono::milliseconds(2)}, metrics_);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const std::string handle = store.Keep(Trajectory(model_, static_cast<float>(t))).value();
        const auto found = store.Find(handle, model_, "");
        if (found.ok()) {
          EXPECT_EQ(found.value()->states.front(), static_cast<float>(t));
        }
        const std::shared_ptr<ServedModel> served[] = {model_};
        if (i % 50 == 0) store.KeepOnly(served);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(Metric("deeppcr_kept_trajectory_bytes"), 4 * kEach);
}

}  // namespace
}  // namespace deeppcr::testing
