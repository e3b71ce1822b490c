// SPDX-License-Identifier: Apache-2.0
// Numbers of inference steps that config.json does not name.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "kernels/base/file.h"
#include "kernels/engine.h"
#include "tests/testing/diffusion_tensors.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {
namespace {

using SystemPtr = std::shared_ptr<const LoadedSystem>;

constexpr int64_t kDim = 3;
constexpr int64_t kTrained = 1000;

ModelConfig SmallConfig() {
  ModelConfig config;
  config.denoiser = DenoiserKind::kAdaLnMlp;
  config.state_dim = config.output_dim = kDim;
  config.hidden_dim = 16;
  config.num_blocks = 2;
  config.time_embedding_dim = 8;
  config.num_inference_steps = {24, 8};
  return config;
}

void WriteDiffusion(const std::string& directory, const ModelConfig& config) {
  const nlohmann::json json = {{"model_type", "diffusion"},
                               {"state_dim", config.state_dim},
                               {"output_dim", config.output_dim},
                               {"denoiser", "adaln_mlp"},
                               {"hidden_dim", config.hidden_dim},
                               {"num_blocks", config.num_blocks},
                               {"activation", "silu"},
                               {"time_embedding_dim", config.time_embedding_dim},
                               {"num_inference_steps", config.num_inference_steps},
                               {"max_batch_size", 4}};
  const absl::Status written = WriteModel(directory, json.dump(), DiffusionTensors(config));
  ASSERT_TRUE(written.ok()) << written;
  const nlohmann::json scheduler = {{"_class_name", "DDPMScheduler"},
                                    {"num_train_timesteps", kTrained}};
  ASSERT_TRUE(WriteFileAtomically(directory + "/scheduler_config.json", scheduler.dump()).ok());
}

// An engine and a model of it. Plans are measured once, for the first model.
struct Loaded {
  explicit Loaded(const std::string& directory, EngineOptions options = {}) {
    options.backend = "cpu";
    options.num_threads = 1;
    auto created = Engine::Create(options);
    if (!created.ok()) return;
    engine = *std::move(created);
    auto loaded = engine->LoadModel(directory, nullptr, nullptr);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (loaded.ok()) model = *std::move(loaded);
  }
  const LoadedModel& operator*() const { return *model; }
  const LoadedModel* operator->() const { return model.get(); }

  std::unique_ptr<Engine> engine;  // outlives the model
  std::shared_ptr<const LoadedModel> model;
};

class UnplannedSystemsTest : public ::testing::Test {
 protected:
  void SetUp() override { WriteDiffusion(model_.path(), SmallConfig()); }

  Loaded Load(int64_t max_unplanned_bytes = int64_t{1} << 30) const {
    return Loaded(model_.path(),
                  {.plan_cache_dir = plans_.path(), .max_unplanned_bytes = max_unplanned_bytes});
  }
  // Loads with room for this number of systems of about ten steps.
  Loaded LoadWithRoomFor(int systems) const {
    const Loaded roomy = Load();
    const int64_t before = roomy->memory_bytes();
    EXPECT_TRUE(roomy->Prepare(10, nullptr).ok());
    const int64_t one = roomy->memory_bytes() - before;
    const int64_t weights = before - Load(0)->memory_bytes();
    return Load(weights + systems * one + one / 2);
  }

  TemporaryDirectory model_, plans_;
};

struct Answer {
  std::vector<float> outputs = std::vector<float>(2 * kDim);
  std::vector<SampleReport> reports = std::vector<SampleReport>(2);
};

Answer Ask(const LoadedSystem& system, const SolveOptions& options) {
  Answer answer;
  const auto resolved = system.Resolve(options, 2);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  RunItem item{.samples = {.num_samples = 2, .seed = 7},
               .outputs = answer.outputs,
               .reports = answer.reports};
  const absl::Status run = system.Run(*resolved, {&item, 1}, nullptr);
  EXPECT_TRUE(run.ok()) << run;
  return answer;
}

TEST_F(UnplannedSystemsTest, AnswerAsAModelThatNamesTheNumber) {
  const Loaded any = Load();
  EXPECT_EQ(any->info().max_inference_steps, kTrained);
  for (const int64_t steps : {1, 2, 11, 100}) {
    ModelConfig config = SmallConfig();
    config.num_inference_steps = {steps};
    const TemporaryDirectory directory;
    WriteDiffusion(directory.path(), config);
    const Loaded named(directory.path());
    const auto made = any->Prepare(steps, nullptr).value();
    for (const std::string& solver : any->info().solvers) {
      // Nothing is left to the plans, which differ.
      SolveOptions options{.solver = solver};
      if (solver == "auto") continue;
      if (solver != "sequential") {
        options.shooting_interval = static_cast<int32_t>(std::min<int64_t>(steps, 3));
        options.initial_guess = InitialGuess::kCoarse;
        options.jacobian_refresh = JacobianRefresh::kEveryIteration;
      }
      if (solver == "newton") options.warm_sweeps = 1;
      const Answer got = Ask(*made, options), expected = Ask(*named->Find(), options);
      EXPECT_EQ(got.outputs, expected.outputs) << solver << ", " << steps;
      EXPECT_EQ(got.reports[0].iterations, expected.reports[0].iterations);
      EXPECT_TRUE(got.reports[0].converged) << solver << ", " << steps;
    }
    const Answer automatic = Ask(*made, {});
    EXPECT_TRUE(automatic.reports[0].converged && automatic.reports[1].converged);
  }
}

// Replicas agree on the plans of numbers that no file has plans for.
TEST_F(UnplannedSystemsTest, HaveThePlanOfTheNearestNumberWhereverItIs) {
  const Loaded measured = Load();
  ASSERT_TRUE(WriteFileAtomically(model_.File("plan.json"), measured->PlanFileText()).ok());
  EngineOptions require;
  require.plan_mode = PlanMode::kRequire;
  const Loaded replica(model_.path(), require);
  std::set<std::string> ids = {measured->Find(24)->plan().id, measured->Find(8)->plan().id};
  for (const int64_t steps : {3, 9, 13, 14, 23, 500}) {
    const auto ours = measured->Prepare(steps, nullptr), theirs = replica->Prepare(steps, nullptr);
    ASSERT_TRUE(ours.ok() && theirs.ok()) << ours.status() << theirs.status();
    const Plan& plan = (*ours)->plan();
    EXPECT_EQ(plan.source, PlanSource::kNearest);
    EXPECT_EQ(plan.id, (*theirs)->plan().id);
    EXPECT_TRUE(ids.insert(plan.id).second) << "each number of steps has an id of its own";
    // 8 and 24 are equally far from 13.86.
    const int64_t nearest = steps <= 13 ? 8 : 24;
    EXPECT_NE(plan.candidates.at(0).find(std::to_string(nearest) + " steps"), std::string::npos);
  }
  EXPECT_EQ(measured->PlanFileText(), replica->PlanFileText()) << "which has the planned ones";
}

TEST_F(UnplannedSystemsTest, PlannedNumbersAreThereFromTheStart) {
  const Loaded model = Load();
  const SystemPtr first = model->Find(), few = model->Find(8);
  ASSERT_NE(few, nullptr);
  EXPECT_EQ(model->Find(24), first);
  EXPECT_EQ(*model->Prepare(0, nullptr), first);
  EXPECT_EQ(*model->Prepare(8, nullptr), few);
  EXPECT_EQ(model->Find(9), nullptr);
}

TEST_F(UnplannedSystemsTest, TheLeastRecentlyUsedGoesFirst) {
  const Loaded model = LoadWithRoomFor(2);
  const auto make = [&](int64_t steps) {
    const auto made = model->Prepare(steps, nullptr);
    EXPECT_TRUE(made.ok()) << made.status();
  };
  const int64_t before = model->memory_bytes();
  make(9);
  const int64_t with_one = model->memory_bytes();
  EXPECT_GT(with_one, before);
  make(10);
  ASSERT_NE(model->Find(9), nullptr);  // and is used last
  make(11);
  EXPECT_EQ(model->Find(10), nullptr);
  EXPECT_NE(model->Find(9), nullptr);
  EXPECT_NE(model->Find(11), nullptr);
  EXPECT_LT(model->memory_bytes(), before + 3 * (with_one - before));
}

// Where the workspaces of all that may run at a time find no room, fewer do.
TEST_F(UnplannedSystemsTest, WorkspacesGiveWay) {
  constexpr int64_t kMany = 700;
  const SolveOptions sequential{.solver = "sequential"};
  const auto load = [this](int64_t max_unplanned_bytes) {
    return Loaded(model_.path(), {.max_concurrent_runs = 5,
                                  .plan_cache_dir = plans_.path(),
                                  .max_unplanned_bytes = max_unplanned_bytes});
  };
  const Loaded wide = load(int64_t{1} << 40);
  const int64_t before = wide->memory_bytes();
  const int64_t weights = before - load(0)->memory_bytes();
  const std::vector<float> want = Ask(**wide->Prepare(kMany, nullptr), sequential).outputs;
  const int64_t bytes = wide->memory_bytes() - before;
  int fitted = 0, refused = 0;
  // The last ones are less than its weights and a workspace.
  for (const int64_t share : {95, 80, 65, 50, 40, 30, 20, 15, 10, 5, 4, 2, 1}) {
    const int64_t room = bytes * share / 100;
    const Loaded model = load(weights + room);
    const auto made = model->Prepare(kMany, nullptr);
    if (!made.ok()) {
      EXPECT_EQ(made.status().code(), absl::StatusCode::kResourceExhausted) << made.status();
      ++refused;
      continue;
    }
    EXPECT_EQ(refused, 0) << "less room, and yet it fits";
    EXPECT_LE(model->memory_bytes() - before, room);
    // Threads that find no workspace wait for one.
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] { EXPECT_EQ(Ask(**made, sequential).outputs, want); });
    for (std::thread& thread : threads) thread.join();
    ++fitted;
  }
  std::printf("%d of %d shares of %lld bytes fitted\n", fitted, fitted + refused,
              static_cast<long long>(bytes));
  EXPECT_GT(fitted, 3);
  EXPECT_GT(refused, 0);
}

// What is asked for first does not take the room of what comes: requests that use it may never end.
TEST_F(UnplannedSystemsTest, TheFirstLeavesRoomForOthers) {
  const auto load = [this](int64_t max_unplanned_bytes) {
    return Loaded(model_.path(), {.max_concurrent_runs = 8,
                                  .plan_cache_dir = plans_.path(),
                                  .max_unplanned_bytes = max_unplanned_bytes});
  };
  const Loaded wide = load(int64_t{1} << 40);
  const int64_t before = wide->memory_bytes();
  const int64_t weights = before - load(0)->memory_bytes();
  ASSERT_TRUE(wide->Prepare(700, nullptr).ok());
  const int64_t bytes = wide->memory_bytes() - before;
  const Loaded model = load(weights + bytes);
  std::vector<SystemPtr> in_use;
  for (int64_t steps = 700; steps > 690; --steps) {
    const auto made = model->Prepare(steps, nullptr);
    if (!made.ok()) break;
    in_use.push_back(*made);
    EXPECT_LE(model->memory_bytes() - before, bytes);
  }
  EXPECT_GE(in_use.size(), 3u);
}

TEST_F(UnplannedSystemsTest, ByDefaultTheRoomGrowsWithTheWeights) {
  EXPECT_TRUE(Load(-1)->Prepare(9, nullptr).ok());
  EXPECT_EQ(Load(-1)->info().max_inference_steps, kTrained);
}

TEST_F(UnplannedSystemsTest, OnesInUseStayAndBoundWhatElseIsMade) {
  const Loaded model = LoadWithRoomFor(2);
  SystemPtr nine = *model->Prepare(9, nullptr);
  const SystemPtr ten = *model->Prepare(10, nullptr);
  ExpectError(model->Prepare(11, nullptr), absl::StatusCode::kResourceExhausted,
              "11 steps: requests in progress use 2 others with ");
  EXPECT_EQ(model->Find(9), nine);
  EXPECT_EQ(*model->Prepare(10, nullptr), ten);
  nine.reset();
  EXPECT_TRUE(model->Prepare(11, nullptr).ok());
  EXPECT_EQ(model->Find(9), nullptr);
  EXPECT_EQ(model->Find(10), ten);
}

TEST_F(UnplannedSystemsTest, RefuseNumbersThatTheScheduleDoesNotHave) {
  const Loaded model = Load();
  for (const int64_t steps : {int64_t{-1}, kTrained + 1, INT64_MAX})
    ExpectError(model->Prepare(steps, nullptr), absl::StatusCode::kInvalidArgument,
                "num_inference_steps: expected an integer in [1, 1000], got ");
  const Loaded strict = Load(0);
  EXPECT_EQ(strict->info().max_inference_steps, 0);
  ExpectError(strict->Prepare(9, nullptr), absl::StatusCode::kInvalidArgument,
              "num_inference_steps: expected one of 24, 8, got 9");
}

TEST_F(UnplannedSystemsTest, AFiredTokenStopsTheMakingAndLeavesNothingBehind) {
  const Loaded model = Load();
  CancelToken token;
  token.Cancel();
  ExpectError(model->Prepare(9, &token), absl::StatusCode::kCancelled, "");
  EXPECT_EQ(model->Find(9), nullptr);
  EXPECT_TRUE(model->Prepare(9, nullptr).ok());
}

// One that does not fit leaves the others where they are.
TEST_F(UnplannedSystemsTest, ASystemBeyondTheLimitIsRefusedAlone) {
  const Loaded model = LoadWithRoomFor(2);
  ASSERT_TRUE(model->Prepare(9, nullptr).ok());
  ExpectError(model->Prepare(kTrained, nullptr), absl::StatusCode::kResourceExhausted,
              "1000 steps: ");
  EXPECT_NE(model->Find(9), nullptr);
}

// Two models in the memory that one of them, its systems and half of a system more would take.
TEST_F(UnplannedSystemsTest, ModelsShareTheMemoryOfTheProcess) {
  const Loaded roomy = Load();
  const int64_t model_bytes = roomy->memory_bytes();
  ASSERT_TRUE(roomy->Prepare(10, nullptr).ok());
  const int64_t system_bytes = roomy->memory_bytes() - model_bytes;
  const int64_t limit = 2 * model_bytes + 2 * system_bytes + system_bytes / 2;
  const Loaded first(model_.path(), {.plan_cache_dir = plans_.path(), .max_memory_bytes = limit});
  std::shared_ptr<const LoadedModel> second =
      *first.engine->LoadModel(model_.path(), nullptr, nullptr);
  const auto bytes = [&] {
    return first->memory_bytes() + (second == nullptr ? 0 : second->memory_bytes());
  };
  for (const int64_t steps : {9, 10}) ASSERT_TRUE(first->Prepare(steps, nullptr).ok());
  EXPECT_LE(bytes(), limit);

  // Another model's system takes the place of the one that was used least recently.
  SystemPtr eleven = *second->Prepare(11, nullptr);
  EXPECT_LE(bytes(), limit);
  EXPECT_EQ(first->Find(9), nullptr);
  SystemPtr ten = first->Find(10);
  ASSERT_NE(ten, nullptr);
  // What is in use stays, and the request learns why there is no room.
  const absl::Status refused = second->Prepare(12, nullptr).status();
  ExpectError(refused, absl::StatusCode::kResourceExhausted, "12 steps: ");
  EXPECT_LE(bytes(), limit);
  ExpectError(first.engine->LoadModel(model_.path(), nullptr, nullptr),
              absl::StatusCode::kResourceExhausted, "the memory of this process");

  // A load takes the room of systems that nobody uses, and what is unloaded gives its room back.
  ten.reset();
  eleven.reset();
  EXPECT_TRUE(second->Prepare(12, nullptr).ok());
  second.reset();
  EXPECT_TRUE(first->Prepare(9, nullptr).ok());
  second = *first.engine->LoadModel(model_.path(), nullptr, nullptr);
  EXPECT_LE(bytes(), limit);
}

TEST_F(UnplannedSystemsTest, AModelWithoutRoomIsRefusedWithTheSumBeforeItIsRead) {
  const auto engine =
      *Engine::Create({.backend = "cpu", .num_threads = 1, .max_memory_bytes = 1'000'000});
  std::ofstream(model_.File("model.safetensors")) << std::string(1'200'000, 'x');
  ExpectError(engine->LoadModel(model_.path(), nullptr, nullptr),
              absl::StatusCode::kResourceExhausted,
              "model.safetensors: takes 1200000 bytes; the memory of this process leaves 1000000 "
              "to models");
}

TEST_F(UnplannedSystemsTest, AreNoneWhereTheWeightsAloneExceedTheLimit) {
  const Loaded model = Load(1000);
  EXPECT_EQ(model->info().max_inference_steps, 0);
  ExpectError(model->Prepare(9, nullptr), absl::StatusCode::kInvalidArgument,
              "num_inference_steps: expected one of 24, 8, got 9");
}

// Systems are found, made, run and dropped by several threads at once.
TEST_F(UnplannedSystemsTest, ManyThreadsMayAskAtOnce) {
  const Loaded model = LoadWithRoomFor(3);
  std::vector<std::vector<float>> expected;
  for (int64_t steps = 3; steps < 9; ++steps)
    expected.push_back(Ask(**model->Prepare(steps, nullptr), {.solver = "newton"}).outputs);
  std::atomic<int> answered = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 30; ++i) {
        const int64_t steps = 3 + (7 * t + 5 * i) % 6;
        const auto system = model->Prepare(steps, nullptr);
        if (absl::IsResourceExhausted(system.status())) continue;  // the others use the room
        ASSERT_TRUE(system.ok()) << system.status();
        EXPECT_EQ(Ask(**system, {.solver = "newton"}).outputs, expected[steps - 3]);
        ++answered;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(answered.load(), 0);
}

}  // namespace
}  // namespace deeppcr::testing
