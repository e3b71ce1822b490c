// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/calibration.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/reference/reference_ops.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

constexpr int64_t kDim = 4;
constexpr int64_t kNoLimit = int64_t{1} << 30;

RandomSystem LinearSystem(int64_t steps) {
  return RandomSystem({.num_steps = steps,
                       .state_dim = kDim,
                       .activation = Activation::kIdentity,
                       .gain = 1.0,
                       .bias = 0.5,
                       .input_dim = 6,
                       .seed = 3});
}

SolverRig Rig(const RandomSystem& system) {
  return SolverRig(BackendCases().back().create(), system.spec());  // the reference: no rounding
}

// The constant of the true affine map z_0 -> z_l, then the images of the unit vectors, [D + 1, D].
std::vector<double> TrueMap(const DenseStackSpec& spec, int64_t l) {
  std::vector<double> map;
  for (int64_t k = 0; k <= kDim; ++k) {
    std::vector<double> z0(kDim);
    if (k > 0) z0[k - 1] = 1;
    const std::vector<double> states = reference::Trajectory(spec, z0);
    for (int64_t i = 0; i < kDim; ++i) map.push_back(states[l * kDim + i] - (k > 0 ? map[i] : 0.0));
  }
  return map;
}

TEST(SyntheticInputsTest, AreTheSameEveryTime) {
  const CalibrationInputs a = SyntheticInputs(100, 7), b = SyntheticInputs(100, 7);
  EXPECT_EQ(a.count, 100);
  EXPECT_EQ(a.values.size(), 700U);
  EXPECT_EQ(a.values, b.values);
  // The first numbers of the generator must never change: plans and guesses depend on them.
  const CalibrationInputs fewer = SyntheticInputs(50, 7);
  EXPECT_TRUE(std::equal(fewer.values.begin(), fewer.values.end(), a.values.begin()));
}

TEST(SyntheticInputsTest, LookStandardNormal) {
  const CalibrationInputs inputs = SyntheticInputs(20000, 5);
  const double n = static_cast<double>(inputs.values.size());
  double mean = 0, variance = 0, within = 0;
  for (const float x : inputs.values) {
    ASSERT_TRUE(std::isfinite(x));
    mean += x / n;
    variance += x * x / n;
    within += (std::fabs(x) < 1) / n;
  }
  // Five standard errors of 100000 draws.
  EXPECT_NEAR(mean, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(variance, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(within, 0.6827, 5 * std::sqrt(0.6827 * 0.3173 / n));
}

TEST(CalibrationInputsTest, SamplesRepeatBeyondTheirNumber) {
  const CalibrationInputs inputs = {.values = {1, 2, 3, 4, 5, 6}, .count = 3};
  EXPECT_EQ(inputs.Sample(1, 2)[0], 3);
  EXPECT_EQ(inputs.Sample(5, 2)[1], 6);
  EXPECT_EQ(inputs.Sample(5, 2).size(), 2U);
}

TEST(FitAffineGuessTest, ReproducesALinearSystem) {
  const RandomSystem system = LinearSystem(9);
  const SolverRig rig = Rig(system);
  const auto guess = FitAffineGuess(rig.runner(), SyntheticInputs(200, 6), kNoLimit).value();
  EXPECT_EQ(guess.stride, 1);
  ASSERT_EQ(guess.count, 9);
  ASSERT_EQ(guess.coefficients.size(), static_cast<size_t>(9 * (kDim + 1) * kDim));
  for (int64_t l = 1; l <= 9; ++l) {
    const std::vector<double> want = TrueMap(system.spec(), l);
    for (int64_t i = 0; i < (kDim + 1) * kDim; ++i)  // off by the ridge of 1e-6 and by rounding
      EXPECT_NEAR(guess.coefficients[(l - 1) * (kDim + 1) * kDim + i], want[i], 2e-5)
          << "step " << l << " coefficient " << i;
  }
}

TEST(FitAffineGuessTest, FitsEveryFewStepsWhereMemoryIsShort) {
  const RandomSystem system = LinearSystem(10);
  const SolverRig rig = Rig(system);
  constexpr int64_t kBytesPerStep = (kDim + 1) * kDim * int64_t{sizeof(float)};
  struct Case {
    int64_t steps_that_fit, stride, count;
  };
  for (const Case& c :
       {Case{10, 1, 10}, Case{9, 2, 5}, Case{5, 2, 5}, Case{4, 4, 3}, Case{1, 16, 1}}) {
    const auto guess =
        FitAffineGuess(rig.runner(), SyntheticInputs(100, 6), c.steps_that_fit * kBytesPerStep);
    ASSERT_TRUE(guess.ok()) << guess.status();
    EXPECT_EQ(guess->stride, c.stride) << c.steps_that_fit;
    EXPECT_EQ(guess->count, c.count) << c.steps_that_fit;
    // The last map is fitted at the last step.
    const std::vector<double> want = TrueMap(system.spec(), 10);
    const float* last = guess->coefficients.data() + (guess->count - 1) * (kDim + 1) * kDim;
    for (int64_t i = 0; i < (kDim + 1) * kDim; ++i) EXPECT_NEAR(last[i], want[i], 2e-5);
  }
}

TEST(FitAffineGuessTest, LeavesTheFirstInputsOut) {
  const RandomSystem system = LinearSystem(3);
  const SolverRig rig = Rig(system);
  CalibrationInputs inputs = SyntheticInputs(40, 6);
  const auto all = FitAffineGuess(rig.runner(), inputs, kNoLimit).value();
  CalibrationInputs more{.values = std::vector<float>(10 * 6, 3e38F), .count = 50};
  more.values.insert(more.values.end(), inputs.values.begin(), inputs.values.end());
  const auto rest = FitAffineGuess(rig.runner(), more, kNoLimit, nullptr, 10).value();
  EXPECT_EQ(rest.coefficients, all.coefficients);
  ExpectError(FitAffineGuess(rig.runner(), more, kNoLimit, nullptr, 45),
              absl::StatusCode::kFailedPrecondition, "5 usable inputs, needs at least 6");
}

// The equations in double, the coefficients and a trajectory.
TEST(FitAffineGuessTest, SaysWhatItTakes) {
  const SystemShape shape{.num_steps = 9, .state_dim = kDim};
  const int64_t coefficients = 9 * (kDim + 1) * kDim;
  const int64_t all = FittingBytes(shape, 4 * coefficients);
  EXPECT_EQ(all, 8 * ((kDim + 1) * (kDim + 1) + coefficients) + 4 * (coefficients + 10 * kDim));
  EXPECT_LT(FittingBytes(shape, 4 * coefficients - 1), all) << "a guess at every other step";
}

TEST(FitAffineGuessTest, NeedsMoreInputsThanUnknowns) {
  const RandomSystem system = LinearSystem(3);
  const SolverRig rig = Rig(system);
  ExpectError(FitAffineGuess(rig.runner(), SyntheticInputs(kDim + 1, 6), kNoLimit),
              absl::StatusCode::kFailedPrecondition, "5 usable inputs, needs at least 6");
  EXPECT_TRUE(FitAffineGuess(rig.runner(), SyntheticInputs(kDim + 2, 6), kNoLimit).ok());
}

TEST(FitAffineGuessTest, LeavesOutInputsThatOverflow) {
  const RandomSystem system = LinearSystem(3);
  // This backend computes in float, where 3e38 overflows.
  const SolverRig rig(BackendCases().front().create(), system.spec());
  CalibrationInputs inputs = SyntheticInputs(40, 6);
  for (int64_t i = 0; i < 34 * 6; ++i) inputs.values[i] = 3e38F;
  const auto guess = FitAffineGuess(rig.runner(), inputs, kNoLimit);
  ASSERT_TRUE(guess.ok()) << guess.status();  // six are left
  const std::vector<double> want = TrueMap(system.spec(), 1);
  for (int64_t i = 0; i < (kDim + 1) * kDim; ++i)
    EXPECT_NEAR(guess->coefficients[i], want[i], 1e-3);
  for (int64_t i = 0; i < 6; ++i) inputs.values[34 * 6 + i] = 3e38F;
  ExpectError(FitAffineGuess(rig.runner(), inputs, kNoLimit), absl::StatusCode::kFailedPrecondition,
              "5 usable inputs");
}

}  // namespace
}  // namespace deeppcr::testing
