// SPDX-License-Identifier: Apache-2.0
// The diffusion family that the reference backend uses: encoded samples, noise, coarse
// trajectories.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "kernels/problem/philox.h"
#include "kernels/reference/diffusion_ops.h"
#include "kernels/reference/recurrence.h"
#include "kernels/reference/reference_backend.h"
#include "tests/kernels/reference/mutable_diffusion.h"
#include "tests/testing/larger.h"

namespace deeppcr {
namespace {

using reference::Family;
using reference::Recurrence;
using Vector = std::vector<double>;

std::vector<Vector> Trajectory(const Family& family, const Recurrence& recurrence) {
  std::vector<Vector> states = {recurrence.Initial()};
  for (int64_t l = 1; l <= family.shape.num_steps; ++l)
    states.push_back(recurrence.Step(l, states.back()));
  return states;
}

TEST(DiffusionFamilyTest, OwnsItsNumbers) {
  auto random = std::make_unique<MutableDiffusion>(
      DiffusionSizes{.kind = DenoiserKind::kAdaLnMlp, .dim = 3, .width = 4});
  random->TakeClasses(2);
  auto layers = std::make_unique<std::vector<DenseSpec>>(2, random->Dense(3, 3));
  random->spec().decoder = *layers;
  const auto family = reference::NewFamily(random->spec());
  const SampleInput input = {.label = 1, .seed = 3};
  const auto before = Trajectory(*family, *family->Encode(input));
  const Vector answer = family->Decode(before.back());
  EXPECT_EQ(family->shape.num_classes, 2);
  EXPECT_EQ(family->shape.output_dim, 3);
  EXPECT_TRUE(family->shape.draws_noise);
  // 4 steps; 4 rows of 4; input, output, modulation; 2 blocks of 2 (16 + 4) + 2 * 4; classes; 2
  // layers of 12.
  const int64_t floats = (12 + 4) + (12 + 3) + 32 * 5 + 2 * 48 + 8 + 24;
  EXPECT_EQ(family->memory_bytes(),
            4 * int64_t{sizeof(ReverseStep)} + 16 * int64_t{sizeof(double)} + floats * 4);

  random->Spoil();
  *layers = {};
  random.reset();
  EXPECT_EQ(Trajectory(*family, *family->Encode(input)), before);
  EXPECT_EQ(family->Decode(before.back()), answer);
}

TEST(DiffusionFamilyTest, StepsTakeTheirOwnRows) {
  MutableDiffusion random({.dim = 2});
  random.TakeClasses(3);
  const DiffusionSpec& spec = random.spec();
  const auto family = reference::NewFamily(spec);
  const std::vector<float> z0 = {0.5F, -1}, noise = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto sample =
      family->Encode({.label = 2, .initial_noise = z0.data(), .step_noise = noise.data()});
  EXPECT_EQ(sample->Initial(), (Vector{0.5, -1}));
  const Vector condition = reference::Condition(spec, nullptr, 2), z = random.State();
  for (int64_t l = 1; l <= 4; ++l) {
    const auto row = std::span(noise).subspan((l - 1) * 2, 2);
    EXPECT_EQ(sample->Step(l, z), reference::Step(spec, l - 1, condition, row, z));
    EXPECT_EQ(sample->StepJacobian(l, z), reference::StepJacobian(spec, l - 1, condition, z));
  }
}

TEST(DiffusionFamilyTest, DrawsTheNoiseThatIsNotGiven) {
  constexpr int64_t kDim = 5, kSteps = 4;
  MutableDiffusion random({.dim = kDim, .steps = kSteps});
  const auto family = reference::NewFamily(random.spec());
  const std::vector<float> vector = {0.3F, 1};
  const SampleInput drawn = {.inputs = vector.data(), .seed = 11, .sample = 7};
  std::vector<float> z0(kDim), noise(kSteps * kDim);
  FillNormals(11, 7, kInitialNoiseStep, kDim, z0.data());
  for (uint32_t i = 0; i < kSteps; ++i) FillNormals(11, 7, i, kDim, noise.data() + i * kDim);

  SampleInput given = {
      .inputs = vector.data(), .initial_noise = z0.data(), .step_noise = noise.data()};
  const auto states = Trajectory(*family, *family->Encode(drawn));
  EXPECT_EQ(states, Trajectory(*family, *family->Encode(given)));
  given = drawn;
  given.step_noise = noise.data();
  EXPECT_EQ(states, Trajectory(*family, *family->Encode(given)));
  given = drawn;
  given.sample = 8;
  EXPECT_NE(states, Trajectory(*family, *family->Encode(given)));
}

TEST(DiffusionFamilyTest, ServesThroughTheBackend) {
  MutableDiffusion random({.dim = 2});
  random.TakeClasses(2);
  std::vector<DenseSpec> layers = {random.Dense(3, 2)};
  random.spec().decoder = layers;
  const SampleInput input = {.label = 1, .seed = 3, .sample = 1};
  const auto family = reference::NewFamily(random.spec());
  const auto states = Trajectory(*family, *family->Encode(input));
  const auto system = reference::NewReferenceBackend()->NewSystem(random.spec()).value();
  const auto space = system->NewSpace({}).value();

  std::vector<float> trajectory(5 * 2), outputs(3);
  float* const trajectories[] = {trajectory.data()};
  space->Encode(0, input);
  space->Restart(1);
  EXPECT_EQ(space->Advance(1, 0, 4, trajectories), 4);
  space->Decode(0, outputs.data());
  for (size_t i = 0; i < trajectory.size(); ++i)
    EXPECT_EQ(trajectory[i], static_cast<float>(states[i / 2][i % 2])) << i;
  const Vector answer = family->Decode(states.back());
  for (size_t i = 0; i < outputs.size(); ++i)
    EXPECT_EQ(outputs[i], static_cast<float>(answer[i])) << i;
}

double Distance(const std::vector<Vector>& a, const std::vector<Vector>& b) {
  double largest = 0;
  for (size_t l = 0; l < a.size(); ++l)
    for (size_t k = 0; k < a[l].size(); ++k)
      largest = testing::Larger(largest, std::fabs(a[l][k] - b[l][k]) / (1 + std::fabs(b[l][k])));
  return largest;
}

TEST(DiffusionFamilyTest, CoarseTrajectoryOfFewStepsIsTheTrajectory) {
  for (const int64_t steps : {1, 2, 15, 16}) {
    MutableDiffusion random({.dim = 3, .steps = steps});
    random.TakeClasses(1);
    const auto family = reference::NewFamily(random.spec());
    const auto sample = family->Encode({.seed = 1});
    PassCount count = {.stages = 99, .columns = 99};
    const auto coarse = sample->CoarseTrajectory(&count);
    ASSERT_EQ(std::ssize(coarse), steps + 1);
    EXPECT_LT(Distance(coarse, Trajectory(*family, *sample)), 1e-10) << steps;
    EXPECT_EQ(count.stages, steps);
    EXPECT_EQ(count.columns, 1);
  }
}

// z_0 .. z_L with the denoised sample of every `stride`-th step held, element by element from the
// definition.
std::vector<Vector> HeldTrajectory(const DiffusionSpec& spec, const Vector& z0, int64_t stride,
                                   const std::vector<float>& noise) {
  const int64_t dim = spec.state_dim;
  const Vector condition(spec.denoiser.hidden_dim);
  std::vector<Vector> states = {z0};
  Vector held(dim);
  for (int64_t i = 0; i < spec.num_steps(); ++i) {
    const ReverseStep& s = spec.steps[i];
    Vector z = states.back();
    const Vector m = reference::Denoise(spec, i - i % stride, condition, z);
    for (int64_t k = 0; k < dim; ++k) {
      if (i % stride == 0) held[k] = s.x0_z * z[k] + s.x0_m * m[k];
      const double eps = (held[k] - s.x0_z * z[k]) / s.x0_m;
      const double x0 = std::min(std::max(held[k], -spec.clip_range), spec.clip_range);
      z[k] = s.z_z * z[k] + s.z_m * eps + s.z_x0 * x0 + s.sigma * double{noise[i * dim + k]};
    }
    states.push_back(z);
  }
  return states;
}

TEST(DiffusionFamilyTest, CoarseTrajectoryHoldsTheDenoisedSample) {
  struct Case {
    int64_t steps, stride, evaluations;
  };
  for (const Case c : {Case{17, 2, 9}, {32, 2, 16}, {33, 3, 11}, {100, 7, 15}}) {
    MutableDiffusion random({.dim = 2, .steps = c.steps});
    DiffusionSpec& spec = random.spec();
    spec.condition = {};
    for (int64_t i = 0; i < c.steps; i += 3) random.steps()[i].z_m = 0;
    std::vector<float> noise(c.steps * 2);
    for (float& x : noise) x = static_cast<float>(random.Normal());
    const std::vector<float> z0 = {0.25F, -1.5F};
    const auto family = reference::NewFamily(spec);
    const auto sample = family->Encode({.initial_noise = z0.data(), .step_noise = noise.data()});
    PassCount count;
    const auto coarse = sample->CoarseTrajectory(&count);
    ASSERT_EQ(std::ssize(coarse), c.steps + 1);
    EXPECT_LT(Distance(coarse, HeldTrajectory(spec, {0.25, -1.5}, c.stride, noise)), 1e-10)
        << c.steps;
    EXPECT_GT(Distance(coarse, Trajectory(*family, *sample)), 1e-3) << c.steps;
    EXPECT_EQ(count.stages, c.evaluations);
    EXPECT_EQ(count.columns, 1);
  }
}

// A step with z_m = 0 does not need the model's output, and may have x0_m = 0.
TEST(DiffusionFamilyTest, CoarseTrajectoryDividesOnlyWhereItMust) {
  MutableDiffusion random({.dim = 1, .steps = 20});
  random.TakeClasses(1);
  for (ReverseStep& step : random.steps()) step.x0_m = step.z_m = 0;
  const auto family = reference::NewFamily(random.spec());
  PassCount count;
  for (const Vector& z : family->Encode({})->CoarseTrajectory(&count))
    EXPECT_TRUE(std::isfinite(z[0]));
}

TEST(DiffusionFamilyTest, CoarseTrajectoryKeepsNan) {
  MutableDiffusion random({.dim = 2, .steps = 20});
  random.TakeClasses(1);
  const auto family = reference::NewFamily(random.spec());
  const std::vector<float> z0 = {NAN, 0};
  PassCount count;
  const auto states = family->Encode({.initial_noise = z0.data()})->CoarseTrajectory(&count);
  EXPECT_TRUE(std::isnan(states.back()[0]));
  EXPECT_TRUE(std::isnan(states.back()[1]));
}

}  // namespace
}  // namespace deeppcr
