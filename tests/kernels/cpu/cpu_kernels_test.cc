// SPDX-License-Identifier: Apache-2.0
// Products, steps and propagation compared with plain loops in double, and bits that must agree.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cpu/kernels_fixture.h"

namespace deeppcr::testing {
namespace {

using CpuStepsTest = CpuKernelsTest;

TEST_P(CpuStepsTest, ApplyMultipliesAndAdds) {
  const AlignedBuffer<float> matrix = RandomRows(dim_), in = RandomRows(9), base = RandomRows(9);
  for (const int64_t count : {1, 2, 3, 4, 5, 7, 8, 9}) {
    for (const bool with_base : {false, true}) {
      AlignedBuffer<float> out(10 * width_);
      std::fill_n(out.data() + count * width_, width_, 77.0F);
      kernels_.apply({.width = width_,
                      .inner = dim_,
                      .matrix = matrix.data(),
                      .in = in.data(),
                      .base = with_base ? base.data() : nullptr,
                      .out = out.data(),
                      .in_stride = width_,
                      .base_stride = width_,
                      .out_stride = width_,
                      .count = count,
                      .diagonal = false});
      for (int64_t j = 0; j < count; ++j)
        for (int64_t i = 0; i < dim_; ++i) {
          double sum = with_base ? base[j * width_ + i] : 0.0F, size = std::fabs(sum);
          for (int64_t k = 0; k < dim_; ++k) {
            const double term = double{matrix[k * width_ + i]} * in[j * width_ + k];
            sum += term;
            size += std::fabs(term);
          }
          // There is one rounding per term and one per product, each of a partial sum below `size`.
          ASSERT_NEAR(out[j * width_ + i], sum, (2 * static_cast<double>(dim_) + 1) * kUnit * size);
        }
      ExpectPaddingZero(out.data(), count, "out");
      EXPECT_EQ(out[count * width_], 77.0F) << "wrote beyond its columns";
    }
  }
}

TEST_P(CpuStepsTest, ApplyTakesALayerWithAnyNumberOfInputs) {
  for (const int64_t inputs : {1, 7, 100}) {
    const AlignedBuffer<float> matrix = RandomRows(inputs), bias = RandomRows(1);
    std::vector<float> in(inputs);
    for (float& x : in) x = static_cast<float>(generator_() % 1000) / 500.0F - 1.0F;
    AlignedBuffer<float> out(width_);
    kernels_.apply({.width = width_,
                    .inner = inputs,
                    .matrix = matrix.data(),
                    .in = in.data(),
                    .base = bias.data(),
                    .out = out.data(),
                    .count = 1});
    for (int64_t i = 0; i < dim_; ++i) {
      double sum = bias[i], size = std::fabs(sum);
      for (int64_t k = 0; k < inputs; ++k) {
        sum += double{matrix[k * width_ + i]} * in[k];
        size += std::fabs(double{matrix[k * width_ + i]} * in[k]);
      }
      ASSERT_NEAR(out[i], sum, (2 * static_cast<double>(inputs) + 1) * kUnit * size);
    }
  }
}

TEST_P(CpuStepsTest, ApplyWithADiagonalOrNoMatrixIsElementwise) {
  const AlignedBuffer<float> diagonal = RandomRows(1), in = RandomRows(3), base = RandomRows(3);
  for (const bool identity : {false, true}) {
    AlignedBuffer<float> out(3 * width_);
    kernels_.apply({.width = width_,
                    .inner = dim_,
                    .matrix = identity ? nullptr : diagonal.data(),
                    .in = in.data(),
                    .base = base.data(),
                    .out = out.data(),
                    .in_stride = width_,
                    .base_stride = width_,
                    .out_stride = width_,
                    .count = 3,
                    .diagonal = !identity});
    for (int64_t i = 0; i < 3 * width_; ++i) {
      const float product = identity ? in[i] : diagonal[i % width_] * in[i];
      ASSERT_NEAR(out[i], base[i] + product, kUnit * (std::fabs(base[i]) + std::fabs(product)));
    }
    ExpectPaddingZero(out.data(), 3, "out");
  }
}

TEST_P(CpuStepsTest, AdvanceEqualsTheReferenceStepByStep) {
  // Sigmoid(0) is not zero: a value that reaches the padding must be masked.
  for (const Activation activation : {Activation::kTanh, Activation::kRelu, Activation::kSigmoid}) {
    for (const bool residual : {false, true}) {
      const RandomSystem system = NewSystem(6, residual, activation);
      const PackedLayers layers(system.spec());
      AlignedBuffer<float> state = RandomRows(1), scratch(cpu::kSequentialGroup * width_);
      for (int64_t l = 1; l <= 6; ++l) {
        const Vector before = Doubles(state.data(), dim_);
        EXPECT_EQ(kernels_.advance(layers.view(), state.data(), scratch.data(), 1, l - 1, l, {}),
                  1);
        const Vector want = reference::Step(system.spec(), l, before);
        // A step takes sums of D terms of size one, then an activation with a slope of at most one.
        const double bound = (2 * static_cast<double>(dim_) + 16) * kUnit * (1 + Largest(before));
        for (int64_t i = 0; i < dim_; ++i) ASSERT_NEAR(state[i], want[i], bound) << "step " << l;
        ExpectPaddingZero(state.data(), 1, "state");
      }
    }
  }
}

// Values that are zero, infinite or none, each in a sample of its own.
void MakeSomeSpecial(AlignedBuffer<float>* rows, int64_t dim, int64_t width) {
  constexpr float kSpecial[] = {-0.0F, std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN(), 1e30F};
  const int64_t count = static_cast<int64_t>(rows->size()) / width;
  for (int64_t b = 0; b < count && b < 4; ++b) rows->data()[b * width + b % dim] = kSpecial[b];
}

// Same bits, but for which NaN it is: the sign of one depends on the order of operands.
bool SameNumbers(const float* a, const float* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (!SameBits(a + i, b + i, 1) && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  }
  return true;
}

TEST_P(CpuStepsTest, AdvanceOfManySamplesEqualsOneByOne) {
  for (const auto& [residual, activation] : kStepKinds) {
    const RandomSystem system = NewSystem(17, residual, activation);
    const PackedLayers layers(system.spec());
    AlignedBuffer<float> scratch(cpu::kSequentialGroup * width_);
    for (int32_t n = 1; n <= 33; ++n) {
      AlignedBuffer<float> together = RandomRows(n), alone(width_);
      if (n > 8) MakeSomeSpecial(&together, dim_, width_);
      const std::vector<float> initial(together.data(), together.data() + together.size());
      std::vector<std::vector<float>> states(n, std::vector<float>(18 * dim_));
      std::vector<float*> trajectories(n);
      for (int32_t b = 0; b < n; ++b) trajectories[b] = b % 3 == 1 ? nullptr : states[b].data();
      EXPECT_EQ(kernels_.advance(layers.view(), together.data(), scratch.data(), n, 0, 17,
                                 {.states = trajectories.data()}),
                17);
      for (int32_t b = 0; b < n; ++b) {
        std::copy_n(initial.data() + b * width_, width_, alone.data());
        for (int64_t l = 0; l < 17; ++l) {  // one step at a time, without a trajectory
          kernels_.advance(layers.view(), alone.data(), scratch.data(), 1, l, l + 1, {});
          if (trajectories[b] == nullptr) continue;
          ASSERT_TRUE(SameNumbers(alone.data(), states[b].data() + (l + 1) * dim_, dim_)) << l;
        }
        ASSERT_TRUE(SameNumbers(alone.data(), together.data() + b * width_, width_))
            << n << " " << b;
      }
      AlignedBuffer<float> untraced(n * width_);
      std::copy(initial.begin(), initial.end(), untraced.data());
      EXPECT_EQ(kernels_.advance(layers.view(), untraced.data(), scratch.data(), n, 0, 17, {}), 17);
      ASSERT_TRUE(SameNumbers(untraced.data(), together.data(), n * width_)) << n;
    }
  }
}

TEST_P(CpuStepsTest, PropagatedStatesHaveTheBitsOfAdvance) {
  for (const auto& [residual, activation] : kStepKinds) {
    const RandomSystem system = NewSystem(11, residual, activation);
    const PackedLayers layers(system.spec());
    AlignedBuffer<float> state(width_), scratch(cpu::kSequentialGroup * width_);
    for (const int64_t interval : {1, 4, 11}) {
      for (const bool probes : {false, true}) {
        for (const Matrices matrices : {Matrices::kNone, Matrices::kDense, Matrices::kDiagonal}) {
          IntervalBuffers buffers(layers.view(), interval);
          FillStates(buffers, probes);
          EXPECT_EQ(kernels_.propagate(buffers.ToPropagate(matrices, probes)), interval);
          for (int64_t p = 0; p < buffers.num_intervals(); ++p) {
            std::copy_n(buffers.State(p), width_, state.data());
            kernels_.advance(layers.view(), state.data(), scratch.data(), 1, p * interval,
                             std::min<int64_t>((p + 1) * interval, 11), {});
            ASSERT_TRUE(SameBits(state.data(), buffers.Propagated(p), width_)) << "interval " << p;
          }
        }
      }
    }
  }
}

TEST_P(CpuStepsTest, DenseJacobianIsTheProductOfTheStepJacobians) {
  constexpr int64_t kInterval = 3, kSteps = 8;  // the last interval has two steps
  for (const bool residual : {false, true}) {
    for (const Activation activation : {Activation::kTanh, Activation::kSoftplus}) {
      const RandomSystem system = NewSystem(kSteps, residual, activation);
      const PackedLayers layers(system.spec());
      IntervalBuffers buffers(layers.view(), kInterval);
      FillStates(buffers, false);
      kernels_.propagate(buffers.ToPropagate(Matrices::kDense, false));
      for (int64_t p = 1; p < buffers.num_intervals(); ++p) {
        Vector z = Doubles(buffers.State(p), dim_);
        Vector want(dim_ * dim_);
        for (int64_t i = 0; i < dim_; ++i) want[i * dim_ + i] = 1;
        for (int64_t l = p * kInterval + 1; l <= std::min((p + 1) * kInterval, kSteps); ++l) {
          want = Product(reference::StepJacobian(system.spec(), l, z), want, dim_);
          z = reference::Step(system.spec(), l, z);
        }
        const Vector got = Unpack(buffers.Dense(p));
        // Rounding has both signs and was measured below 2e-6; a wrong index shows as order one.
        for (int64_t i = 0; i < dim_ * dim_; ++i)
          ASSERT_NEAR(got[i], want[i], 1e-5 * Largest(want)) << "interval " << p << " entry " << i;
        ExpectPaddingZero(buffers.Dense(p), width_, "jacobian");
        for (int64_t k = dim_; k < width_; ++k)
          for (int64_t i = 0; i < width_; ++i) ASSERT_EQ(buffers.Dense(p)[k * width_ + i], 0.0F);
      }
    }
  }
}

TEST_P(CpuStepsTest, DiagonalIsThatOfTheStepJacobian) {
  for (const bool residual : {false, true}) {
    const RandomSystem system = NewSystem(5, residual, Activation::kSigmoid);
    const PackedLayers layers(system.spec());
    IntervalBuffers buffers(layers.view(), 1);
    FillStates(buffers, false);
    kernels_.propagate(buffers.ToPropagate(Matrices::kDiagonal, false));
    for (int64_t p = 0; p < 5; ++p) {
      const Vector want =
          reference::StepJacobian(system.spec(), p + 1, Doubles(buffers.State(p), dim_));
      for (int64_t i = 0; i < dim_; ++i)
        ASSERT_NEAR(buffers.Diagonal(p)[i], want[i * dim_ + i],
                    1e-5 * std::max(1.0, std::fabs(want[i * dim_ + i])));
    }
  }
}

TEST_P(CpuStepsTest, PropagateLeavesMatricesAloneWhereNoneAreWanted) {
  const RandomSystem system = NewSystem(4, false, Activation::kTanh);
  const PackedLayers layers(system.spec());
  IntervalBuffers buffers(layers.view(), 2);
  FillStates(buffers, true);
  kernels_.propagate(buffers.ToPropagate(Matrices::kDense, false));
  const std::vector<float> before(buffers.Dense(1), buffers.Dense(1) + width_ * width_);
  FillStates(buffers, true);
  kernels_.propagate(buffers.ToPropagate(Matrices::kNone, true));
  EXPECT_TRUE(SameBits(before.data(), buffers.Dense(1), width_ * width_));
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, CpuStepsTest, KernelsCases(), KernelsCaseName);

}  // namespace
}  // namespace deeppcr::testing
