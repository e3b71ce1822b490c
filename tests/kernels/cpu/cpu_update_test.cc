// SPDX-License-Identifier: Apache-2.0
// Rounding probes and the update with its norms, compared with plain loops in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/iteration/pass.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cpu/kernels_fixture.h"

namespace deeppcr::testing {
namespace {

// The columns of all states, [p][column][lane].
using Columns = std::vector<std::vector<std::vector<float>>>;

class CpuUpdateTest : public CpuKernelsTest {
 protected:
  Columns ColumnsOf(IntervalBuffers& buffers) const {
    Columns all(buffers.num_intervals() + 1);
    for (int64_t p = 0; p <= buffers.num_intervals(); ++p)
      for (int64_t v = 0; v < cpu::kColumns; ++v)
        all[p].emplace_back(buffers.State(p, v), buffers.State(p, v) + width_);
    return all;
  }
};

// sqrt(z'^2 + (z' - z)^2 + slope^2 (b^2 + sum_k W_k^2 z_k^2) max(1, D / 12)) for element i of step
// l; the second term is for residual steps only. The last factor is of the partial sums: n / 2 of
// their squares, a sixth of each.
double RoundingSize(const DenseStackSpec& spec, int64_t l, const Vector& before, double after,
                    int64_t i) {
  const int64_t dim = spec.state_dim;
  const float* weights = spec.weights.data() + ((l - 1) * dim + i) * dim;
  const double bias = spec.biases.empty() ? 0 : spec.biases[(l - 1) * dim + i];
  double x = bias, terms = bias * bias;
  for (int64_t k = 0; k < dim; ++k) {
    x += weights[k] * before[k];
    terms += std::pow(weights[k] * before[k], 2);
  }
  terms *= std::max(1.0, static_cast<double>(dim) / 12);
  // The slope is the largest nearby. No probe enters the first step of an interval.
  const double reach = SlopeReach(static_cast<float>(std::sqrt(terms)), 0);
  double slope = 0;
  for (const double a : {x, x - std::clamp(x, -reach, reach), x + reach})
    slope = std::max(slope, std::fabs(reference::Differentiate(spec.activation, a)));
  if (spec.residual) slope *= spec.residual_scale;
  const double branch = spec.residual ? after - before[i] : 0;
  // A slope of zero contributes nothing, whatever its factor is: terms may be infinite.
  return std::sqrt(after * after + branch * branch + (slope == 0 ? 0 : slope * slope * terms));
}

// Expects the source for a rounding of this size: a unit of it, up to a quarter more or less, plus
// the least float unless the size is zero.
void ExpectSourceOf(double size, double probe, double slack = 0) {
  const double source = std::fabs(probe);
  slack += 1e-5 * kUnit * size;
  ASSERT_GE(source, 0.75 * kUnit * size - slack);
  ASSERT_LE(source, 1.25 * kUnit * size + slack + (size > 0 ? 0x1p-149 : 0));
}

// A probe picks up the rounding of the new state and of the terms of its dot products, which may
// cancel in the state.
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
      for (int64_t i = 0; i < dim_; ++i) {
        const double size = RoundingSize(system.spec(), p + 1, before, buffers.Propagated(p)[i], i);
        for (int64_t v = 1; v < cpu::kColumns; ++v, ++all) {
          const double probe = buffers.Propagated(p, v)[i];
          ASSERT_NO_FATAL_FAILURE(ExpectSourceOf(size, probe));
          positive += probe > 0;
        }
      }
    }
    // Signs are fair coins, at least 32 of them: fewer than one head in eight will not happen.
    EXPECT_GT(8 * positive, all);
    EXPECT_LT(8 * positive, 7 * all);
  }
}

// Layers made by hand.
struct OwnSystem {
  std::vector<float> weights, biases;
  DenseStackSpec spec;

  OwnSystem(const DenseStackSpec& shape, float weight, float bias)
      : weights(shape.num_steps * shape.state_dim * shape.state_dim, weight),
        biases(shape.num_steps * shape.state_dim, bias),
        spec(shape) {
    spec.weights = weights;
    spec.biases = biases;
  }
  explicit OwnSystem(const DenseStackSpec& shape)
      : weights(shape.weights.begin(), shape.weights.end()),
        biases(shape.biases.begin(), shape.biases.end()),
        spec(shape) {
    spec.weights = weights;
    spec.biases = biases;
  }
  OwnSystem(const OwnSystem&) = delete;
};

// Layers that are homogeneous in states and biases have homogeneous rounding, down to the least
// float: no square overflows or vanishes on the way.
TEST_P(CpuUpdateTest, RoundingIsInTheUnitOfTheStates) {
  for (const Activation activation : {Activation::kIdentity, Activation::kRelu}) {
    for (const bool residual : {false, true}) {
      const RandomSystem system = NewSystem(4, residual, activation);
      const PackedLayers layers(system.spec());
      IntervalBuffers plain(layers.view(), 1);
      FillStates(plain, false);
      kernels_.propagate(plain.ToPropagate(Matrices::kNone, true));
      for (const int exponent : {-100, -50, 50, 100}) {
        OwnSystem scaled(system.spec());
        for (float& b : scaled.biases) b = std::ldexp(b, exponent);
        const PackedLayers scaled_layers(scaled.spec);
        IntervalBuffers buffers(scaled_layers.view(), 1);
        for (int64_t p = 0; p <= 4; ++p)
          for (int64_t i = 0; i < dim_; ++i)
            buffers.State(p)[i] = std::ldexp(plain.State(p)[i], exponent);
        kernels_.propagate(buffers.ToPropagate(Matrices::kNone, true));
        for (int64_t p = 0; p < 4; ++p)
          for (int64_t v = 1; v < cpu::kColumns; ++v)
            for (int64_t i = 0; i < dim_; ++i) {
              const double want = std::ldexp(double{plain.Propagated(p, v)[i]}, exponent);
              ASSERT_NEAR(buffers.Propagated(p, v)[i], want, 1e-6 * std::fabs(want) + 0x1p-148)
                  << "2^" << exponent;
            }
      }
    }
  }
}

// States near the least float are rounded to multiples of it.
TEST_P(CpuUpdateTest, TheLeastStatesHaveTheRoundingOfTheLeastFloat) {
  const OwnSystem system({.num_steps = 2, .state_dim = dim_, .activation = Activation::kIdentity},
                         0.5F / static_cast<float>(dim_), 0.0F);
  const PackedLayers layers(system.spec);
  for (const float state : {0x1p-126F, 0x1p-130F, 0x1p-140F}) {
    IntervalBuffers buffers(layers.view(), 1);
    for (int64_t p = 0; p <= 2; ++p) std::fill_n(buffers.State(p), dim_, state);
    kernels_.propagate(buffers.ToPropagate(Matrices::kNone, true));
    for (int64_t p = 0; p < 2; ++p)
      for (int64_t v = 1; v < cpu::kColumns; ++v)
        for (int64_t i = 0; i < dim_; ++i)
          ASSERT_EQ(std::fabs(buffers.Propagated(p, v)[i]), 0x1p-149F) << state;
  }
  // Zeros are exact.
  IntervalBuffers zeros(layers.view(), 1);
  kernels_.propagate(zeros.ToPropagate(Matrices::kNone, true));
  for (int64_t v = 1; v < cpu::kColumns; ++v)
    for (int64_t i = 0; i < dim_; ++i) ASSERT_EQ(zeros.Propagated(0, v)[i], 0.0F);
}

// These units are off, behind weights whose squares overflow.
TEST_P(CpuUpdateTest, TermsBehindASlopeOfZeroCountForNothing) {
  for (const bool residual : {false, true}) {
    for (const Activation activation : {Activation::kRelu, Activation::kSigmoid}) {
      const OwnSystem system(
          {.num_steps = 2, .state_dim = dim_, .residual = residual, .activation = activation},
          -1e30F, -1e30F);
      const PackedLayers layers(system.spec);
      IntervalBuffers buffers(layers.view(), 1);
      for (int64_t p = 0; p <= 2; ++p) std::fill_n(buffers.State(p), dim_, 1.5F);
      kernels_.propagate(buffers.ToPropagate(Matrices::kNone, true));
      for (int64_t p = 0; p < 2; ++p) {
        const Vector before = Doubles(buffers.State(p), dim_);
        for (int64_t i = 0; i < dim_; ++i) {
          const double size = RoundingSize(system.spec, p + 1, before, buffers.Propagated(p)[i], i);
          for (int64_t v = 1; v < cpu::kColumns; ++v)
            ASSERT_NO_FATAL_FAILURE(ExpectSourceOf(size, buffers.Propagated(p, v)[i]));
        }
      }
    }
  }
}

// A step makes large states from small ones, or small ones from large ones.
TEST_P(CpuUpdateTest, RoundingIsThatOfTheLargerEndOfAStep) {
  for (const bool residual : {false, true}) {
    for (const float gain : {1e-30F, 1e-15F, 1e15F, 1e30F}) {
      const OwnSystem system({.num_steps = 1,
                              .state_dim = dim_,
                              .residual = residual,
                              .activation = Activation::kIdentity},
                             gain, 0.0F);
      const PackedLayers layers(system.spec);
      IntervalBuffers buffers(layers.view(), 1);
      for (int64_t i = 0; i < dim_; ++i) buffers.State(0)[i] = 1 + static_cast<float>(i % 3);
      kernels_.propagate(buffers.ToPropagate(Matrices::kNone, true));
      const Vector before = Doubles(buffers.State(0), dim_);
      for (int64_t i = 0; i < dim_; ++i) {
        const double size = RoundingSize(system.spec, 1, before, buffers.Propagated(0)[i], i);
        // Rounding below 2^-64 of the larger end may be lost.
        const double slack = kUnit * 0x1p-64 * Largest(before);
        for (int64_t v = 1; v < cpu::kColumns; ++v)
          ASSERT_NO_FATAL_FAILURE(ExpectSourceOf(size, buffers.Propagated(0, v)[i], slack)) << gain;
      }
    }
  }
}

// A state that its bias cancels leaves only the rounding of both.
TEST_P(CpuUpdateTest, WhatCancelsInTheStateDoesNotInItsRounding) {
  for (const float state : {0x1p-70F, 1.0F, 0x1p90F}) {
    OwnSystem system({.num_steps = 1, .state_dim = dim_, .activation = Activation::kIdentity}, 0.0F,
                     -state);
    for (int64_t i = 0; i < dim_; ++i) system.weights[i * dim_ + i] = 1;
    const PackedLayers layers(system.spec);
    IntervalBuffers buffers(layers.view(), 1);
    std::fill_n(buffers.State(0), dim_, state);
    kernels_.propagate(buffers.ToPropagate(Matrices::kNone, true));
    const double size = state * std::sqrt(2 * std::max(1.0, static_cast<double>(dim_) / 12));
    for (int64_t i = 0; i < dim_; ++i) {
      ASSERT_EQ(buffers.Propagated(0)[i], 0.0F);
      for (int64_t v = 1; v < cpu::kColumns; ++v)
        ASSERT_NO_FATAL_FAILURE(ExpectSourceOf(size, buffers.Propagated(0, v)[i])) << state;
    }
  }
}

// Probes enter an interval as zeros, whatever stands beside the states; every step carries them on.
TEST_P(CpuUpdateTest, ProbesAreCarriedByTheJacobianAndGrowBySourcesAlone) {
  constexpr int64_t kInterval = 3, kIntervals = 2;
  for (const bool residual : {false, true}) {
    const RandomSystem system = NewSystem(kInterval * kIntervals, residual, Activation::kTanh);
    const PackedLayers layers(system.spec());
    IntervalBuffers buffers(layers.view(), kInterval), single(layers.view(), 1);
    FillStates(buffers, false);
    for (int64_t p = 0; p <= kIntervals; ++p)
      for (int64_t v = 1; v < cpu::kColumns; ++v)
        std::fill_n(buffers.State(p, v), dim_, std::numeric_limits<float>::quiet_NaN());
    kernels_.propagate(buffers.ToPropagate(Matrices::kNone, true));
    for (int64_t p = 0; p < kIntervals; ++p) {
      // The expected probes come from single steps, interval by interval.
      Vector probes[cpu::kColumns], magnitudes[cpu::kColumns];
      std::copy_n(buffers.State(p), width_, single.State(p * kInterval));
      for (int64_t l = p * kInterval; l < (p + 1) * kInterval; ++l) {
        kernels_.propagate(single.ToPropagate(Matrices::kNone, true));
        const Vector jacobian =
            reference::StepJacobian(system.spec(), l + 1, Doubles(single.State(l), dim_));
        for (int64_t v = 1; v < cpu::kColumns; ++v) {
          Vector next = Doubles(single.Propagated(l, v), dim_), magnitude(dim_);
          for (int64_t i = 0; i < dim_; ++i) {
            ASSERT_GT(std::fabs(next[i]), 0) << "a source";
            magnitude[i] = std::fabs(next[i]);
            for (int64_t k = 0; k < dim_ && !probes[v].empty(); ++k) {
              next[i] += jacobian[i * dim_ + k] * probes[v][k];
              magnitude[i] += std::fabs(jacobian[i * dim_ + k]) * magnitudes[v][k];
            }
          }
          probes[v] = next;
          magnitudes[v] = magnitude;
        }
        if (l + 1 < kInterval * kIntervals)
          std::copy_n(single.Propagated(l), width_, single.State(l + 1));
      }
      for (int64_t v = 1; v < cpu::kColumns; ++v)
        for (int64_t i = 0; i < dim_; ++i)
          // The tolerance covers the reach within which the largest slope is taken.
          ASSERT_NEAR(buffers.Propagated(p, v)[i], probes[v][i], 2e-4 * magnitudes[v][i]);
    }
    for (int64_t p = 0; p < kIntervals; ++p)
      ExpectPaddingZero(buffers.Propagated(p), cpu::kColumns, "probes");
  }
}

// The norms of an update, by their definition.
struct Norms {
  double floor;
  double update = 0, rounding = 0, combined = 0, share = 0;

  // Adds an interval with its largest change, state and probe.
  void Add(double change, double size, double probe) {
    update = std::max(update, change / (size + floor));
    rounding = std::max(rounding, probe / (size + floor));
    combined = std::max(combined, ErrorBound(change, probe) / (size + floor));
  }
  void Expect(const cpu::IntervalNorms& got) const {
    EXPECT_NEAR(got.update, update, 1e-6 * update);
    EXPECT_NEAR(got.rounding, rounding, 1e-6 * rounding);
    EXPECT_NEAR(got.combined, combined, 1e-6 * combined);
    EXPECT_NEAR(got.share, share, 1e-6 * share);
    EXPECT_TRUE(got.finite);
  }
};

// F + A d at [p * kColumns + v][i], in double, for every p and v, and a bound of the float32 error.
struct Corrected {
  std::vector<Vector> value, error;
};
Corrected Correct(IntervalBuffers& buffers, Matrices matrices, int64_t dim, int64_t width) {
  Corrected all;
  for (int64_t p = 0; p < buffers.num_intervals(); ++p)
    for (int64_t v = 0; v < cpu::kColumns; ++v) {
      Vector value(dim), error(dim);
      for (int64_t i = 0; i < dim; ++i) {
        value[i] = buffers.Propagated(p, v)[i];
        double magnitude = std::fabs(value[i]);
        for (int64_t k = 0; k < dim && p > 0; ++k) {
          double a = matrices == Matrices::kDense ? buffers.Dense(p)[k * width + i] : k == i;
          if (matrices == Matrices::kDiagonal && k == i) a = buffers.Diagonal(p)[i];
          value[i] += a * buffers.Prefix(p, v)[k];
          magnitude += std::fabs(a * buffers.Prefix(p, v)[k]);
        }
        error[i] = (2 * static_cast<double>(dim) + 1) * kUnit * magnitude;
      }
      all.value.push_back(value);
      all.error.push_back(error);
    }
  return all;
}

TEST_P(CpuUpdateTest, UpdateAddsTheCorrectionAndMeasuresIt) {
  const RandomSystem system = NewSystem(5, false, Activation::kTanh);
  const PackedLayers layers(system.spec());
  for (const Matrices matrices : {Matrices::kNone, Matrices::kDense, Matrices::kDiagonal}) {
    for (const bool probes : {false, true}) {
      IntervalBuffers buffers(layers.view(), 1);
      FillStates(buffers, true);
      kernels_.propagate(buffers.ToPropagate(matrices, probes));
      FillRows(buffers.Prefix(0), 5 * cpu::kColumns);
      const Columns before = ColumnsOf(buffers);
      const Corrected want = Correct(buffers, matrices, dim_, width_);
      const std::vector<float> first(buffers.Propagated(0), buffers.Propagated(0) + width_);
      const cpu::IntervalNorms got = kernels_.update(buffers.ToUpdate(matrices, probes, 0.125));
      EXPECT_TRUE(SameBits(buffers.State(1), first.data(), width_)) << "d_0 is zero";
      Norms norms{.floor = 0.125};
      for (int64_t p = 0; p < 5; ++p) {
        double change = 0, size = 0, probe = 0;
        for (int64_t i = 0; i < dim_; ++i) {
          const float* y = buffers.State(p + 1);
          for (int64_t v = 0; v < (probes ? cpu::kColumns : 1); ++v)
            ASSERT_NEAR(buffers.Propagated(p, v)[i], want.value[p * cpu::kColumns + v][i],
                        want.error[p * cpu::kColumns + v][i]);
          EXPECT_EQ(y[i], buffers.Propagated(p)[i]);
          const float correction = y[i] - before[p + 1][0][i], moved = std::fabs(correction);
          EXPECT_EQ(y[kUpdateColumn * width_ + i], correction);
          float rho = 0;
          for (int64_t v = 1; v < cpu::kColumns && probes; ++v)
            rho = std::max(rho, std::fabs(buffers.Propagated(p, v)[i]));
          const float ball = probes ? BallOf(before[p + 1][kUpdateColumn][i], correction, y[i], rho)
                                    : before[p + 1][kBallColumn][i];
          EXPECT_EQ(y[kBallColumn * width_ + i], ball);
          const double error = moved + double{kRoundingFactor} * rho;
          if (probes) norms.share = std::max<double>(norms.share, error / std::fabs(ball));
          change = std::max<double>(change, moved);
          size = std::max<double>(size, std::fabs(y[i]));
          probe = std::max<double>(probe, rho);
        }
        norms.Add(change, size, probe);
      }
      norms.Expect(got);
      EXPECT_EQ(got.share > 0, probes);
      ExpectPaddingZero(buffers.State(0), 6 * cpu::kColumns, "states");
    }
  }
}

// A confirmation restores the states: the update column holds only the way back, and the balls
// point along it.
TEST_P(CpuUpdateTest, AConfirmationRestoresTheStatesAndMeasuresTheWayBack) {
  const RandomSystem system = NewSystem(5, false, Activation::kTanh);
  const PackedLayers layers(system.spec());
  for (const Matrices matrices : {Matrices::kNone, Matrices::kDense, Matrices::kDiagonal}) {
    IntervalBuffers buffers(layers.view(), 1);
    FillStates(buffers, true);
    kernels_.propagate(buffers.ToPropagate(matrices, false));
    FillRows(buffers.Prefix(0), 5 * cpu::kColumns);
    buffers.State(2, cpu::kKeptColumn)[0] = -0.0F;
    const Columns before = ColumnsOf(buffers);
    const Corrected want = Correct(buffers, matrices, dim_, width_);
    cpu::UpdateArgs args = buffers.ToUpdate(matrices, false, 0.125);
    args.confirms = true;
    const cpu::IntervalNorms got = kernels_.update(args);
    Norms norms{.floor = 0.125};
    for (int64_t p = 0; p < 5; ++p) {
      double change = 0, size = 0;
      for (int64_t i = 0; i < dim_; ++i) {
        const float next = buffers.Propagated(p)[i];
        ASSERT_NEAR(next, want.value[p * cpu::kColumns][i], want.error[p * cpu::kColumns][i]);
        const float kept = before[p + 1][cpu::kKeptColumn][i];
        const float way = next - kept, back = std::fabs(way);
        EXPECT_EQ(buffers.State(p + 1, kUpdateColumn)[i], way);
        EXPECT_EQ(buffers.State(p + 1, kBallColumn)[i], Along(way, before[p + 1][kBallColumn][i]));
        norms.share =
            std::max<double>(norms.share, ShareOfBall(back, before[p + 1][kBallColumn][i]));
        change = std::max<double>(change, back);
        size = std::max<double>(size, std::fabs(kept));
      }
      norms.Add(change, size, 0);
      for (const int v : {0, cpu::kKeptColumn})
        EXPECT_TRUE(
            SameBits(buffers.State(p + 1, v), before[p + 1][cpu::kKeptColumn].data(), width_))
            << "column " << v;
    }
    norms.Expect(got);
    EXPECT_EQ(got.rounding, 0);
    EXPECT_GT(got.share, 0);
    EXPECT_TRUE(SameBits(buffers.State(0), before[0][0].data(), width_)) << "z_0";
  }
}

// Every element counts, each relative to its own ball.
TEST_P(CpuUpdateTest, TheShareIsThatOfTheElementWhichFillsItsBallMost) {
  const RandomSystem system = NewSystem(3, false, Activation::kTanh);
  const PackedLayers layers(system.spec());
  for (const bool confirms : {false, true}) {
    for (int64_t lane = 0; lane < dim_; ++lane) {
      IntervalBuffers buffers(layers.view(), 1);
      for (int64_t p = 0; p < 3; ++p)
        for (int64_t i = 0; i < dim_; ++i) {
          // Elements move by 1/64 from 1. Balls are 1, and one is 1/8; an update with probes takes
          // them from the previous update, which was four times as large.
          float* y = buffers.State(p + 1);
          const bool small = p == lane % 3 && i == lane;
          (confirms ? y + cpu::kKeptColumn * width_ : y)[i] = 1;
          y[(confirms ? kBallColumn : kUpdateColumn) * width_ + i] =
              (confirms ? 1.0F : 4.0F) * (small ? 0.125F : 1.0F);
          buffers.Propagated(p)[i] = 1 + 0x1p-6F;
        }
      cpu::UpdateArgs args = buffers.ToUpdate(Matrices::kNone, !confirms, 1e-3);
      args.confirms = confirms;
      EXPECT_EQ(kernels_.update(args).share, 0x1p-3) << lane << (confirms ? " confirms" : "");
    }
  }
}

// Covers errors that count as none, balls of size zero, and an infinite way back.
TEST_P(CpuUpdateTest, SharesOfBallsThatAreNothing) {
  const RandomSystem system = NewSystem(3, false, Activation::kTanh);
  const PackedLayers layers(system.spec());
  const auto returned = [&](float from, float kept, float ball, int64_t lane) {
    IntervalBuffers buffers(layers.view(), 1);
    buffers.Propagated(1)[lane] = from;
    buffers.State(2, cpu::kKeptColumn)[lane] = kept;
    buffers.State(2, kBallColumn)[lane] = ball;
    cpu::UpdateArgs args = buffers.ToUpdate(Matrices::kNone, false, 1e-3);
    args.confirms = true;
    return kernels_.update(args);
  };
  const float infinity = std::numeric_limits<float>::infinity();
  for (int64_t lane = 0; lane < dim_; ++lane) {
    EXPECT_EQ(returned(1, 1, 0, lane).share, 0);
    EXPECT_EQ(returned(kLeastNormal, 0, 0, lane).share, 0);
    EXPECT_EQ(returned(0x1.000002p-126F, 0, 0, lane).share, infinity);
    EXPECT_EQ(returned(1.5F, 1, 0, lane).share, infinity);
    EXPECT_EQ(returned(1.5F, 1, 2, lane).share, 0.25);
    EXPECT_TRUE(returned(1.5F, 1, 2, lane).finite);
    EXPECT_FALSE(returned(infinity, 1, infinity, lane).finite);
    EXPECT_FALSE(returned(-infinity, 1, 1, lane).finite);
    EXPECT_FALSE(returned(std::numeric_limits<float>::quiet_NaN(), 1, 1, lane).finite);
    // The way back is finite, but too long for a float.
    EXPECT_FALSE(returned(3e38F, -3e38F, 1, lane).finite);
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
      if (!enters) args.prefix = nullptr;
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

// An overflow in a probe must not count as a small value: the certificate relies on the probe.
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
  IntervalBuffers buffers(layers.view(), 1);  // all states are zero: the result must not be 0 / 0
  const cpu::IntervalNorms norms = kernels_.update(buffers.ToUpdate(Matrices::kNone, false, 0));
  EXPECT_EQ(norms.update, 0);
  EXPECT_EQ(norms.combined, 0);
  EXPECT_TRUE(norms.finite);
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, CpuUpdateTest, KernelsCases(), KernelsCaseName);

}  // namespace
}  // namespace deeppcr::testing
