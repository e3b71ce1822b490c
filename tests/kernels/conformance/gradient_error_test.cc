// SPDX-License-Identifier: Apache-2.0
// What a trajectory that is right to its tolerance makes of a gradient, estimated and found: over
// the systems that attack the certificate, which no estimate was made for.
#include "kernels/solver/gradient_error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/solver/backward_runner.h"
#include "tests/testing/backward_rig.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/stack_attack.h"

namespace deeppcr::testing {
namespace {

constexpr double kRounding = 1e-5;  // of the way back itself, in float32

int64_t WantedGradients() {
  const char* text = std::getenv("DEEPPCR_TEST_GRADIENTS");
  return text == nullptr ? 2000 : std::atoll(text);
}

// One gradient by z_0, of a random weighing of the outputs, at given states.
class GradientRig {
 public:
  explicit GradientRig(const StackAttack& attack, uint64_t seed)
      : attack_(attack), rig_(*cpu::NewCpuBackend(), attack.spec()) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    of_outputs_.resize(attack.state_dim);
    for (float& x : of_outputs_) x = normal(random);
    runner_ =
        BackwardRunner::Create(rig_.system(), rig_.shape(), {.samples = 4}, &pool_, 1).value();
  }

  std::vector<float> At(const std::vector<float>& states) {
    std::vector<float> gradient(attack_.state_dim);
    BackwardItem item = ItemAt(states, &gradient);
    EXPECT_TRUE(runner_->Run({}, {&item, 1}).ok());
    return gradient;
  }
  std::optional<double> ErrorAt(const std::vector<float>& states, std::vector<float> gradient,
                                const StateError& state_error) {
    return Estimate(ItemAt(states, &gradient), state_error).value().front();
  }
  std::optional<double> ErrorOfUnknown(const std::vector<float>& states,
                                       std::vector<float> gradient) {
    return Estimate(ItemAt(states, &gradient), std::nullopt).value().front();
  }
  // Puts a NaN into a displaced gradient from here on; -1: into none.
  void Spoil(int displacement, size_t element) {
    spoiled_ = displacement;
    element_ = element;
  }
  absl::Status StatusWith(const std::vector<float>& states, std::vector<float> gradient,
                          const CancelToken* token) {
    BackwardItem item = ItemAt(states, &gradient);
    item.token = token;
    return Estimate(item, StateError{.relative = 1e-4}).status();
  }

 private:
  absl::StatusOr<std::vector<std::optional<double>>> Estimate(
      const BackwardItem& item, const std::optional<StateError>& state_error) {
    const std::optional<StateError> errors[] = {state_error};
    return EstimateGradientErrors(
        rig_.shape().state_dim, item, errors, [&](std::span<BackwardItem> items) {
          const absl::Status status = runner_->Run({}, items);
          if (spoiled_ >= 0)
            items[0].initial[spoiled_ * attack_.state_dim + static_cast<int64_t>(element_)] = NAN;
          return status;
        });
  }
  BackwardItem ItemAt(const std::vector<float>& states, std::vector<float>* gradient) {
    return {.samples = {.num_samples = 1, .inputs = attack_.inputs},
            .states = states,
            .of_outputs = of_outputs_,
            .initial = *gradient,
            .reports = reports_};
  }

  const StackAttack& attack_;
  const BackwardRig rig_;
  ThreadPool pool_{1};
  std::unique_ptr<BackwardRunner> runner_;
  std::vector<float> of_outputs_;
  std::vector<BackwardReport> reports_ = std::vector<BackwardReport>(1);
  int64_t spoiled_ = -1;
  size_t element_ = 0;
};

// NaN where one of the numbers is.
double Largest(std::span<const float> a) {
  double largest = 0;
  for (const float x : a)
    if (!(std::fabs(x) <= largest)) largest = std::isnan(largest) ? largest : std::fabs(double{x});
  return largest;
}
double Apart(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> apart(a.size());
  for (size_t i = 0; i < a.size(); ++i) apart[i] = a[i] - b[i];
  return Largest(apart);
}

TEST(GradientErrorTest, BoundsWhatIsFound) {
  struct Row {
    int64_t gradients = 0, absent = 0, close = 0;
    double worst = 0;
  };
  std::map<std::string, Row> rows;
  int64_t gradients = 0;
  for (uint64_t seed = 0; gradients < WantedGradients(); ++seed) {
    StackAttack attack = DrawStackAttack(seed);
    const SolverRig rig = RigOf(&attack);
    const Solved sequential = rig.Solve({.solver = "sequential"}, attack.inputs);
    if (!sequential.reports[0].converged) continue;
    const Solved solved = rig.Solve(
        attack.options,
        SampleInputs{.num_samples = 1, .inputs = attack.inputs, .initial_states = attack.previous});
    if (!solved.reports[0].error_estimate.has_value()) continue;
    GradientRig back(attack, seed);
    const std::vector<float> exact = back.At(sequential.trajectory);
    const std::vector<float> gradient = back.At(solved.trajectory);
    if (!std::isfinite(Largest(exact)) || !std::isfinite(Largest(gradient))) continue;
    Row& row = rows[attack.family];
    ++row.gradients;
    ++gradients;
    const std::optional<double> estimate =
        back.ErrorAt(solved.trajectory, gradient,
                     {.relative = *solved.reports[0].error_estimate,
                      .floor = attack.options.atol / attack.options.rtol});
    if (!estimate.has_value()) {
      ++row.absent;
      continue;
    }
    const double found = Apart(gradient, exact) / Largest(gradient);
    row.worst = std::max(row.worst, found / (*estimate + kRounding));
    EXPECT_LE(found, *estimate + kRounding) << "attack " << seed << ": " << attack.family;
    row.close += *estimate <= 100 * found + kRounding ? 1 : 0;
  }
  std::printf("%-28s %9s %8s %8s %12s\n", "family", "gradients", "absent", "close*", "worst share");
  for (const auto& [family, row] : rows)
    std::printf("%-28s %9lld %8lld %8lld %12.2f\n", family.c_str(),
                static_cast<long long>(row.gradients), static_cast<long long>(row.absent),
                static_cast<long long>(row.close), row.worst);
  std::printf("*: at most a hundred times what was found, and rounding\n");
}

// Trajectories with errors all of which are as large as they may be, in random directions.
struct Followed {
  int64_t gradients = 0;   // of which something is said
  int64_t beyond = 0;      // of what is said of the size of the error
  int64_t far_beyond = 0;  // of what is said of a hundredth of that size
  double worst = 0;        // what was found, in units of what is said and rounding
};
Followed FollowErrors(bool smooth, double error, int64_t wanted) {
  Followed all;
  for (uint64_t seed = 0; all.gradients < wanted; ++seed) {
    StackAttack attack = DrawStackAttack(5000000 + seed, "newton", 1e-3);
    if (attack.smooth() != smooth) continue;
    const SolverRig rig = RigOf(&attack);
    const Solved sequential = rig.Solve({.solver = "sequential"}, attack.inputs);
    if (!sequential.reports[0].converged) continue;
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> states = sequential.trajectory;
    for (int64_t l = 1; l <= attack.num_steps; ++l) {
      const std::span<float> z = std::span(states).subspan(l * attack.state_dim, attack.state_dim);
      const auto size = static_cast<float>(error * Largest(z));
      for (float& x : z) x += uniform(random) * size;
    }
    GradientRig back(attack, seed);
    const std::vector<float> exact = back.At(sequential.trajectory), gradient = back.At(states);
    const std::optional<double> estimate = back.ErrorAt(states, gradient, {.relative = error});
    const std::optional<double> small = back.ErrorAt(states, gradient, {.relative = error / 100});
    if (!estimate.has_value() || !small.has_value()) continue;
    ++all.gradients;
    const double found = Apart(gradient, exact) / Largest(gradient);
    all.beyond += found <= *estimate + kRounding ? 0 : 1;
    all.far_beyond += found <= *small + kRounding ? 0 : 1;
    all.worst = std::max(all.worst, found / (*estimate + kRounding));
  }
  std::printf("%s, error %g: %lld of %lld beyond, the worst by %.3g; %lld of a hundredth\n",
              smooth ? "smooth" : "kinked", error, static_cast<long long>(all.beyond),
              static_cast<long long>(all.gradients), all.worst,
              static_cast<long long>(all.far_beyond));
  return all;
}

// What is said bounds what errors do to 99 gradients of 100, and to none of these by more than a
// factor of 2; what is said of a hundredth of their size does not.
TEST(GradientErrorTest, FollowsTheErrorOfTheStates) {
  const Followed smooth = FollowErrors(true, 1e-3, 400);
  EXPECT_LE(100 * smooth.beyond, smooth.gradients);
  EXPECT_LE(smooth.worst, 2);
  EXPECT_GT(smooth.far_beyond, smooth.gradients / 2);
}

// Of many gradients some are beyond, by whatever factor: it is no bound. Kinks that errors have
// crossed show almost as often as curvature does.
TEST(GradientErrorTest, IsSeldomWrong) {
  const int64_t wanted = std::max<int64_t>(400, WantedGradients() / 20);
  EXPECT_LE(200 * FollowErrors(true, 1e-3, wanted).beyond, wanted);
  EXPECT_LE(200 * FollowErrors(false, 1e-3, wanted).beyond, wanted);
  EXPECT_LE(200 * FollowErrors(false, 1e-5, wanted).beyond, wanted);
}

TEST(GradientErrorTest, ANumberThatIsNoneIsNothingKnown) {
  const StackAttack attack = DrawStackAttack(3, "newton", 1e-4);
  const SolverRig rig(*cpu::NewCpuBackend(), attack.spec());
  const std::vector<float> states = rig.Solve({.solver = "sequential"}, attack.inputs).trajectory;
  GradientRig back(attack, 1);
  const std::vector<float> gradient = back.At(states);
  ASSERT_TRUE(back.ErrorAt(states, gradient, {.relative = 1e-4}).has_value());
  for (size_t i = 0; i < gradient.size(); ++i) {
    std::vector<float> other = gradient;
    other[i] = NAN;
    EXPECT_EQ(back.ErrorAt(states, other, {.relative = 1e-4}), std::nullopt) << i;
    // One of the displaced gradients, in the place of any of its elements.
    for (int d = 0; d < kDisplacements; ++d) {
      back.Spoil(d, i);
      EXPECT_EQ(back.ErrorAt(states, gradient, {.relative = 1e-4}), std::nullopt) << i;
    }
    back.Spoil(-1, 0);
  }
}

TEST(GradientErrorTest, SaysNothingWhereNothingIsKnown) {
  const StackAttack attack = DrawStackAttack(3, "newton", 1e-4);
  const SolverRig rig(*cpu::NewCpuBackend(), attack.spec());
  const std::vector<float> states = rig.Solve({.solver = "sequential"}, attack.inputs).trajectory;
  GradientRig back(attack, 1);
  const std::vector<float> gradient = back.At(states);
  ASSERT_GT(Largest(gradient), 1e-6);
  EXPECT_EQ(back.ErrorAt(states, gradient, {}), 0);
  EXPECT_EQ(back.ErrorAt(states, gradient, {.relative = 1e6}), std::nullopt);
  // A gradient that vanished has no digits that could be right.
  EXPECT_EQ(back.ErrorAt(states, std::vector<float>(gradient.size()), {.relative = 1e-4}),
            std::nullopt);
  EXPECT_EQ(back.ErrorAt(states, std::vector<float>(gradient.size(), 1e-40F), {.relative = 1e-4}),
            std::nullopt);
  EXPECT_EQ(back.ErrorOfUnknown(states, gradient), std::nullopt);
}

TEST(GradientErrorTest, AFiredTokenIsAnError) {
  const StackAttack attack = DrawStackAttack(3, "newton", 1e-4);
  const SolverRig rig(*cpu::NewCpuBackend(), attack.spec());
  const std::vector<float> states = rig.Solve({.solver = "sequential"}, attack.inputs).trajectory;
  GradientRig back(attack, 1);
  CancelToken token;
  token.Cancel();
  EXPECT_TRUE(absl::IsCancelled(back.StatusWith(states, back.At(states), &token)));
}

}  // namespace
}  // namespace deeppcr::testing
