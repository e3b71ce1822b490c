// SPDX-License-Identifier: Apache-2.0
#include "kernels/training/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/expect_error.h"
#include "tests/testing/plain_training.h"
#include "tests/testing/training_run.h"

namespace deeppcr::training {
namespace {

using deeppcr::testing::ExpectError;
using deeppcr::testing::PlainStack;
using deeppcr::testing::ProductData;
using deeppcr::testing::SmallModel;

std::unique_ptr<Trainer> MakeTrainer(const ModelConfig& config, const TrainerOptions& options,
                                     const Dataset& data) {
  auto trainer = Trainer::Create(config, options, data);
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  return *std::move(trainer);
}

void RunSteps(Trainer& trainer, int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) {
    const auto report = trainer.Step();
    ASSERT_TRUE(report.ok()) << report.status();
    ASSERT_EQ(report->outcome, StepOutcome::kUpdated);
  }
}

// All samples in one batch, of more than are computed together.
TEST(TrainerTest, AStepFollowsTheGradientOfTheWholeBatch) {
  for (const bool labelled : {true, false}) {
    const ModelConfig config = SmallModel();
    const Dataset data = ProductData(150, labelled);
    const TrainerOptions options = {.loss = labelled ? LossKind::kCrossEntropy : LossKind::kMse,
                                    .optimizer = {.kind = OptimizerKind::kSgd, .momentum = 0},
                                    .schedule = {.peak = 1, .cosine = false},
                                    .batch_size = 150,
                                    .num_steps = 1};
    const auto trainer = MakeTrainer(config, options, data);
    const std::vector<float> before = trainer->state().optimizer.parameters;
    const StepReport report = trainer->Step().value();
    const std::vector<float> after = trainer->state().optimizer.parameters;
    const PlainStack plain(config);
    std::vector<double> at(before.begin(), before.end());
    EXPECT_NEAR(report.loss, plain.Loss(at, data), 1e-6);
    double squares = 0;
    for (size_t i = 0; i < at.size(); ++i) {
      const double here = at[i];
      at[i] = here + 1e-5;
      const double above = plain.Loss(at, data);
      at[i] = here - 1e-5;
      const double slope = (above - plain.Loss(at, data)) / 2e-5;
      at[i] = here;
      squares += slope * slope;
      EXPECT_NEAR(before[i] - after[i], slope, 2e-6) << i;
    }
    EXPECT_NEAR(report.gradient_norm, std::sqrt(squares), 1e-5);
  }
}

TEST(TrainerTest, LearnsWhatNoLinearMapKnows) {
  const Dataset seen = ProductData(400, true), unseen = ProductData(200, true, 8);
  for (const std::string type : {"mlp", "resnet"}) {
    const auto trainer =
        MakeTrainer(SmallModel(type),
                    {.schedule = {.peak = 2e-2, .warmup_steps = 20},
                     .batch_size = 40,
                     .num_steps = 600,
                     .initialization = {.orthogonal_layers = true, .layer_gain = 1}},
                    seen);
    RunSteps(*trainer, 600);
    EXPECT_TRUE(trainer->finished());
    EXPECT_GT(trainer->Evaluate(unseen)->accuracy, 0.93) << type;
    EXPECT_LT(trainer->Evaluate(seen)->loss, 0.15) << type;
  }
}

TEST(TrainerTest, EvaluationIsTheMeanLossOfAllSamples) {
  const ModelConfig config = SmallModel();
  const Dataset data = ProductData(130, false);
  const auto trainer = MakeTrainer(config, {.loss = LossKind::kMse}, data);
  const std::vector<float> values = trainer->state().optimizer.parameters;
  EXPECT_NEAR(trainer->Evaluate(data)->loss,
              PlainStack(config).Loss(std::vector<double>(values.begin(), values.end()), data),
              1e-6);
}

TEST(TrainerTest, BypassedIsAModelWithoutItsLayers) {
  const ModelConfig config = SmallModel();
  const Dataset data = ProductData(130, false);
  const auto trainer = MakeTrainer(config, {.loss = LossKind::kMse, .num_steps = 20}, data);
  RunSteps(*trainer, 20);
  const std::vector<float> values = trainer->state().optimizer.parameters;
  const int64_t dim = config.state_dim, layers = config.num_layers * dim * (dim + 1);
  std::vector<double> without(values.begin(), values.end());
  const auto first = without.begin() + dim * (config.input_dim + 1);
  without.erase(first, first + layers);
  ModelConfig none = config;
  none.num_layers = 0;
  const double bypassed = trainer->EvaluateBypassed(data)->loss;
  EXPECT_NEAR(bypassed, PlainStack(none).Loss(without, data), 1e-6);
  EXPECT_GT(std::abs(bypassed - trainer->Evaluate(data)->loss), 1e-3);
}

// The input layer never comes to write what the output layer reads: without the layers the answer
// is the same for every input, whatever the optimiser does.
TEST(TrainerTest, ASplitStateStaysSplit) {
  const Dataset data = ProductData(200, true);
  const ModelConfig config = SmallModel("resnet", 12);
  for (const OptimizerKind kind :
       {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    const auto trainer = MakeTrainer(config,
                                     {.optimizer = {.kind = kind, .weight_decay = 0.01},
                                      .schedule = {.peak = 3e-2, .warmup_steps = 20},
                                      .batch_size = 40,
                                      .num_steps = 400,
                                      .initialization = {.layer_gain = 1},
                                      .split_state = 3},
                                     data);
    RunSteps(*trainer, 400);
    const std::vector<float> values = trainer->state().optimizer.parameters;
    std::vector<float> split = values;
    SplitState(trainer->layout(), 3, split);
    EXPECT_EQ(values, split) << ToString(kind);
    int64_t larger = 0;
    for (const int32_t label : data.labels) larger += label;
    const double chance = static_cast<double>(std::max(larger, 200 - larger)) / 200;
    EXPECT_LE(trainer->EvaluateBypassed(data)->accuracy, chance) << ToString(kind);
    if (kind != OptimizerKind::kSgd) {
      EXPECT_GT(trainer->Evaluate(data)->accuracy, 0.9) << ToString(kind);
    }
  }
}

TEST(TrainerTest, GivesTheSameBitsWithAnyNumberOfThreads) {
  const Dataset data = ProductData(150, true);
  for (const BackwardWay way : {BackwardWay::kSequential, BackwardWay::kParallel}) {
    std::vector<float> first;
    for (const int threads : {1, 2, 4, 7}) {
      const auto trainer = MakeTrainer(SmallModel("resnet", 70),
                                       {.optimizer = {.weight_decay = 0.1, .clip_norm = 0.1},
                                        .batch_size = 100,
                                        .num_steps = 5,
                                        .system = {.num_threads = threads, .way = way}},
                                       data);
      RunSteps(*trainer, 5);
      if (first.empty()) first = trainer->state().optimizer.parameters;
      EXPECT_EQ(trainer->state().optimizer.parameters, first) << threads;
    }
  }
}

// At the size that the two ways are meant for.
TEST(TrainerTest, BothWaysHaveTheSameLossesOverAHundredSteps) {
  ModelConfig config = SmallModel("resnet", 1024);
  config.state_dim = 16;
  const Dataset data = ProductData(640, true);
  std::vector<float> losses[2];
  for (const BackwardWay way : {BackwardWay::kSequential, BackwardWay::kParallel}) {
    const auto trainer = MakeTrainer(config,
                                     {.optimizer = {.clip_norm = 1},
                                      .schedule = {.peak = 2e-3, .warmup_steps = 10},
                                      .batch_size = 16,
                                      .num_steps = 100,
                                      .system = {.way = way}},
                                     data);
    RunSteps(*trainer, 100);
    losses[way == BackwardWay::kParallel ? 1 : 0] = trainer->state().losses;
  }
  EXPECT_NE(losses[0], losses[1]) << "the same way twice";
  const auto sum = [](auto begin) { return std::accumulate(begin, begin + 20, 0.0); };
  EXPECT_LT(sum(losses[0].end() - 20), 0.9 * sum(losses[0].begin())) << "nothing was learnt";
  for (size_t i = 0; i < 100; ++i) EXPECT_NEAR(losses[0][i], losses[1][i], 1e-3) << i;
}

TEST(TrainerTest, GoesOnWithTheSameBitsWhereItWasInterrupted) {
  const Dataset data = ProductData(50, true);
  for (const OptimizerKind kind :
       {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    const TrainerOptions options = {.optimizer = {.kind = kind, .weight_decay = 0.01},
                                    .schedule = {.warmup_steps = 5},
                                    .batch_size = 16,  // four to an epoch, the last one smaller
                                    .num_steps = 15};
    const auto whole = MakeTrainer(SmallModel(), options, data);
    RunSteps(*whole, 15);
    for (const int64_t stop : {0, 1, 4, 7, 14, 15}) {
      const auto begun = MakeTrainer(SmallModel(), options, data);
      RunSteps(*begun, stop);
      const auto resumed = MakeTrainer(SmallModel(), options, data);
      ASSERT_TRUE(resumed->Restore(begun->state()).ok());
      RunSteps(*resumed, 15 - stop);
      EXPECT_EQ(resumed->state().optimizer.parameters, whole->state().optimizer.parameters);
      EXPECT_EQ(resumed->state().optimizer.first, whole->state().optimizer.first);
      EXPECT_EQ(resumed->state().optimizer.second, whole->state().optimizer.second);
      EXPECT_EQ(resumed->state().losses, whole->state().losses);
    }
  }
}

// Wherever in a step the token fires, from its beginning to behind its end.
TEST(TrainerTest, AStoppedStepIsAsIfItHadNotBegun) {
  const Dataset data = ProductData(150, true);
  const ModelConfig config = SmallModel("resnet", 200);
  for (const BackwardWay way : {BackwardWay::kSequential, BackwardWay::kParallel}) {
    const TrainerOptions options = {.batch_size = 150,
                                    .num_steps = 12,
                                    .warm_start_bytes = int64_t{1} << 20,  // of the parallel way
                                    .system = {.num_threads = 2, .way = way}};
    const auto whole = MakeTrainer(config, options, data);
    RunSteps(*whole, 12);
    const auto stopped = MakeTrainer(config, options, data);
    int64_t stops = 0;
    for (int64_t attempt = 0; !stopped->finished(); ++attempt) {
      CancelToken token;
      stopped->StopBy(&token);
      const int64_t before = stopped->step();
      // A step may take less than a thread takes to begin: it waits for the step.
      std::atomic<bool> waits{false}, begun{false};
      std::jthread canceller([&] {
        waits.store(true);
        while (!begun.load()) continue;
        const auto end =
            std::chrono::steady_clock::now() + std::chrono::microseconds(20 * (attempt % 20));
        while (std::chrono::steady_clock::now() < end) continue;
        token.Cancel();
      });
      while (!waits.load()) std::this_thread::yield();
      if (attempt % 20 == 0) token.Cancel();
      begun.store(true);
      const absl::StatusOr<StepReport> report = stopped->Step();
      canceller.join();
      stops += report.ok() ? 0 : 1;
      if (!report.ok()) ExpectError(report, absl::StatusCode::kCancelled, "stopped");
      ASSERT_EQ(stopped->step(), before + (report.ok() ? 1 : 0));
      ExpectError(stopped->Evaluate(data), absl::StatusCode::kCancelled, "stopped");
      if (report.ok() || attempt % 20 != 19) continue;
      // Where none is short enough, one is let through.
      stopped->StopBy(nullptr);
      RunSteps(*stopped, 1);
    }
    EXPECT_GT(stops, 0);
    EXPECT_EQ(stopped->state().optimizer.parameters, whole->state().optimizer.parameters);
    EXPECT_EQ(stopped->state().optimizer.second, whole->state().optimizer.second);
    EXPECT_EQ(stopped->state().losses, whole->state().losses);
    EXPECT_EQ(stopped->state().trajectories.states, whole->state().trajectories.states);
    stopped->StopBy(nullptr);
    EXPECT_TRUE(stopped->Evaluate(data).ok());
  }
}

// Where nothing moves newton finds its own answer of an epoch ago.
TEST(TrainerTest, AWarmStartSavesIterationsWhereWeightsStay) {
  const Dataset data = ProductData(40, true);
  const ModelConfig config = SmallModel("resnet", 64);
  TrainerOptions options = {.schedule = {.peak = 0},
                            .batch_size = 20,
                            .num_steps = 4,
                            .initialization = {.layer_gain = 1},
                            .warm_start_bytes = int64_t{1} << 20,
                            .system = {.way = BackwardWay::kParallel, .shooting_interval = 4}};
  const auto trainer = MakeTrainer(config, options, data);
  int64_t most[2] = {};
  for (int64_t step = 0; step < 4; ++step)
    most[step / 2] = std::max(most[step / 2], trainer->Step()->forward.iterations);
  EXPECT_LT(most[1], most[0]);
  EXPECT_EQ(trainer->state().trajectories.states.size(), 40 * 65 * 5);

  // The sequential way keeps nothing.
  options.system.way = BackwardWay::kSequential;
  EXPECT_TRUE(MakeTrainer(config, options, data)->state().trajectories.kept.empty());
}

TEST(TrainerTest, WarmStartsGiveTheLossesOfColdOnesWithAnyNumberOfThreads) {
  const Dataset data = ProductData(150, true);
  const ModelConfig config = SmallModel("resnet", 64);
  std::vector<float> cold, warm;
  for (const int threads : {0, 1, 2, 4}) {
    const TrainerOptions options = {.schedule = {.peak = 1e-2},
                                    .batch_size = 70,
                                    .num_steps = 12,
                                    .warm_start_bytes = threads == 0 ? 0 : int64_t{1} << 20,
                                    .system = {.num_threads = std::max(threads, 1),
                                               .way = BackwardWay::kParallel,
                                               .shooting_interval = 8}};
    const auto trainer = MakeTrainer(config, options, data);
    RunSteps(*trainer, 12);
    if (threads == 0) cold = trainer->state().losses;
    if (threads == 1) warm = trainer->state().losses;
    if (threads > 1) {
      EXPECT_EQ(trainer->state().losses, warm) << threads;
    }
  }
  EXPECT_NE(warm, cold) << "the guesses are not used";
  for (size_t i = 0; i < cold.size(); ++i) EXPECT_NEAR(warm[i], cold[i], 1e-3) << i;
}

// One sample of 16, in one batch of an epoch's four, overflows.
TEST(TrainerTest, SkipsAStepWhoseLossIsNotFinite) {
  Dataset data = ProductData(16, false);
  data.targets[5] = 3e38F;
  data.inputs[6] = 3e38F;
  ModelConfig config = SmallModel();
  config.activation = Activation::kRelu;
  const auto trainer =
      MakeTrainer(config, {.loss = LossKind::kMse, .batch_size = 4, .num_steps = 12}, data);
  int64_t skipped = 0;
  for (int64_t i = 0; i < 12; ++i) {
    const TrainerState before = trainer->state();
    const StepReport report = trainer->Step().value();
    const TrainerState after = trainer->state();
    EXPECT_EQ(after.step, i + 1);
    if (report.outcome == StepOutcome::kUpdated) {
      EXPECT_NE(after.optimizer.parameters, before.optimizer.parameters);
      continue;
    }
    ++skipped;
    EXPECT_EQ(after.optimizer.parameters, before.optimizer.parameters);
    EXPECT_EQ(after.optimizer.first, before.optimizer.first);
    EXPECT_EQ(after.optimizer.second, before.optimizer.second);
    EXPECT_EQ(after.optimizer.updates, before.optimizer.updates);
  }
  EXPECT_GE(skipped, 3);
  EXPECT_LE(skipped, 6);
  for (const float x : trainer->state().optimizer.parameters) ASSERT_TRUE(std::isfinite(x));
}

// Threads decide how many samples are computed together, of which a skipped step may not tell: a
// loss that is not finite comes before or behind a gradient that is not, by the seed of the order.
TEST(TrainerTest, SkipsAStepWithTheSameReportWithAnyNumberOfThreads) {
  ModelConfig config = SmallModel();
  config.activation = Activation::kRelu;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const bool infinite_loss = seed > 2;
    Dataset data = ProductData(60, false);
    // Their squares are in the range of double, their cotangents beyond float.
    for (const int sample : {5, 20, 40, 55}) data.targets[2 * sample] = 3e38F;
    if (infinite_loss) data.inputs[150] = 3e38F;
    const auto report = [&](int threads) {
      const auto trainer = MakeTrainer(config,
                                       {.loss = LossKind::kMse,
                                        .batch_size = 60,
                                        .initialization = {.layer_gain = 10, .outer_gain = 1e6},
                                        .seed = seed,
                                        .system = {.num_threads = threads}},
                                       data);
      StepReport step = trainer->Step().value();
      EXPECT_EQ(trainer->skipped(), 1);
      return step;
    };
    const StepReport alone = report(1), together = report(2);
    EXPECT_EQ(alone.outcome,
              infinite_loss ? StepOutcome::kNonFiniteLoss : StepOutcome::kNonFiniteGradient);
    EXPECT_EQ(together.outcome, alone.outcome);
    EXPECT_EQ(std::isfinite(alone.loss), !infinite_loss);
    if (!infinite_loss) {
      EXPECT_EQ(together.loss, alone.loss);
    }
  }
}

TEST(TrainerTest, EndsARunThatFindsNothingToFollow) {
  Dataset data = ProductData(16, false);
  for (float& x : data.inputs) x = 3e38F;
  ModelConfig config = SmallModel();
  config.activation = Activation::kRelu;
  const TrainerOptions options = {.loss = LossKind::kMse, .batch_size = 4, .num_steps = 100};
  const auto trainer = MakeTrainer(config, options, data);
  const std::vector<float> begun = trainer->state().optimizer.parameters;
  for (int64_t i = 0; i < kMostSkipsInARow; ++i) {
    EXPECT_FALSE(trainer->diverged());
    EXPECT_NE(trainer->Step()->outcome, StepOutcome::kUpdated);
  }
  EXPECT_TRUE(trainer->diverged());
  EXPECT_EQ(trainer->skipped(), kMostSkipsInARow);
  ExpectError(trainer->Step(), absl::StatusCode::kFailedPrecondition, "training has diverged");
  EXPECT_EQ(trainer->state().optimizer.parameters, begun);
  // Nor does it go on after a checkpoint.
  const auto resumed = MakeTrainer(config, options, data);
  ASSERT_TRUE(resumed->Restore(trainer->state()).ok());
  ExpectError(resumed->Step(), absl::StatusCode::kFailedPrecondition, "training has diverged");
}

TEST(TrainerTest, RefusesOptionsNamingThem) {
  const Dataset data = ProductData(8, true);
  const auto refused = [&](const char* part, auto change) {
    TrainerOptions options;
    ModelConfig config = SmallModel();
    change(options, config);
    EXPECT_THAT(std::string(Trainer::Create(config, options, data).status().message()),
                ::testing::HasSubstr(part));
  };
  refused("steps: expected 1 .. 1000000, got 0", [](auto& o, auto&) { o.num_steps = 0; });
  refused("batch_size: expected at least 1", [](auto& o, auto&) { o.batch_size = 0; });
  refused("warmup_steps: expected 0 .. 1", [](auto& o, auto&) { o.schedule.warmup_steps = 2; });
  refused("learning_rate: expected a finite", [](auto& o, auto&) { o.schedule.peak = -1; });
  refused("learning_rate: expected a finite number of at least 0 and at most 1e+30, got 1e+31",
          [](auto& o, auto&) { o.schedule.peak = 1e31; });
  refused("weight_decay: expected", [](auto& o, auto&) { o.optimizer.weight_decay = 1e39; });
  refused("beta2: expected a number in [0, 1), got 1",
          [](auto& o, auto&) { o.optimizer.beta2 = 1; });
  refused("clip_norm", [](auto& o, auto&) { o.optimizer.clip_norm = NAN; });
  refused("warm_start: expected 0 .. 1073741824 bytes, got -1",
          [](auto& o, auto&) { o.warm_start_bytes = -1; });
  refused("warm_start: the trajectories of 8 samples take 1120 bytes; 1119 are allowed",
          [](auto& o, auto&) { o.warm_start_bytes = 1119; });
  refused("split_state: expected 0 .. 4 (below state_dim), got 5",
          [](auto& o, auto&) { o.split_state = 5; });
  refused("split_state: expected 0 .. 4", [](auto& o, auto&) { o.split_state = -1; });
  refused("shooting_interval", [](auto& o, auto&) { o.system.shooting_interval = 0; });
  refused("loss: mse takes targets; the training data has labels",
          [](auto& o, auto&) { o.loss = LossKind::kMse; });
  refused("model_type: training takes mlp and resnet, got \"diffusion\"",
          [](auto&, auto& c) { c.model_type = "diffusion"; });
  refused("training data: inputs: expected 4 values", [](auto&, auto& c) { c.input_dim = 4; });
  refused("parameters; at most", [](auto&, auto& c) {
    c.num_layers = 1 << 20;
    c.state_dim = 64;
  });
  refused("backend: expected auto or one of", [](auto& o, auto&) { o.system.backend = "tpu"; });
}

TEST(TrainerTest, RefusesAStateOfAnotherRun) {
  const Dataset data = ProductData(8, true);
  const auto trainer = MakeTrainer(SmallModel(), {.num_steps = 3}, data);
  RunSteps(*trainer, 2);
  const auto refused = [&](auto change) {
    TrainerState state = trainer->state();
    change(state);
    ExpectError(trainer->Restore(state), absl::StatusCode::kInvalidArgument, "checkpoint: ");
  };
  refused([](TrainerState& s) { s.optimizer.parameters.pop_back(); });
  refused([](TrainerState& s) { s.optimizer.second.clear(); });
  refused([](TrainerState& s) { s.step = 4; });
  refused([](TrainerState& s) { s.step = -1; });
  refused([](TrainerState& s) { s.losses.pop_back(); });
  refused([](TrainerState& s) { s.optimizer.updates = 3; });
  refused([](TrainerState& s) { s.skips_in_a_row = -1; });
}

}  // namespace
}  // namespace deeppcr::training
