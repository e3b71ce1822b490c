// SPDX-License-Identifier: Apache-2.0
#include "kernels/training/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/training/schedule.h"

namespace deeppcr::training {
namespace {

ParameterLayout Layout(int64_t layers = 3, int64_t dim = 4) {
  return ParameterLayout::Of({.model_type = "mlp",
                              .input_dim = 2,
                              .output_dim = 2,
                              .state_dim = dim,
                              .num_layers = layers,
                              .activation = Activation::kTanh})
      .value();
}

std::vector<float> Normals(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& x : values) x = normal(random);
  return values;
}

// One element's history in double, by the formulas of PyTorch's documentation.
struct Plain {
  double x, first = 0, second = 0;
  int t = 0;
  void Step(const OptimizerOptions& o, double g, double rate, bool bias) {
    const double decay = bias ? 0 : o.weight_decay;
    ++t;
    if (o.kind == OptimizerKind::kSgd) {
      g += decay * x;
      first = t == 1 ? g : o.momentum * first + g;
      x -= rate * first;
      return;
    }
    if (o.kind == OptimizerKind::kAdam) g += decay * x;
    if (o.kind == OptimizerKind::kAdamW) x -= rate * decay * x;
    first = o.beta1 * first + (1 - o.beta1) * g;
    second = o.beta2 * second + (1 - o.beta2) * g * g;
    const double mean = first / (1 - std::pow(o.beta1, t));
    x -= rate * mean / (std::sqrt(second / (1 - std::pow(o.beta2, t))) + o.epsilon);
  }
};

class OptimizerTest : public ::testing::TestWithParam<OptimizerKind> {};

TEST_P(OptimizerTest, FollowsTheFormulasInDouble) {
  const ParameterLayout layout = Layout();
  for (const double clip : {0.0, 2.0}) {
    const OptimizerOptions options = {.kind = GetParam(), .weight_decay = 0.1, .clip_norm = clip};
    Optimizer optimizer(layout, options, Normals(layout.size(), 1));
    std::vector<Plain> plain;
    for (const float x : optimizer.state().parameters) plain.push_back({.x = x});
    ThreadPool pool(2);
    for (uint64_t step = 0; step < 20; ++step) {
      const std::vector<float> gradient = Normals(layout.size(), step + 2);
      const double norm = Optimizer::NormOf(gradient);
      ASSERT_GT(norm, 2.0);
      ASSERT_TRUE(optimizer.Update(gradient, norm, 0.01, pool));
      for (const ParameterTensor& tensor : layout.tensors())
        for (int64_t i = tensor.offset; i < tensor.offset + tensor.size; ++i)
          plain[i].Step(options, gradient[i] * (clip > 0 ? clip / norm : 1), 0.01,
                        tensor.name.ends_with(".bias"));
    }
    for (size_t i = 0; i < plain.size(); ++i)
      EXPECT_NEAR(optimizer.state().parameters[i], plain[i].x, 4e-6) << i;
  }
}

TEST_P(OptimizerTest, LeavesEverythingAsItIsWhereAGradientIsNotFinite) {
  const ParameterLayout layout = Layout();
  Optimizer optimizer(layout, {.kind = GetParam()}, Normals(layout.size(), 1));
  ThreadPool pool(1);
  std::vector<float> gradient = Normals(layout.size(), 2);
  ASSERT_TRUE(optimizer.Update(gradient, Optimizer::NormOf(gradient), 0.1, pool));
  const OptimizerState before = optimizer.state();
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(), 1e30F};
  for (const float value : bad) {
    gradient[layout.size() - 1] = value;
    EXPECT_FALSE(optimizer.Update(gradient, Optimizer::NormOf(gradient), 0.1, pool)) << value;
    EXPECT_EQ(optimizer.state().parameters, before.parameters);
    EXPECT_EQ(optimizer.state().first, before.first);
    EXPECT_EQ(optimizer.state().second, before.second);
    EXPECT_EQ(optimizer.state().updates, before.updates);
  }
}

TEST_P(OptimizerTest, LeavesEverythingAsItIsWhereParametersWouldOverflow) {
  const ParameterLayout layout = Layout();
  Optimizer optimizer(layout, {.kind = GetParam()}, Normals(layout.size(), 1));
  const OptimizerState before = optimizer.state();
  ThreadPool pool(1);
  const std::vector<float> gradient(layout.size(), 1e3F);
  EXPECT_FALSE(optimizer.Update(gradient, Optimizer::NormOf(gradient), 1e38, pool));
  EXPECT_EQ(optimizer.state().parameters, before.parameters);
  EXPECT_EQ(optimizer.state().first, before.first);
}

// As many pieces of work as a large model has.
TEST_P(OptimizerTest, GivesTheSameBitsWithAnyNumberOfThreads) {
  const ParameterLayout layout = Layout(300, 16);
  std::vector<float> first;
  for (const int threads : {1, 2, 5}) {
    Optimizer optimizer(layout, {.kind = GetParam(), .weight_decay = 0.1, .clip_norm = 1},
                        Normals(layout.size(), 1));
    ThreadPool pool(threads);
    for (uint64_t step = 0; step < 3; ++step) {
      const std::vector<float> gradient = Normals(layout.size(), step + 2);
      ASSERT_TRUE(optimizer.Update(gradient, Optimizer::NormOf(gradient), 0.01, pool));
    }
    if (first.empty()) first = optimizer.state().parameters;
    EXPECT_EQ(optimizer.state().parameters, first) << threads;
  }
}

// Rounding would keep the smallest floats for ever, with which many processors are slow.
TEST_P(OptimizerTest, TheMomentumOfWhatGetsNoGradientBecomesZero) {
  const ParameterLayout layout = Layout();
  Optimizer optimizer(layout, {.kind = GetParam()}, Normals(layout.size(), 1));
  ThreadPool pool(1);
  std::vector<float> gradient = Normals(layout.size(), 2);
  for (int step = 0; step < 1000; ++step) {
    ASSERT_TRUE(optimizer.Update(gradient, Optimizer::NormOf(gradient), 1e-4, pool));
    std::ranges::fill(gradient, 0.0F);
  }
  EXPECT_EQ(optimizer.state().first, std::vector<float>(layout.size()));
}

INSTANTIATE_TEST_SUITE_P(Kinds, OptimizerTest,
                         ::testing::Values(OptimizerKind::kSgd, OptimizerKind::kAdam,
                                           OptimizerKind::kAdamW),
                         [](const auto& test) { return std::string(ToString(test.param)); });

// The squares of what decays are beyond float, by which the parameters would stay as they are.
TEST(OptimizerAdamTest, LeavesEverythingAsItIsWhereMomentsWouldOverflow) {
  const ParameterLayout layout = Layout();
  Optimizer optimizer(layout, {.kind = OptimizerKind::kAdam, .weight_decay = 1e25},
                      Normals(layout.size(), 1));
  const OptimizerState before = optimizer.state();
  ThreadPool pool(1);
  const std::vector<float> gradient = Normals(layout.size(), 2);
  EXPECT_FALSE(optimizer.Update(gradient, Optimizer::NormOf(gradient), 1e-3, pool));
  EXPECT_EQ(optimizer.state().parameters, before.parameters);
  EXPECT_EQ(optimizer.state().first, before.first);
  EXPECT_EQ(optimizer.state().second, before.second);
  EXPECT_EQ(optimizer.state().updates, 0);
}

TEST(OptimizerNormTest, IsThatOfTheWholeVector) {
  EXPECT_EQ(Optimizer::NormOf(std::vector<float>(9, 2.0F)), 6.0);
  EXPECT_EQ(Optimizer::NormOf({}), 0.0);
  // Its squares are beyond float.
  EXPECT_DOUBLE_EQ(Optimizer::NormOf(std::vector<float>{3e30F, 4e30F}),
                   std::hypot(double{3e30F}, double{4e30F}));
}

TEST(ScheduleTest, RisesInALineAndFallsAlongACosine) {
  const Schedule schedule = {.peak = 2, .warmup_steps = 4, .cosine = true, .floor = 0.1};
  EXPECT_EQ(LearningRate(schedule, 0, 104), 0.5);
  EXPECT_EQ(LearningRate(schedule, 3, 104), 2);
  EXPECT_EQ(LearningRate(schedule, 4, 104), 2);
  EXPECT_NEAR(LearningRate(schedule, 54, 104), 1.1, 1e-12);  // half way
  EXPECT_NEAR(LearningRate(schedule, 103, 104), 0.2 + 1.8 * 0.5 * (1 - std::cos(M_PI / 100)),
              1e-12);
}

TEST(ScheduleTest, StaysAtThePeakWithoutACosine) {
  const Schedule schedule = {.peak = 2, .warmup_steps = 2, .cosine = false};
  EXPECT_EQ(LearningRate(schedule, 0, 10), 1);
  for (const int64_t step : {1, 2, 9}) EXPECT_EQ(LearningRate(schedule, step, 10), 2);
}

TEST(ScheduleTest, MayEndWithItsWarmUp) {
  const Schedule schedule = {.peak = 1, .warmup_steps = 3};
  EXPECT_EQ(LearningRate(schedule, 2, 3), 1);
  EXPECT_EQ(LearningRate(schedule, 3, 4), 1);
}

}  // namespace
}  // namespace deeppcr::training
