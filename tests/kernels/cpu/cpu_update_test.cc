// SPDX-License-Identifier: Apache-2.0
// Rounding probes and the update with its norms, against plain loops in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cpu/kernels_fixture.h"

namespace deeppcr::testing {
namespace {

using CpuUpdateTest = CpuKernelsTest;

// Of the new state, and of the terms of its dot products, which may cancel in the state.
TEST_P(CpuUpdateTest, AProbePicksUpTheRoundingOfAStep) {
  for (const bool residual : {false, true}) {
    const RandomSystem system = NewSystem(8, residual, Activation::kTanh);
    const PackedLayers layers(system.spec());
    IntervalBuffers buffers(layers.view(), 1);
    FillStates(buffers, false);
    kernels_.propagate(buffers.ToPropagate(Matrices::kNone, true));
    int64_t positive = 0, all = 0;
    for (int64_t p = 0; p < 8; ++p) {
      const Vector before = Doubles(buffers.State(p), dim_);
      const Vector jacobian = reference::StepJacobian(system.spec(), p + 1, before);
      for (int64_t i = 0; i < dim_; ++i) {
        double square = std::pow(buffers.Propagated(p)[i], 2);
        for (int64_t k = 0; k < dim_; ++k)  // the branch alone
          square += std::pow((jacobian[i * dim_ + k] - (residual && i == k)) * before[k], 2);
        for (int64_t v = 1; v < cpu::kColumns; ++v, ++all) {
          const double probe = buffers.Propagated(p, v)[i];
          ASSERT_NEAR(std::fabs(probe), kUnit * std::sqrt(square),
                      1e-5 * kUnit * std::sqrt(square));
          positive += probe > 0;
        }
      }
    }
    // Fair coins, at least 32 of them: fewer than one head in eight is out of the question.
    EXPECT_GT(8 * positive, all);
    EXPECT_LT(8 * positive, 7 * all);
  }
}

TEST_P(CpuUpdateTest, ProbesAreCarriedByTheJacobianAndGrowBySourcesAlone) {
  for (const bool residual : {false, true}) {
    const RandomSystem system = NewSystem(4, residual, Activation::kTanh);
    const PackedLayers layers(system.spec());
    IntervalBuffers buffers(layers.view(), 2);
    FillStates(buffers, false);
    for (int64_t p = 0; p < 2; ++p)
      for (int64_t v = 1; v < cpu::kColumns; ++v)
        for (int64_t i = 0; i < dim_; ++i)
          buffers.State(p, v)[i] = static_cast<float>(1 + (p + v + i) % 3);
    kernels_.propagate(buffers.ToPropagate(Matrices::kNone, true));
    for (int64_t p = 0; p < 2; ++p) {
      Vector z = Doubles(buffers.State(p), dim_), jacobian;
      Vector first = reference::StepJacobian(system.spec(), 2 * p + 1, z);
      z = reference::Step(system.spec(), 2 * p + 1, z);
      jacobian = Product(reference::StepJacobian(system.spec(), 2 * p + 2, z), first, dim_);
      for (int64_t v = 1; v < cpu::kColumns; ++v)
        for (int64_t i = 0; i < dim_; ++i) {
          double carried = 0, size = 0;
          for (int64_t k = 0; k < dim_; ++k) {
            carried += jacobian[i * dim_ + k] * buffers.State(p, v)[k];
            size = std::max(size, std::fabs(double{buffers.State(p, v)[k]}));
          }
          // These probes are of size one: sources and rounding hide below, a wrong column does not.
          ASSERT_NEAR(buffers.Propagated(p, v)[i], carried, 1e-5 * size * (1 + Largest(jacobian)));
        }
      ExpectPaddingZero(buffers.Propagated(p), cpu::kColumns, "probes");
    }
  }
}

TEST_P(CpuUpdateTest, UpdateAddsTheCorrectionAndMeasuresIt) {
  const RandomSystem system = NewSystem(5, false, Activation::kTanh);
  const PackedLayers layers(system.spec());
  for (const Matrices matrices : {Matrices::kNone, Matrices::kDense, Matrices::kDiagonal}) {
    IntervalBuffers buffers(layers.view(), 1);
    FillStates(buffers, true);
    kernels_.propagate(buffers.ToPropagate(matrices, true));
    FillRows(buffers.Entering(0), 5 * cpu::kColumns);
    std::vector<Vector> before;
    for (int64_t p = 0; p <= 5; ++p) before.push_back(Doubles(buffers.State(p), dim_));
    const cpu::IntervalNorms norms = kernels_.update(buffers.ToUpdate(matrices, true, 0.125));
    EXPECT_TRUE(SameBits(buffers.State(1), buffers.Propagated(0), width_)) << "d_0 is zero";
    double update = 0, rounding = 0, combined = 0;
    for (int64_t p = 0; p < 5; ++p) {
      double change = 0, size = 0, probe = 0;
      for (int64_t v = 0; v < cpu::kColumns; ++v)
        for (int64_t i = 0; i < dim_; ++i) {
          const float got = buffers.State(p + 1, v)[i];
          double want = 0, magnitude = 0;
          for (int64_t k = 0; k < dim_ && p > 0; ++k) {
            double a = matrices == Matrices::kDense ? buffers.Dense(p)[k * width_ + i] : k == i;
            if (matrices == Matrices::kDiagonal && k == i) a = buffers.Diagonal(p)[i];
            want += a * buffers.Entering(p, v)[k];
            magnitude += std::fabs(a * buffers.Entering(p, v)[k]);
          }
          const double base = buffers.Propagated(p, v)[i];
          magnitude += std::fabs(base);
          ASSERT_NEAR(got, base + want, (2 * static_cast<double>(dim_) + 1) * kUnit * magnitude);
          if (v == 0) change = std::max(change, std::fabs(got - before[p + 1][i]));
          if (v == 0) size = std::max(size, std::fabs(double{got}));
          if (v > 0) probe = std::max(probe, std::fabs(double{got}));
        }
      update = std::max(update, change / (size + 0.125));
      rounding = std::max(rounding, probe / (size + 0.125));
      combined = std::max(combined, (2 * change + probe) / (size + 0.125));
    }
    EXPECT_NEAR(norms.update, update, 1e-6 * update);
    EXPECT_NEAR(norms.rounding, rounding, 1e-6 * rounding);
    EXPECT_NEAR(norms.combined, combined, 1e-6 * combined);
    EXPECT_TRUE(norms.finite);
    ExpectPaddingZero(buffers.State(0), 6 * cpu::kColumns, "states");
  }
}

TEST_P(CpuUpdateTest, UpdateKeepsTheBitsWhereNothingIsAdded) {
  const RandomSystem system = NewSystem(3, false, Activation::kRelu);
  const PackedLayers layers(system.spec());
  for (const Matrices matrices : {Matrices::kNone, Matrices::kDense, Matrices::kDiagonal}) {
    for (const bool enters : {false, true}) {
      IntervalBuffers buffers(layers.view(), 1);
      FillStates(buffers, false);
      kernels_.propagate(buffers.ToPropagate(matrices, false));
      for (int64_t p = 0; p < 3; ++p) buffers.Propagated(p)[p % dim_] = -0.0F;
      cpu::UpdateArgs args = buffers.ToUpdate(matrices, false, 1e-3);
      if (!enters) args.entering = nullptr;
      kernels_.update(args);
      for (int64_t p = 0; p < 3; ++p)
        EXPECT_TRUE(SameBits(buffers.State(p + 1), buffers.Propagated(p), width_)) << p;
      EXPECT_TRUE(std::signbit(buffers.State(1)[0]));
    }
  }
}

TEST_P(CpuUpdateTest, UpdateReportsStatesThatAreNotFinite) {
  const RandomSystem system = NewSystem(3, false, Activation::kTanh);
  const PackedLayers layers(system.spec());
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (int64_t lane = 0; lane < dim_; ++lane) {
      IntervalBuffers buffers(layers.view(), 1);
      FillStates(buffers, false);
      kernels_.propagate(buffers.ToPropagate(Matrices::kDense, false));
      buffers.Propagated(1)[lane] = bad;
      EXPECT_FALSE(kernels_.update(buffers.ToUpdate(Matrices::kDense, false, 1e-3)).finite) << lane;
    }
  }
}

// An overflow in a probe must not pass for a small one: the certificate rests on it.
TEST_P(CpuUpdateTest, AProbeThatIsNotFiniteIsInfiniteRounding) {
  const RandomSystem system = NewSystem(3, false, Activation::kTanh);
  const PackedLayers layers(system.spec());
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (int64_t lane = 0; lane < dim_; ++lane) {
      IntervalBuffers buffers(layers.view(), 1);
      FillStates(buffers, false);
      kernels_.propagate(buffers.ToPropagate(Matrices::kDense, true));
      buffers.Propagated(1, 1 + lane % 4)[lane] = bad;
      const cpu::IntervalNorms norms =
          kernels_.update(buffers.ToUpdate(Matrices::kDense, true, 1e-3));
      EXPECT_TRUE(std::isinf(norms.rounding)) << lane << ": " << norms.rounding;
      EXPECT_TRUE(std::isinf(norms.combined)) << lane << ": " << norms.combined;
      EXPECT_TRUE(norms.finite) << "the states are";
    }
  }
}

TEST_P(CpuUpdateTest, AnUpdateOfNothingHasNoNorm) {
  const RandomSystem system = NewSystem(3, false, Activation::kTanh);
  const PackedLayers layers(system.spec());
  IntervalBuffers buffers(layers.view(), 1);  // all states zero: 0 / 0 must not come out
  const cpu::IntervalNorms norms = kernels_.update(buffers.ToUpdate(Matrices::kNone, false, 0));
  EXPECT_EQ(norms.update, 0);
  EXPECT_EQ(norms.combined, 0);
  EXPECT_TRUE(norms.finite);
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, CpuUpdateTest, KernelsCases(), KernelsCaseName);

}  // namespace
}  // namespace deeppcr::testing
