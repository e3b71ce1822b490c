// SPDX-License-Identifier: Apache-2.0
// Activations and their derivatives on every instruction set of this machine, against the reference
// in double: over all magnitudes of a float, denormals and tails included.
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

namespace deeppcr {
namespace {

using testing::IntervalBuffers;
using testing::KernelSet;
using testing::KernelSets;
using testing::PackedLayers;

constexpr double kUnit = 0x1p-24;  // half the spacing of floats just above 1
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// What is promised, in units of 2^-24.
struct Accuracy {
  Activation activation;
  // Of a value, relative to it. Below the normal range floats are evenly spaced, so there relative
  // to the smallest normal number.
  double value;
  // Of a derivative, relative to max(1, |derivative|): Jacobians steer the iteration, and what
  // matters of a small entry is its weight among the others.
  double derivative;
  // Limits; the value at -infinity and at +infinity.
  float at_minus_infinity, at_infinity;
};

constexpr Accuracy kAccuracies[] = {
    {Activation::kIdentity, 0, 0, -kInfinity, kInfinity},
    {Activation::kRelu, 0, 0, 0, kInfinity},
    {Activation::kLeakyRelu, 2, 1, -kInfinity, kInfinity},
    {Activation::kTanh, 6, 6, -1, 1},
    {Activation::kSigmoid, 6, 6, 0, 1},
    {Activation::kSilu, 6, 6, 0, kInfinity},
    {Activation::kGelu, 12, 12, 0, kInfinity},
    {Activation::kGeluTanh, 400, 12, 0, kInfinity},
    {Activation::kElu, 6, 6, -1, kInfinity},
    {Activation::kSoftplus, 6, 6, 0, kInfinity},
};

std::string_view NameOf(Activation activation) {
  return std::find_if(kActivationNames.begin(), kActivationNames.end(),
                      [&](const ActivationName& n) { return n.activation == activation; })
      ->name;
}

// Every 4099th float there is, evenly in bits, and an even grid over where the functions bend.
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

  // act'(x), read from the Jacobians of steps z -> act(1 z + 0), one interval per point. The first
  // interval has none, hence one interval more.
  std::vector<float> Differentiate(Activation activation, const std::vector<float>& points) const {
    constexpr size_t kChunk = 4096;
    const std::vector<float> ones(kChunk + 1, 1.0F);
    const PackedLayers layers({.num_steps = kChunk + 1,
                               .state_dim = 1,
                               .activation = activation,
                               .weights = ones});
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

INSTANTIATE_TEST_SUITE_P(InstructionSets, VectorMathTest,
                         ::testing::Range(size_t{0}, KernelSets().size()),
                         [](const auto& test) { return KernelSets()[test.param].name; });

}  // namespace
}  // namespace deeppcr
