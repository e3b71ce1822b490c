// SPDX-License-Identifier: Apache-2.0
// Activations and their derivatives on every instruction set of this machine, compared with the
// reference in double, over all magnitudes of a float, with denormals and tails.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <limits>

#include "kernels/base/strings.h"
#include "kernels/reference/reference_ops.h"
#include "tests/testing/packed_layers.h"

namespace deeppcr::testing {
namespace {

constexpr double kUnit = 0x1p-24;  // half the spacing of floats just above 1
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The promised accuracy, in units of 2^-24. A few roundings on the way to a result cost about as
// many units; a comment gives the reason for any larger bound.
struct Accuracy {
  Activation activation;
  // Accuracy of a value, relative to the value; below the normal range, where floats are evenly
  // spaced, relative to the smallest normal number.
  double value;
  // Accuracy of a derivative, relative to max(1, |derivative|): Jacobians steer the iteration, and
  // a small entry matters only by its weight among the others.
  double derivative;
  float at_minus_infinity, at_zero, at_infinity;
};

constexpr Accuracy kAccuracies[] = {
    {Activation::kIdentity, 0, 0, -kInfinity, 0, kInfinity},
    {Activation::kRelu, 0, 0, 0, 0, kInfinity},
    // The constant 0.01 is rounded, and so is the product.
    {Activation::kLeakyRelu, 1.5, 0.01, -kInfinity, 0, kInfinity},
    // The derivative 1 - t^2 doubles the error of t.
    {Activation::kTanh, 6, 12, -1, 0, 1},
    {Activation::kSigmoid, 4, 1, 0, 0.5, 1},
    {Activation::kSilu, 4, 4, 0, 0, kInfinity},
    // The value is a sum of eleven terms, in Horner's order.
    {Activation::kGelu, 8, 4, 0, 0, kInfinity},
    // An argument of up to 88 with up to three roundings becomes the exponent of e, which costs
    // 3 x 88 units of the value in its far tail. The derivative is negligible there.
    {Activation::kGeluTanh, 264, 4, 0, 0, kInfinity},
    {Activation::kElu, 2, 1, -1, 0, kInfinity},
    {Activation::kSoftplus, 4, 2, 0, 0.693147181F, kInfinity},
    {Activation::kMish, 6, 4, 0, 0, kInfinity},
};

std::string_view NameOf(Activation activation) {
  return std::find_if(std::begin(kActivationNames), std::end(kActivationNames),
                      [&](const ActivationName& n) { return n.activation == activation; })
      ->name;
}

// Every 4099th float, even in bits, and an even grid over the range where the functions bend.
std::vector<float> Grid() {
  std::vector<float> points;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4099) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isfinite(x)) points.push_back(x);
  }
  for (int i = -120 * 4096; i <= 120 * 4096; ++i) points.push_back(static_cast<float>(i) / 4096.0F);
  for (const float x : {0.0F, FLT_MIN, FLT_TRUE_MIN, FLT_MAX, 1.0F})
    for (const float y : {x, -x}) points.push_back(y);
  points.resize((points.size() + 3) / 4 * 4, 1.0F);
  return points;
}

// Expects equal values, or finite values within this number of units.
void ExpectClose(float got, float want, double units) {
  if (got == want) return;
  EXPECT_NEAR(got, want, units * kUnit * std::fabs(want));
}

struct Worst {
  double error = 0;
  float at = 0;
  void Add(double e, float x) {
    if (!(e <= error)) *this = {std::isnan(e) ? kInfinity : e, x};
  }
};

class VectorMathTest : public ::testing::TestWithParam<size_t> {
 protected:
  const KernelSet& set() const { return KernelSets()[GetParam()]; }

  std::vector<float> Activate(Activation activation, const std::vector<float>& points) const {
    AlignedBuffer<float> x(static_cast<int64_t>(points.size()));
    std::copy(points.begin(), points.end(), x.data());
    set().kernels(4).activate(activation, x.data(), x.size());
    return {x.data(), x.data() + x.size()};
  }

  // act'(x), read from the Jacobians of steps z -> act(1 z + 0), one interval per point, and one
  // interval more, since the first one has no Jacobian.
  std::vector<float> Differentiate(Activation activation, const std::vector<float>& points) const {
    constexpr size_t kChunk = 4096;
    const std::vector<float> ones(kChunk + 1, 1.0F);
    const PackedLayers layers(
        {.num_steps = kChunk + 1, .state_dim = 1, .activation = activation, .weights = ones});
    IntervalBuffers buffers(layers.view(), 1);
    std::vector<float> slopes;
    for (size_t begin = 0; begin < points.size(); begin += kChunk) {
      const size_t count = std::min(kChunk, points.size() - begin);
      for (size_t i = 0; i < count; ++i) *buffers.State(i + 1) = points[begin + i];
      set().kernels(4).propagate(buffers.ToPropagate(IntervalBuffers::Matrices::kDense, false));
      for (size_t i = 0; i < count; ++i) slopes.push_back(*buffers.Dense(i + 1));
    }
    return slopes;
  }

  void Print(const char* what, const Accuracy& accuracy, const Worst& worst, double bound) const {
    std::printf("%-9s %-10s %s: largest error %.2f units at %.9g (bound %g)\n", set().name.c_str(),
                std::string(NameOf(accuracy.activation)).c_str(), what, worst.error, worst.at,
                bound);
  }
};

TEST_P(VectorMathTest, ValuesAreAccurateEverywhere) {
  const std::vector<float> points = Grid();
  for (const Accuracy& accuracy : kAccuracies) {
    const std::vector<float> got = Activate(accuracy.activation, points);
    Worst worst;
    for (size_t i = 0; i < points.size(); ++i) {
      const double want = reference::Activate(accuracy.activation, points[i]);
      const double error = std::fabs(got[i] - want);
      worst.Add(error / std::max(std::fabs(want), double{FLT_MIN}) / kUnit, points[i]);
    }
    Print("value", accuracy, worst, accuracy.value);
    EXPECT_LE(worst.error, accuracy.value) << NameOf(accuracy.activation) << " at " << worst.at;
  }
}

TEST_P(VectorMathTest, DerivativesAreAccurateEverywhere) {
  const std::vector<float> points = Grid();
  for (const Accuracy& accuracy : kAccuracies) {
    const std::vector<float> got = Differentiate(accuracy.activation, points);
    Worst worst;
    for (size_t i = 0; i < points.size(); ++i) {
      const double want = reference::Differentiate(accuracy.activation, points[i]);
      worst.Add(std::fabs(got[i] - want) / std::max(1.0, std::fabs(want)) / kUnit, points[i]);
    }
    Print("derivative", accuracy, worst, accuracy.derivative);
    EXPECT_LE(worst.error, accuracy.derivative)
        << NameOf(accuracy.activation) << " at " << worst.at;
  }
}

TEST_P(VectorMathTest, TakesLimitsAtInfinityAndKeepsNans) {
  for (const Accuracy& accuracy : kAccuracies) {
    const std::vector<float> got =
        Activate(accuracy.activation, {-kInfinity, kInfinity, 0.0F, -0.0F, kNan, -kNan, 1, 1});
    const std::string_view name = NameOf(accuracy.activation);
    SCOPED_TRACE(name);
    ExpectClose(got[0], accuracy.at_minus_infinity, accuracy.value);
    ExpectClose(got[1], accuracy.at_infinity, accuracy.value);
    ExpectClose(got[2], accuracy.at_zero, accuracy.value);
    ExpectClose(got[3], accuracy.at_zero, accuracy.value);
    EXPECT_TRUE(std::isnan(got[4])) << name << " gives " << got[4];
    EXPECT_TRUE(std::isnan(got[5])) << name << " gives " << got[5];
  }
}

TEST_P(VectorMathTest, DerivativesAreFiniteAtInfinity) {
  for (const Accuracy& accuracy : kAccuracies) {
    const std::vector<float> got = Differentiate(accuracy.activation, {-kInfinity, kInfinity});
    const double far = 1e30;
    SCOPED_TRACE(NameOf(accuracy.activation));
    EXPECT_NEAR(got[0], reference::Differentiate(accuracy.activation, -far),
                accuracy.derivative * kUnit);
    EXPECT_NEAR(got[1], reference::Differentiate(accuracy.activation, far),
                accuracy.derivative * kUnit);
  }
}

// A short form that all lanes allow, and the form that one of them asks for.
TEST_P(VectorMathTest, NeighboursDecideNoBits) {
  std::vector<float> points = Grid();
  points.resize(points.size() / 15 * 15);
  for (const Accuracy& accuracy : kAccuracies) {
    const std::vector<float> want = Activate(accuracy.activation, points);
    for (const float neighbour : {0.0F, -100.0F, 100.0F, -kInfinity, kNan}) {
      std::vector<float> beside;  // of 16 the last: of every vector or of every fourth
      for (size_t i = 0; i < points.size(); ++i) {
        beside.push_back(points[i]);
        if (i % 15 == 14) beside.push_back(neighbour);
      }
      const std::vector<float> got = Activate(accuracy.activation, beside);
      int64_t different = 0;
      for (size_t i = 0; i < points.size(); ++i)
        different +=
            std::bit_cast<uint32_t>(got[i / 15 * 16 + i % 15]) != std::bit_cast<uint32_t>(want[i]);
      EXPECT_EQ(different, 0) << NameOf(accuracy.activation) << " beside " << neighbour;
    }
  }
}

// Layers run on wider vectors than `activate`; a layer with unit weights shows the bits of those.
TEST_P(VectorMathTest, EveryVectorWidthGivesTheSameBits) {
  std::vector<float> points = Grid();
  points.resize(64 * 20000);
  for (const int64_t dim : {8, 16, 32, 64}) {
    std::vector<float> unit(dim * dim);
    for (int64_t i = 0; i < dim; ++i) unit[i * dim + i] = 1;
    for (const Accuracy& accuracy : kAccuracies) {
      const PackedLayers layers(
          {.num_steps = 1, .state_dim = dim, .activation = accuracy.activation, .weights = unit});
      AlignedBuffer<float> states(8 * dim), scratch(cpu::kSequentialGroup * dim);
      const std::vector<float> want = Activate(accuracy.activation, points);
      int64_t different = 0;
      for (size_t begin = 0; begin < points.size(); begin += states.size()) {
        std::copy_n(points.data() + begin, states.size(), states.data());
        set().kernels(dim).advance(layers.view(), states.data(), scratch.data(), 8, 0, 1, {});
        for (int64_t i = 0; i < states.size(); ++i) different += !(states[i] == want[begin + i]);
      }
      EXPECT_EQ(different, 0) << NameOf(accuracy.activation) << " at width " << dim;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, VectorMathTest,
                         ::testing::Range(size_t{0}, KernelSets().size()),
                         [](const auto& test) { return KernelSets()[test.param].name; });

}  // namespace
}  // namespace deeppcr::testing
