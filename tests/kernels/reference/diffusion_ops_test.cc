// SPDX-License-Identifier: Apache-2.0
#include "kernels/reference/diffusion_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <list>
#include <random>

#include "kernels/base/philox.h"
#include "kernels/reference/family.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/reference/reference_ops.h"

namespace deeppcr {
namespace {

using reference::Family;
using reference::Sample;
using Vector = std::vector<double>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Sizes {
  DenoiserKind kind = DenoiserKind::kResidualMlp;
  Activation activation = Activation::kSilu;
  int64_t dim = 2, width = 3, blocks = 2, steps = 4;
};

// A random model that takes vectors of 2, and can be turned to classes; numbers live as long as it.
class RandomDiffusion {
 public:
  explicit RandomDiffusion(const Sizes& sizes, uint32_t seed = 5) : generator_(seed) {
    const auto [kind, activation, dim, width, blocks, num_steps] = sizes;
    for (int64_t i = 0; i < num_steps; ++i) steps_.push_back(RandomStep());
    spec_ = {.state_dim = dim, .steps = steps_, .clip_range = 0.8};
    DenoiserSpec& net = spec_.denoiser;
    net = {.kind = kind, .hidden_dim = width, .num_blocks = blocks, .activation = activation};
    net.input = Dense(width, dim);
    net.output = Dense(dim, width);
    net.modulation = Dense(net.modulation_dim(), width);
    net.first_weight = Draw(blocks * width * width);
    net.first_bias = Draw(blocks * width);
    if (kind == DenoiserKind::kAdaLnMlp) {
      net.second_weight = Draw(blocks * width * width);
      net.second_bias = Draw(blocks * width);
      net.norm_weight = Draw(blocks * width);
      net.norm_bias = Draw(blocks * width);
    }
    for (int64_t i = 0; i < num_steps * width; ++i) time_embedding_.push_back(Normal());
    spec_.time_embedding = time_embedding_;
    spec_.condition = Dense(width, 2);
  }
  RandomDiffusion(const RandomDiffusion&) = delete;

  DiffusionSpec& spec() { return spec_; }
  std::vector<ReverseStep>& steps() { return steps_; }
  double Normal() { return normal_(generator_); }
  Vector State() {
    Vector z(spec_.state_dim);
    for (double& x : z) x = Normal();
    return z;
  }
  std::span<const float> Draw(int64_t count) {
    std::vector<float>& drawn = numbers_.emplace_back(count);
    for (float& x : drawn) x = static_cast<float>(0.7 * Normal());
    return drawn;
  }
  DenseSpec Dense(int64_t rows, int64_t cols) {
    return {.rows = rows, .cols = cols, .weight = Draw(rows * cols), .bias = Draw(rows)};
  }
  // Overwrites every number that the spec shows.
  void Spoil() {
    for (std::vector<float>& numbers : numbers_) std::fill(numbers.begin(), numbers.end(), NAN);
    std::fill(time_embedding_.begin(), time_embedding_.end(), kNan);
    std::fill(steps_.begin(), steps_.end(), ReverseStep{.z_z = kNan});
  }
  void TakeClasses(int64_t count) {
    spec_.condition = {};
    spec_.num_classes = count;
    spec_.class_embedding = Draw(count * spec_.denoiser.hidden_dim);
  }

 private:
  ReverseStep RandomStep() {
    return {.x0_z = Normal(),
            .x0_m = 0.5 + std::fabs(Normal()),
            .z_z = 0.4 * Normal(),
            .z_m = 0.4 * Normal(),
            .z_x0 = Normal(),
            .sigma = std::fabs(Normal())};
  }

  std::mt19937 generator_;
  std::normal_distribution<double> normal_;
  DiffusionSpec spec_;
  std::vector<ReverseStep> steps_;
  Vector time_embedding_;
  std::list<std::vector<float>> numbers_;
};

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
  // The step without an embedding: mu = 0.5, block relu(-5.5), h = 7.
  EXPECT_EQ(reference::Denoise(spec, 1, Vector{0}, Vector{3}), (Vector{26}));
  EXPECT_EQ(reference::DenoiseJacobian(spec, 1, Vector{0}, Vector{3}), (Vector{8}));
}

// D = 1, H = 2, N = 1. h = (3 z, z), so norm(h) = (+r, -r) with r = |z| / sqrt(z^2 + 1e-6), z > 0.
struct TinyAdaLn {
  const std::vector<float> input = {3, 1}, output = {1, 10}, first = {1, 2, 0, 1},
                           first_bias = {0, 5}, second = {1, 0, 3, 1}, second_bias = {0, 7},
                           norm_weight = {2, 3}, norm_bias = {1, -1},
                           no_weights = std::vector<float>(20);
  // shift, scale, gate; shift, scale of the end.
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
  // All so small that the last norm, too, is no mere sign.
  constexpr double kZ = 5e-4;
  const double r = kZ / std::sqrt(kZ * kZ + 1e-6);
  // After layer norm, weight and bias, scale and shift.
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

// With h = (3 z, z) the norm is +-1 but for epsilon: z / sqrt(z^2 + e), by z e / (z^2 + e)^1.5.
TEST(DiffusionOpsTest, LayerNormOfTinyValuesFeelsItsEpsilon) {
  const TinyAdaLn tiny;
  DiffusionSpec spec = tiny.Spec();
  const std::vector<float> none(10), output = {1, 0};
  spec.denoiser.modulation.bias = none;  // gate 0: only the last norm is left
  spec.denoiser.output.weight = output;
  for (const double z : {1e-3, 1e-2, -1e-3}) {
    EXPECT_NEAR(reference::Denoise(spec, 0, Vector{0, 0}, Vector{z})[0],
                z / std::sqrt(z * z + 1e-6), 1e-12);
    EXPECT_NEAR(reference::DenoiseJacobian(spec, 0, Vector{0, 0}, Vector{z})[0],
                1e-6 / std::pow(z * z + 1e-6, 1.5), 1e-9);
  }
}

TEST(DiffusionOpsTest, ConditionIsTheRowOfTheClassOrTheImageOfTheVectorOrZero) {
  RandomDiffusion random({.width = 3});
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

// Within `tolerance` of the largest element of central differences.
void ExpectDerivative(const Vector& jacobian, const Function& function, const Vector& z,
                      double tolerance) {
  constexpr double kStep = 1e-5;  // truncation and rounding both about 1e-10
  const int64_t dim = std::ssize(z);
  double largest = 1;
  for (const double x : jacobian) largest = std::max(largest, std::fabs(x));
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

void ExpectDerivatives(RandomDiffusion& random, bool clipped) {
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
              SCOPED_TRACE(testing::Message()
                           << (kind == DenoiserKind::kAdaLnMlp ? "adaLN " : "residual ") << row.name
                           << " D " << dim << " H " << width << " N " << blocks << " clip "
                           << clipped);
              RandomDiffusion random({.kind = kind,
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
  spec.clip_range = 19;  // on the boundary
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
  RandomDiffusion random({.dim = 3});
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
  RandomDiffusion random({});
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
  RandomDiffusion random({.dim = 2});
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
  RandomDiffusion random({.dim = 3});
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
  RandomDiffusion random({.dim = 2});
  std::vector<DenseSpec> layers = {random.Dense(3, 2)};
  layers[0].activation = Activation::kTanh;
  random.spec().decoder = layers;
  EXPECT_TRUE(std::isnan(reference::NewFamily(random.spec())->OutputAmplification({kNan, 0})));
}

std::vector<Vector> Trajectory(const Family& family, const Sample& sample) {
  std::vector<Vector> states = {sample.Initial()};
  for (int64_t l = 1; l <= family.shape.num_steps; ++l)
    states.push_back(sample.Step(l, states.back()));
  return states;
}

TEST(DiffusionFamilyTest, OwnsItsNumbers) {
  auto random = std::make_unique<RandomDiffusion>(
      Sizes{.kind = DenoiserKind::kAdaLnMlp, .dim = 3, .width = 4});
  random->TakeClasses(2);
  auto layers = std::make_unique<std::vector<DenseSpec>>(2, random->Dense(3, 3));
  random->spec().decoder = *layers;
  const auto family = reference::NewFamily(random->spec());
  const SampleInput input = {.label = 1, .seed = 3};
  const auto before = Trajectory(*family, *family->Encode(input));
  const Vector answer = family->Decode(before.back());
  EXPECT_EQ(family->shape.num_classes, 2);
  EXPECT_EQ(family->shape.output_dim, 3);
  EXPECT_TRUE(family->shape.diffusion);
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
  RandomDiffusion random({.dim = 2});
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
  RandomDiffusion random({.dim = kDim, .steps = kSteps});
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
  RandomDiffusion random({.dim = 2});
  random.TakeClasses(2);
  std::vector<DenseSpec> layers = {random.Dense(3, 2)};
  random.spec().decoder = layers;
  const SampleInput input = {.label = 1, .seed = 3, .sample = 1};
  const auto family = reference::NewFamily(random.spec());
  const auto states = Trajectory(*family, *family->Encode(input));
  const auto system = reference::NewReferenceBackend()->NewSystem(random.spec());
  ASSERT_TRUE(system.ok()) << system.status();
  const auto space = (*system)->NewSpace({});
  ASSERT_TRUE(space.ok()) << space.status();

  std::vector<float> trajectory(5 * 2), outputs(3);
  float* const trajectories[] = {trajectory.data()};
  (*space)->Encode(0, input);
  (*space)->Restart(1);
  EXPECT_EQ((*space)->Advance(1, 0, 4, trajectories), 4);
  (*space)->Decode(0, outputs.data());
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
      largest = std::max(largest, std::fabs(a[l][k] - b[l][k]) / (1 + std::fabs(b[l][k])));
  return largest;
}

TEST(DiffusionFamilyTest, CoarseTrajectoryOfFewStepsIsTheTrajectory) {
  for (const int64_t steps : {1, 2, 15, 16}) {
    RandomDiffusion random({.dim = 3, .steps = steps});
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

// z_0 .. z_L with the denoised sample of every `stride`-th step; element by element from the
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
    RandomDiffusion random({.dim = 2, .steps = c.steps});
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

// Where z_m is 0 the model's output is not needed, and x0_m may be 0.
TEST(DiffusionFamilyTest, CoarseTrajectoryDividesOnlyWhereItMust) {
  RandomDiffusion random({.dim = 1, .steps = 20});
  random.TakeClasses(1);
  for (ReverseStep& step : random.steps()) step.x0_m = step.z_m = 0;
  const auto family = reference::NewFamily(random.spec());
  PassCount count;
  for (const Vector& z : family->Encode({})->CoarseTrajectory(&count))
    EXPECT_TRUE(std::isfinite(z[0]));
}

TEST(DiffusionFamilyTest, CoarseTrajectoryKeepsNan) {
  RandomDiffusion random({.dim = 2, .steps = 20});
  random.TakeClasses(1);
  const auto family = reference::NewFamily(random.spec());
  const std::vector<float> z0 = {static_cast<float>(kNan), 0};
  PassCount count;
  const auto states = family->Encode({.initial_noise = z0.data()})->CoarseTrajectory(&count);
  EXPECT_TRUE(std::isnan(states.back()[0]));
  EXPECT_TRUE(std::isnan(states.back()[1]));
}

}  // namespace
}  // namespace deeppcr
