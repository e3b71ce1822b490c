// SPDX-License-Identifier: Apache-2.0
#include "server/schedule/shadow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "tests/testing/fake_engine.h"

namespace deeppcr::testing {
namespace {

OwnedSampleInputs NewSample() {
  static const std::vector<float> inputs = {3.0f, 4.0f};
  return OwnedSampleInputs({.num_samples = 1, .inputs = inputs});
}

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A job that occupies a worker until its gate opens.
class Blocker : public Job {
 public:
  explicit Blocker(std::shared_ptr<ServedModel> served) {
    model = std::move(served);
    system = model->model->Find();
    token = &token_;
    gate.Close();
  }
  // Refuses to be computed, once the gate is open.
  absl::Status Prepare() override {
    gate.Pass();
    return absl::UnknownError("only a blocker");
  }
  void Done(absl::Status, const JobTimings&) override {}

  Gate gate;

 private:
  CancelToken token_;
};

class ShadowTest : public ::testing::Test {
 protected:
  ShadowTest()
      : metrics_({"sequential", "newton"}, "v", "d", "b"),
        batcher_({.schedule = {.workers = 1}}),
        fake_(std::make_shared<FakeModel>()),
        model_(std::make_shared<ServedModel>("m", 1, fake_, metrics_.ForModel("m", 1))) {}

  bool WaitForText(const std::string& wanted) {
    for (int i = 0; i < 1000; ++i) {
      if (metrics_.Text().find(wanted) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  // Expects this number of speed-ups and errors for newton.
  void ExpectObserved(int speedups, int errors) {
    model_->metrics->ForPair("newton", Method::kForward);  // at 0, if there are none
    const std::string labels =
        "_count{method=\"Forward\",model=\"m\",solver=\"newton\",version=\"1\"} ";
    const std::string text = metrics_.Text();
    EXPECT_THAT(text,
                HasSubstr("deeppcr_speedup_ratio" + labels + std::to_string(speedups) + "\n"));
    EXPECT_THAT(
        text, HasSubstr("deeppcr_shadow_relative_error" + labels + std::to_string(errors) + "\n"));
  }

  const ResolvedOptions newton_ = {.solver = "newton"};  // options of a primary
  Metrics metrics_;
  Batcher batcher_;
  std::shared_ptr<FakeModel> fake_;
  std::shared_ptr<ServedModel> model_;
};

TEST_F(ShadowTest, SamplesTheStatedShare) {
  for (const auto& [rate, expected] : {std::pair{0.0, 0}, {0.01, 11}, {0.25, 251}, {1.0, 1000}}) {
    ShadowSampler sampler(rate, batcher_, metrics_);
    int sampled = 0;
    for (int i = 0; i < 1000; ++i) sampled += sampler.Sample(*model_) ? 1 : 0;
    // The first request is one more sample.
    EXPECT_EQ(sampled, expected) << rate;
  }
}

TEST_F(ShadowTest, PairsAParallelPrimaryWithSequential) {
  ShadowSampler sampler(1, batcher_, metrics_);

  sampler.Offer(model_, newton_, NewSample(), false);

  // The fake model needs 4 ms for sequential and 1 ms for other solvers.
  ASSERT_TRUE(
      WaitForText("deeppcr_speedup_ratio_sum{method=\"Forward\",model=\"m\",solver=\"newton\","
                  "version=\"1\"} 4\n"));
  ASSERT_TRUE(WaitForText("deeppcr_shadow_runs_total{outcome=\"measured\"} 1\n"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("deeppcr_shadow_relative_error_count{method=\"Forward\","
                                         "model=\"m\",solver=\"newton\",version=\"1\"} 1\n"));
  ASSERT_EQ(fake_->comparisons().size(), 1u);
  EXPECT_THAT(fake_->comparisons()[0], ElementsAre(3.0f, 4.0f));
}

TEST_F(ShadowTest, CountsPairsByTheirSolversAndWhoChose) {
  ShadowSampler sampler(1, batcher_, metrics_);
  const auto pairs = [](const std::string& chosen, const std::string& solver) {
    return "{chosen=\"" + chosen +
           "\",method=\"Forward\",model=\"m\",parallel=\"newton\",solver=\"" + solver +
           "\",version=\"1\"} ";
  };
  sampler.Offer(model_, newton_, NewSample(), true);
  ASSERT_TRUE(WaitForText("deeppcr_pairs_total" + pairs("auto", "newton") + "1\n"));
  EXPECT_THAT(metrics_.Text(),
              HasSubstr("deeppcr_last_pair_timestamp_seconds" + pairs("auto", "newton") + "1"));
}

// The sequential solver has no options that would tell who chose it.
TEST_F(ShadowTest, TellsThatAutoChoseTheSequentialSolver) {
  ShadowSampler sampler(1, batcher_, metrics_);
  ResolvedOptions primary;
  primary.solver = "sequential";
  sampler.Offer(model_, primary, NewSample(), true);
  EXPECT_TRUE(
      WaitForText("deeppcr_pairs_total{chosen=\"auto\",method=\"Forward\",model=\"m\","
                  "parallel=\"newton\",solver=\"sequential\",version=\"1\"} 1\n"));
}

TEST_F(ShadowTest, PairsASequentialPrimaryWithThePlansParallelSolver) {
  ShadowSampler sampler(1, batcher_, metrics_);
  ResolvedOptions primary;
  primary.solver = "sequential";

  sampler.Offer(model_, primary, NewSample(), false);

  EXPECT_TRUE(
      WaitForText("deeppcr_speedup_ratio_sum{method=\"Forward\",model=\"m\",solver=\"sequential\","
                  "version=\"1\"} 4\n"));
  EXPECT_TRUE(
      WaitForText("deeppcr_shadow_relative_error_sum{method=\"Forward\",model=\"m\",solver="
                  "\"sequential\",version=\"1\"} 2"));
  EXPECT_TRUE(
      WaitForText("deeppcr_pairs_total{chosen=\"request\",method=\"Forward\",model=\"m\","
                  "parallel=\"newton\",solver=\"sequential\",version=\"1\"} 1\n"));
}

TEST_F(ShadowTest, AnInterruptedPairIsNotObserved) {
  ShadowSampler sampler(1, batcher_, metrics_);
  fake_->compare_gate.Close();
  sampler.Offer(model_, newton_, NewSample(), false);
  ASSERT_TRUE(fake_->compare_gate.WaitForArrivals(1));

  batcher_.CancelAll();
  fake_->compare_gate.Open();

  EXPECT_TRUE(WaitForText("deeppcr_shadow_runs_total{outcome=\"interrupted\"} 1\n"));
  EXPECT_THAT(metrics_.Text(), ::testing::Not(HasSubstr("deeppcr_speedup_ratio_count")));
}

TEST_F(ShadowTest, AFallbackHasItsTimeObservedAndNoError) {
  ShadowSampler sampler(1, batcher_, metrics_);
  fake_->report.fallback = true;
  fake_->max_state_error = 0;

  sampler.Offer(model_, newton_, NewSample(), false);

  ASSERT_TRUE(WaitForText("deeppcr_shadow_runs_total{outcome=\"measured\"} 1\n"));
  ExpectObserved(1, 0);
}

// The client allowed an answer that claims nothing, so its error is no alarm.
TEST_F(ShadowTest, AnAnswerThatDidNotConvergeIsNoneToCompare) {
  ShadowSampler sampler(1, batcher_, metrics_);
  fake_->report.converged = false;
  fake_->max_state_error = 3;

  sampler.Offer(model_, newton_, NewSample(), false);

  EXPECT_TRUE(WaitForText("deeppcr_shadow_runs_total{outcome=\"failed\"} 1\n"));
  ExpectObserved(0, 0);
}

TEST_F(ShadowTest, ANonFiniteErrorIsAFailure) {
  ShadowSampler sampler(1, batcher_, metrics_);
  fake_->max_state_error = std::numeric_limits<double>::quiet_NaN();

  sampler.Offer(model_, newton_, NewSample(), false);

  EXPECT_TRUE(WaitForText("deeppcr_shadow_runs_total{outcome=\"failed\"} 1\n"));
}

TEST_F(ShadowTest, AWaitingPairDoesNotKeepItsModel) {
  ShadowSampler sampler(1, batcher_, metrics_);
  auto other = std::make_shared<ServedModel>("other", 1, fake_, nullptr);
  Blocker blocker(other);
  ASSERT_TRUE(batcher_.Enqueue(&blocker).ok());
  ASSERT_TRUE(blocker.gate.WaitForArrivals(1));
  sampler.Offer(model_, newton_, NewSample(), false);
  const std::weak_ptr<ServedModel> weak = model_;

  model_.reset();

  EXPECT_TRUE(weak.expired());
  blocker.gate.Open();
  EXPECT_TRUE(WaitForText("deeppcr_shadow_runs_total{outcome=\"interrupted\"} 1\n"));
}

TEST_F(ShadowTest, TakesOnlyItsShareOfAWorker) {
  ShadowSampler sampler(1, batcher_, metrics_);
  fake_->compare_gate.Close();
  sampler.Offer(model_, newton_, NewSample(), false);
  ASSERT_TRUE(fake_->compare_gate.WaitForArrivals(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  fake_->compare_gate.Open();
  ASSERT_TRUE(WaitForText("deeppcr_shadow_runs_total{outcome=\"measured\"} 1\n"));

  // The first pair took 50 ms; the next may start a second later at the earliest.
  for (int i = 0; i < 10; ++i) sampler.Offer(model_, newton_, NewSample(), false);

  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(fake_->comparisons().size(), 1u);
}

// Keeps the only worker busy with jobs of a few milliseconds, of which some wait all the time.
class ConstantLoad {
 public:
  ConstantLoad(Batcher& batcher, const std::shared_ptr<ServedModel>& model) {
    for (int i = 0; i < 1000; ++i) {
      jobs_.push_back(std::make_unique<Load>(model, left_));
      EXPECT_TRUE(batcher.Enqueue(jobs_.back().get()).ok());
    }
  }
  ~ConstantLoad() {
    for (const auto& job : jobs_) job->cancel.Cancel();
    while (left_.load() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  int left() const { return left_.load(); }

 private:
  struct Load : Job {
    Load(const std::shared_ptr<ServedModel>& served, std::atomic<int>& left) : left_of_all(left) {
      ++left_of_all;
      model = served;
      system = model->model->Find();
      token = &cancel;
    }
    absl::Status Prepare() override {
      std::this_thread::sleep_for(std::chrono::milliseconds(4));
      return absl::UnknownError("only load");
    }
    void Done(absl::Status, const JobTimings&) override { --left_of_all; }
    CancelToken cancel;
    std::atomic<int>& left_of_all;
  };

  std::atomic<int> left_{0};
  std::vector<std::unique_ptr<Load>> jobs_;
};

TEST_F(ShadowTest, UnderConstantLoadAPairInsistsAfterAWhile) {
  ShadowSampler sampler(1, batcher_, metrics_);
  fake_->plan_.entries.front() = {.max_samples = 16,
                                  .solver = "newton",
                                  .sequential_seconds = 4e-3,
                                  .parallel_seconds = 1e-3,
                                  .parallel_stages = 1};
  const ConstantLoad load(batcher_, std::make_shared<ServedModel>("other", 1, fake_, nullptr));
  const auto start = std::chrono::steady_clock::now();

  sampler.Offer(model_, newton_, NewSample(), false);

  ASSERT_TRUE(WaitForText("deeppcr_shadow_runs_total{outcome=\"measured\"} 1\n"));
  const auto first = std::chrono::steady_clock::now();
  EXPECT_GE(first - start, ShadowSampler::kPatience);
  // 5 ms of shadow allow another 100 ms later, which then waits for a while again.
  while (!sampler.Sample(*model_)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  sampler.Offer(model_, newton_, NewSample(), false);
  EXPECT_FALSE(sampler.Sample(*model_)) << "one waits";
  ASSERT_TRUE(WaitForText("deeppcr_shadow_runs_total{outcome=\"measured\"} 2\n"));
  EXPECT_GE(std::chrono::steady_clock::now() - first, ShadowSampler::kPatience);
  EXPECT_GT(load.left(), 0);
}

TEST_F(ShadowTest, NoPairThatTakesLongMakesRequestsWait) {
  ShadowSampler sampler(1, batcher_, metrics_);
  fake_->plan_.entries.front() = {.max_samples = 16,
                                  .solver = "newton",
                                  .sequential_seconds = 0.08,
                                  .parallel_seconds = 0.01,
                                  .parallel_stages = 1};
  {
    const ConstantLoad load(batcher_, std::make_shared<ServedModel>("other", 1, fake_, nullptr));
    sampler.Offer(model_, newton_, NewSample(), false);
    std::this_thread::sleep_for(ShadowSampler::kPatience + std::chrono::milliseconds(300));
    EXPECT_THAT(metrics_.Text(), HasSubstr("deeppcr_shadow_runs_total{outcome=\"measured\"} 0\n"));
  }
  EXPECT_TRUE(WaitForText("deeppcr_shadow_runs_total{outcome=\"measured\"} 1\n"));
}

TEST(ShadowSamplesTest, ArePartOfTheRequestByTheirMemory) {
  const std::vector<float> inputs(200);
  const SampleInputs samples = {.num_samples = 100, .inputs = inputs};
  const auto taken = [&](int64_t num_steps, int64_t state_dim) {
    const OwnedSampleInputs owned = SamplesOfPair(samples, {.state_dim = state_dim}, num_steps);
    EXPECT_EQ(std::ssize(owned.View().inputs), 2 * owned.View().num_samples);
    return owned.View().num_samples;
  };
  EXPECT_EQ(taken(10, 4), 64);
  EXPECT_EQ(taken(1023, 1024), 4);  // two trajectories of 4 MiB each
  EXPECT_EQ(taken(100'000, 4096), 1);
}

TEST_F(ShadowTest, APairOfSeveralSamplesHasTheirPlan) {
  ShadowSampler sampler(1, batcher_, metrics_);
  const std::vector<float> inputs = {1, 2, 3, 4, 5, 6};
  sampler.Offer(model_, newton_, OwnedSampleInputs({.num_samples = 3, .inputs = inputs}), false);
  ASSERT_TRUE(WaitForText("deeppcr_shadow_runs_total{outcome=\"measured\"} 1\n"));
  ASSERT_EQ(fake_->comparisons().size(), 1u);
  EXPECT_THAT(fake_->comparisons()[0], ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(ShadowTest, ACallersTrajectoryHasNoPair) {
  ShadowSampler sampler(1, batcher_, metrics_);
  ResolvedOptions primary;
  primary.solver = "newton";
  primary.initial_guess = InitialGuess::kPrevious;

  sampler.Offer(model_, primary, NewSample(), false);

  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(fake_->comparisons().empty());
}

// ---- Ways back
OwnedBackwardSample NewBackwardSample() {
  OwnedBackwardSample sample;
  sample.samples = NewSample();
  sample.states.assign(9 * 4, 1.0f);
  sample.columns = 2;
  sample.of_outputs.assign(2 * 3, 1.0f);
  sample.by_inputs = true;
  return sample;
}

// A sampler that measures one pair of ways back, of a fake model that a test sets up before.
struct BackwardRig {
  BackwardRig() { fake->backward_limits_.emplace(); }

  // Returns the metrics once the pair has come to this outcome, and nothing runs any more.
  std::string Measure(const BackwardOptions& way, const std::string& outcome) {
    const auto model = std::make_shared<ServedModel>("m", 1, fake, metrics.ForModel("m", 1));
    sampler.OfferBack(model, {.solver = "newton", .num_steps = 8}, way, NewBackwardSample());
    const std::string wanted = "deeppcr_shadow_runs_total{outcome=\"" + outcome + "\"} 1\n";
    for (int i = 0; i < 2000 && metrics.Text().find(wanted) == std::string::npos; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    batcher.Shutdown();
    EXPECT_THAT(metrics.Text(), HasSubstr(wanted));
    return metrics.Text();
  }
  static std::string PairOf(const std::string& name, std::string_view way) {
    return "deeppcr_" + name + "{method=\"Gradient\",model=\"m\",solver=\"" + std::string(way) +
           "\",version=\"1\"} ";
  }

  Metrics metrics{{"sequential", "newton"}, "v", "d", "b"};
  Batcher batcher{{.schedule = {.workers = 1}}};
  std::shared_ptr<FakeModel> fake = std::make_shared<FakeModel>();
  ShadowSampler sampler{1, batcher, metrics};
};

TEST(BackwardShadowTest, PairsEitherWayWithTheOther) {
  const auto s = BackwardWay::kSequential, p = BackwardWay::kParallel;
  for (const BackwardWay way : {s, p}) {
    BackwardRig rig;
    rig.fake->back_value = 3;
    const std::string text = rig.Measure({.way = way, .shooting_interval = 4}, "measured");
    EXPECT_THAT(text, HasSubstr(rig.PairOf("speedup_ratio_count", ToString(way)) + "1\n"));
    EXPECT_THAT(text, HasSubstr(rig.PairOf("shadow_relative_error_count", ToString(way)) + "1\n"));
    EXPECT_THAT(text, HasSubstr(rig.PairOf("shadow_relative_error_sum", ToString(way)) + "0\n"));
    // Both ways, once to warm up and once for the time.
    std::vector<BackwardWay> ways;
    for (const auto& run : rig.fake->ways_back()) {
      ways.push_back(run.options.way);
      EXPECT_THAT(run.samples, ElementsAre(1));
    }
    EXPECT_THAT(ways, ElementsAre(s, p, s, p));
    EXPECT_EQ(rig.fake->ways_back()[1].options.shooting_interval, way == p ? 4 : 3)
        << "that of the request, or the root of 8 steps";
  }
}

TEST(BackwardShadowTest, ADifferenceIsRelativeToTheSequentialGradient) {
  BackwardRig rig;
  rig.fake->back_value = 4;
  rig.fake->parallel_excess = 1;
  EXPECT_THAT(rig.Measure({}, "measured"),
              HasSubstr(rig.PairOf("shadow_relative_error_sum", "sequential") + "0.25\n"));
}

TEST(BackwardShadowTest, GradientsThatAreNotFiniteOrNotThereAreNoneToCompare) {
  const std::pair<const char*, std::function<void(FakeModel*)>> faults[] = {
      {"failed", [](auto* fake) { fake->back_value = std::numeric_limits<float>::infinity(); }},
      {"failed", [](auto* fake) { fake->back_status = absl::UnavailableError("no device"); }},
      {"failed", [](auto* fake) { fake->backward_limits_->parallel = false; }},
      {"interrupted", [](auto* fake) { fake->backward_limits_.reset(); }}};
  for (const auto& [outcome, fault] : faults) {
    BackwardRig rig;
    fault(rig.fake.get());
    EXPECT_THAT(rig.Measure({}, outcome), ::testing::Not(HasSubstr("deeppcr_speedup_ratio_count")));
  }
}

TEST(BackwardShadowTest, TakesTheFirstSampleOfARequest) {
  const std::vector<float> inputs = {1, 2, 3, 4}, states = {5, 6, 7, 8}, seeds = {9, 10, 11, 12};
  std::vector<float> gradients(4);
  BackwardItem item{.samples = {.num_samples = 2, .inputs = inputs},
                    .states = states,
                    .columns = 2,
                    .of_outputs = seeds,
                    .inputs = gradients};
  const OwnedBackwardSample first = FirstOf(item);
  EXPECT_THAT(first.samples.View().inputs, ElementsAre(1, 2));
  EXPECT_EQ(first.samples.View().num_samples, 1);
  EXPECT_THAT(first.states, ElementsAre(5, 6));
  EXPECT_THAT(first.of_outputs, ElementsAre(9, 10));
  EXPECT_TRUE(first.of_final.empty());
  EXPECT_EQ(first.columns, 2);
  EXPECT_TRUE(first.by_inputs);
}

}  // namespace
}  // namespace deeppcr::testing
