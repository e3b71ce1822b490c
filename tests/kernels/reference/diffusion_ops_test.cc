// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/diffusion_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/reference/recurrence.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/reference/mutable_diffusion.h"
#include "tests/testing/larger.h"

namespace deeppcr {
namespace {

using Vector = std::vector<double>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// D = H = N = 1; h = 2 z + 1, m = 4 h - 2; the first block 1 - h + mu; mu = y / 4 + 1 / 2.
struct TinyResidual {
  const std::vector<float> w = {2, 1, 4, -2, -1, 1, 0.25F, 0.5F};
  const std::span<const float> numbers = w;
  const Vector time_embedding = {60, 0};
  const std::vector<ReverseStep> steps = std::vector<ReverseStep>(2);
  DiffusionSpec Spec() const {
    const auto layer = [&](int64_t at) -> DenseSpec {
      return {.rows = 1,
              .cols = 1,
              .weight = numbers.subspan(at, 1),
              .bias = numbers.subspan(at + 1, 1)};
    };
    return {.state_dim = 1,
            .steps = steps,
            .clip_range = kInfinity,
            .denoiser = {.hidden_dim = 1,
                         .num_blocks = 1,
                         .activation = Activation::kRelu,
                         .input = layer(0),
                         .output = layer(2),
                         .first_weight = numbers.subspan(4, 1),
                         .first_bias = numbers.subspan(5, 1),
                         .modulation = layer(6)},
            .time_embedding = time_embedding};
  }
};

TEST(DiffusionOpsTest, ResidualMlpByHand) {
  const TinyResidual tiny;
  const DiffusionSpec spec = tiny.Spec();
  // silu(60 + 40) is 100 in double: mu = 25.5. z = 3: h = 7, block 1 - 7 + 25.5 = 19.5, h = 26.5.
  EXPECT_EQ(reference::Denoise(spec, 0, Vector{40}, Vector{3}), (Vector{104}));
  // dm/dz = 4 (1 - 1) 2, the block being active.
  EXPECT_EQ(reference::DenoiseJacobian(spec, 0, Vector{40}, Vector{3}), (Vector{0}));
  // Step 1 has no time embedding: mu = 0.5, block relu(-5.5), h = 7.
  EXPECT_EQ(reference::Denoise(spec, 1, Vector{0}, Vector{3}), (Vector{26}));
  EXPECT_EQ(reference::DenoiseJacobian(spec, 1, Vector{0}, Vector{3}), (Vector{8}));
}

// D = 1, H = 2, N = 1. h = (3 z, z), so norm(h) = (+r, -r) with r = |z| / sqrt(z^2 + 1e-6), z > 0.
struct TinyAdaLn {
  const std::vector<float> input = {3, 1}, output = {1, 10}, first = {1, 2, 0, 1},
                           first_bias = {0, 5}, second = {1, 0, 3, 1}, second_bias = {0, 7},
                           norm_weight = {2, 3}, norm_bias = {1, -1},
                           no_weights = std::vector<float>(20);
  // Shift, scale and gate of the block; shift and scale of the last layer.
  const std::vector<float> mu = {10, 20, 0.5F, -0.5F, 2e-5F, -1e-5F, 0.25F, 100, 3, -2};
  const Vector time_embedding = {7, 8};
  const std::vector<ReverseStep> steps = std::vector<ReverseStep>(1);
  DiffusionSpec Spec() const {
    return {.state_dim = 1,
            .steps = steps,
            .clip_range = kInfinity,
            .denoiser = {.kind = DenoiserKind::kAdaLnMlp,
                         .hidden_dim = 2,
                         .num_blocks = 1,
                         .activation = Activation::kIdentity,
                         .input = {.rows = 2, .cols = 1, .weight = input},
                         .output = {.rows = 1, .cols = 2, .weight = output},
                         .first_weight = first,
                         .first_bias = first_bias,
                         .second_weight = second,
                         .second_bias = second_bias,
                         .norm_weight = norm_weight,
                         .norm_bias = norm_bias,
                         .modulation = {.rows = 10, .cols = 2, .weight = no_weights, .bias = mu}},
            .time_embedding = time_embedding};
  }
};

TEST(DiffusionOpsTest, AdaLnMlpByHand) {
  const TinyAdaLn tiny;
  const DiffusionSpec spec = tiny.Spec();
  ASSERT_EQ(spec.denoiser.modulation_dim(), 10);
  // The values are so small that the last norm, too, is more than a sign.
  constexpr double kZ = 5e-4;
  const double r = kZ / std::sqrt(kZ * kZ + 1e-6);
  // Values after layer norm, weight and bias, scale and shift.
  const double u0 = (2 * r + 1) * 1.5 + 10, u1 = (-3 * r - 1) * 0.5 + 20;
  const double a0 = u0 + 2 * u1, a1 = u1 + 5;                    // first
  const double v0 = a0, v1 = 3 * a0 + a1 + 7;                    // second
  const double h0 = 3 * kZ + 2e-5F * v0, h1 = kZ + -1e-5F * v1;  // gate
  const double centred = (h0 - h1) / 2;
  const double end = centred / std::sqrt(centred * centred + 1e-6);
  const double m = end * (1 + 3) + 0.25 + 10 * (-end * (1 - 2) + 100);
  const Vector got = reference::Denoise(spec, 0, Vector{0, 0}, Vector{kZ});
  ASSERT_EQ(got.size(), 1U);
  EXPECT_NEAR(got[0], m, 1e-12 * std::fabs(m));
}

// With h = (3 z, z) the norm is a sign but for epsilon: z / sqrt(z^2 + e), whose derivative is
// e / (z^2 + e)^1.5.
TEST(DiffusionOpsTest, LayerNormOfTinyValuesFeelsItsEpsilon) {
  const TinyAdaLn tiny;
  DiffusionSpec spec = tiny.Spec();
  const std::vector<float> none(10), output = {1, 0};
  spec.denoiser.modulation.bias = none;  // gate 0 leaves only the last norm
  spec.denoiser.output.weight = output;
  for (const double z : {1e-3, 1e-2, -1e-3}) {
    EXPECT_NEAR(reference::Denoise(spec, 0, Vector{0, 0}, Vector{z})[0],
                z / std::sqrt(z * z + 1e-6), 1e-12);
    EXPECT_NEAR(reference::DenoiseJacobian(spec, 0, Vector{0, 0}, Vector{z})[0],
                1e-6 / std::pow(z * z + 1e-6, 1.5), 1e-9);
  }
}

TEST(DiffusionOpsTest, ConditionIsTheRowOfTheClassOrTheImageOfTheVectorOrZero) {
  MutableDiffusion random({.width = 3});
  DiffusionSpec& spec = random.spec();
  const std::vector<float> weight = {1, 2, 3, 4, 5, 6}, bias = {10, 20, 30};
  spec.condition.weight = weight;
  spec.condition.bias = bias;
  const std::vector<float> inputs = {1, -1};
  EXPECT_EQ(reference::Condition(spec, inputs.data(), 0), (Vector{9, 19, 29}));
  spec.condition = {};
  EXPECT_EQ(reference::Condition(spec, nullptr, 0), (Vector{0, 0, 0}));
  spec.num_classes = 2;
  spec.class_embedding = weight;
  EXPECT_EQ(reference::Condition(spec, nullptr, 0), (Vector{1, 2, 3}));
  EXPECT_EQ(reference::Condition(spec, nullptr, 1), (Vector{4, 5, 6}));
}

using Function = std::function<Vector(const Vector&)>;

// Expects central differences, within `tolerance` of the largest element.
void ExpectDerivative(const Vector& jacobian, const Function& function, const Vector& z,
                      double tolerance) {
  constexpr double kStep = 1e-5;  // truncation and rounding both about 1e-10
  const int64_t dim = std::ssize(z);
  double largest = 1;
  for (const double x : jacobian) largest = testing::Larger(largest, std::fabs(x));
  for (int64_t k = 0; k < dim; ++k) {
    Vector up = z, down = z;
    up[k] += kStep;
    down[k] -= kStep;
    const Vector high = function(up), low = function(down);
    ASSERT_EQ(std::ssize(jacobian), std::ssize(high) * dim);
    for (int64_t i = 0; i < std::ssize(high); ++i)
      EXPECT_NEAR(jacobian[i * dim + k], (high[i] - low[i]) / (2 * kStep), tolerance * largest)
          << "d" << i << "/d" << k;
  }
}

void ExpectDerivatives(MutableDiffusion& random, bool clipped) {
  DiffusionSpec& spec = random.spec();
  if (!clipped) spec.clip_range = kInfinity;
  const std::vector<float> inputs = {0.3F, -1.1F};
  const Vector condition = reference::Condition(spec, inputs.data(), 0);
  const std::vector<float> noise(spec.state_dim, 0.5F);
  for (int64_t i = 0; i < spec.num_steps(); ++i) {
    const Vector z = random.State();
    ExpectDerivative(
        reference::DenoiseJacobian(spec, i, condition, z),
        [&](const Vector& x) { return reference::Denoise(spec, i, condition, x); }, z, 1e-7);
    ExpectDerivative(
        reference::StepJacobian(spec, i, condition, z),
        [&](const Vector& x) { return reference::Step(spec, i, condition, noise, x); }, z, 1e-7);
  }
}

TEST(DiffusionOpsTest, JacobiansEqualCentralDifferences) {
  for (const DenoiserKind kind : {DenoiserKind::kResidualMlp, DenoiserKind::kAdaLnMlp})
    for (const int64_t dim : {1, 2, 5})
      for (const int64_t width : {3, 8})
        for (const int64_t blocks : {1, 2})
          for (const bool clipped : {false, true})
            for (const ActivationName& row : kActivationNames) {
              SCOPED_TRACE(::testing::Message()
                           << (kind == DenoiserKind::kAdaLnMlp ? "adaLN " : "residual ") << row.name
                           << " D " << dim << " H " << width << " N " << blocks << " clip "
                           << clipped);
              MutableDiffusion random({.kind = kind,
                                       .activation = row.activation,
                                       .dim = dim,
                                       .width = width,
                                       .blocks = blocks,
                                       .steps = 2});
              ExpectDerivatives(random, clipped);
            }
}

TEST(DiffusionOpsTest, ClipKeepsNanAndItsDerivativeIsThatOfTorch) {
  EXPECT_EQ(reference::Clip(0.5, 1), 0.5);
  EXPECT_EQ(reference::Clip(2, 1), 1);
  EXPECT_EQ(reference::Clip(-2, 1), -1);
  EXPECT_EQ(reference::Clip(1e300, kInfinity), 1e300);
  EXPECT_TRUE(std::isnan(reference::Clip(kNan, 1)));
  EXPECT_TRUE(std::isnan(reference::Clip(kNan, kInfinity)));
  for (const double inside : {0.0, 0.5, 1.0, -1.0})
    EXPECT_EQ(reference::ClipDerivative(inside, 1), 1) << inside;
  EXPECT_EQ(reference::ClipDerivative(1e300, kInfinity), 1);
  for (const double outside : {std::nextafter(1.0, 2.0), -2.0, kInfinity})
    EXPECT_EQ(reference::ClipDerivative(outside, 1), 0) << outside;
}

// The tiny denoiser with m = 26 and dm/dz = 8 at z = 3.
TEST(DiffusionOpsTest, StepByHand) {
  const TinyResidual tiny;
  std::vector<ReverseStep> steps(2);
  steps[1] = {.x0_z = 2, .x0_m = 0.5, .z_z = 10, .z_m = 100, .z_x0 = 1000, .sigma = 7};
  DiffusionSpec spec = tiny.Spec();
  spec.steps = steps;
  const std::vector<float> noise = {3};
  const auto next = [&] { return reference::Step(spec, 1, Vector{0}, noise, Vector{3}); };
  const auto slope = [&] { return reference::StepJacobian(spec, 1, Vector{0}, Vector{3}); };
  // x0 = 2 * 3 + 26 / 2 = 19.
  EXPECT_EQ(next(), (Vector{30 + 2600 + 19'000 + 21}));
  EXPECT_EQ(slope(), (Vector{10 + 100 * 8 + 1000 * (2 + 0.5 * 8)}));
  spec.clip_range = 19;  // x0 is on the boundary
  EXPECT_EQ(next(), (Vector{30 + 2600 + 19'000 + 21}));
  EXPECT_EQ(slope(), (Vector{10 + 100 * 8 + 1000 * (2 + 0.5 * 8)}));
  spec.clip_range = 18;
  EXPECT_EQ(next(), (Vector{30 + 2600 + 18'000 + 21}));
  EXPECT_EQ(slope(), (Vector{10 + 100 * 8}));
  steps[1].x0_m = -0.5;  // x0 = 6 - 13
  spec.clip_range = 5;
  EXPECT_EQ(next(), (Vector{30 + 2600 - 5'000 + 21}));
}

TEST(DiffusionOpsTest, StepAppliesTheReverseStepOfTheInterface) {
  MutableDiffusion random({.dim = 3});
  const DiffusionSpec& spec = random.spec();
  const std::vector<float> noise = {0.1F, -2, 1};
  const Vector condition(3), z = random.State();
  for (int64_t i = 0; i < spec.num_steps(); ++i) {
    const Vector m = reference::Denoise(spec, i, condition, z);
    const Vector got = reference::Step(spec, i, condition, noise, z);
    for (int64_t k = 0; k < 3; ++k)
      EXPECT_DOUBLE_EQ(got[k],
                       ApplyReverseStep(spec.steps[i], spec.clip_range, z[k], m[k], noise[k]));
  }
}

TEST(DiffusionOpsTest, NanReachesTheNextState) {
  MutableDiffusion random({});
  const DiffusionSpec& spec = random.spec();
  random.steps()[0] = {.x0_z = 1, .x0_m = 1, .z_x0 = 1, .sigma = 1};
  const std::vector<float> noise = {0, 0}, bad = {static_cast<float>(kNan), 0};
  const Vector zero(3), z = {0.1, 0.2};
  for (const double x : reference::Step(spec, 0, zero, noise, Vector{kNan, 0}))
    EXPECT_TRUE(std::isnan(x));
  for (const double x : reference::Step(spec, 0, Vector{0, kNan, 0}, noise, z))
    EXPECT_TRUE(std::isnan(x));
  const Vector noisy = reference::Step(spec, 0, zero, bad, z);
  EXPECT_TRUE(std::isnan(noisy[0]));
  EXPECT_FALSE(std::isnan(noisy[1]));
  EXPECT_TRUE(std::isnan(ApplyReverseStep(spec.steps[0], 1, 0, kNan, 0)));
  for (const double x : reference::StepJacobian(spec, 0, zero, Vector{kNan, 0}))
    EXPECT_TRUE(std::isnan(x));
}

// Two layers: a = relu((1, 1) z) and relu((1, -1) z - 10), then (2 a0 - 3 a1, a0).
struct TinyDecoder {
  const std::vector<float> first = {1, 1, 1, -1}, first_bias = {0, -10}, second = {2, -3, 1, 0};
  const std::vector<DenseSpec> layers = {
      {.rows = 2, .cols = 2, .weight = first, .bias = first_bias, .activation = Activation::kRelu},
      {.rows = 2, .cols = 2, .weight = second}};
};

TEST(DiffusionOpsTest, DecoderAndItsAmplificationByHand) {
  const TinyDecoder decoder;
  MutableDiffusion random({.dim = 2});
  DiffusionSpec& spec = random.spec();
  const Vector z = {3, 4}, both = {20, 5};
  EXPECT_EQ(reference::Decode(spec, z), z);
  EXPECT_EQ(reference::DecodeJacobian(spec, z), (Vector{1, 0, 0, 1}));
  EXPECT_EQ(reference::NewFamily(spec)->OutputAmplification(z), 1);

  spec.decoder = decoder.layers;
  EXPECT_EQ(reference::Decode(spec, z), (Vector{14, 7}));
  EXPECT_EQ(reference::DecodeJacobian(spec, z), (Vector{2, 2, 1, 1}));
  // a = (25, 5): rows 2 (1, 1) - 3 (1, -1) and (1, 1).
  EXPECT_EQ(reference::Decode(spec, both), (Vector{35, 25}));
  EXPECT_EQ(reference::DecodeJacobian(spec, both), (Vector{-1, 5, 1, 1}));
  const auto family = reference::NewFamily(spec);
  EXPECT_EQ(family->Decode(both), (Vector{35, 25}));
  EXPECT_EQ(family->OutputAmplification(z), 4);
  EXPECT_EQ(family->OutputAmplification(both), 6);
}

TEST(DiffusionOpsTest, DecodeJacobianEqualsCentralDifferences) {
  MutableDiffusion random({.dim = 3});
  std::vector<DenseSpec> layers = {random.Dense(5, 3), random.Dense(4, 5)};
  layers[0].activation = Activation::kSilu;
  layers[1].activation = Activation::kSigmoid;
  random.spec().decoder = layers;
  const Vector z = random.State();
  ExpectDerivative(
      reference::DecodeJacobian(random.spec(), z),
      [&](const Vector& x) { return reference::Decode(random.spec(), x); }, z, 1e-8);
}

TEST(DiffusionOpsTest, AmplificationOfANanIsOne) {
  MutableDiffusion random({.dim = 2});
  std::vector<DenseSpec> layers = {random.Dense(3, 2)};
  layers[0].activation = Activation::kTanh;
  random.spec().decoder = layers;
  EXPECT_TRUE(std::isnan(reference::NewFamily(random.spec())->OutputAmplification({kNan, 0})));
}

}  // namespace
}  // namespace deeppcr
