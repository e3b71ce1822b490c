// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/stack/sequential_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/stack/stack_on_device.h"
#include "tests/testing/simt/executor.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

constexpr double kTolerance = 1e-4;  // the tolerance of all float32 backends

struct Solved {
  DeviceVector final_states, trajectories;
  int64_t num_dependent = 0;
};

// Solves by launches of at most `steps_at_once` steps.
template <int W>
Solved Solve(const RandomSystem& system, const std::vector<float>& inputs, int num_threads,
             simt::Order order, int64_t steps_at_once = int64_t{1} << 40) {
  const DenseStackSpec& spec = system.spec();
  const int64_t dim = spec.state_dim, n = static_cast<int64_t>(inputs.size()) / dim;
  const StackOnDevice stack(spec, W);
  const DeviceVector initial = Padded(inputs, dim, W);
  Solved solved{DeviceVector(n * W), DeviceVector(n * (spec.num_steps + 1) * dim)};
  cuda::SequentialArgs args{.stack = stack.view(),
                            .num_samples = static_cast<int32_t>(n),
                            .states = initial.data(),
                            .final_states = solved.final_states.data(),
                            .trajectories = solved.trajectories.data(),
                            .num_dependent = &solved.num_dependent};
  const int64_t warps = num_threads / cuda::kWarpSize;
  const simt::LaunchShape shape{.num_clusters = static_cast<int>((n - 1) / warps + 1),
                                .num_threads = num_threads,
                                .shared_bytes = cuda::SequentialBytes<W>(num_threads)};
  while (args.end < spec.num_steps) {
    args.begin = args.end;
    args.end = std::min(spec.num_steps, args.begin + steps_at_once);
    const simt::Outcome outcome =
        simt::Execute(shape, {.order = order, .seed = 1},
                      [&](simt::Thread& t) { cuda::SolveSequentially<W>(t, args); });
    EXPECT_EQ(outcome.trouble, "");
    EXPECT_EQ(solved.num_dependent, args.end - args.begin);
    args.states = solved.final_states.data();
  }
  return solved;
}

Solved SolveAt(int width, const RandomSystem& system, const std::vector<float>& inputs,
               int num_threads = 32, simt::Order order = simt::Order::kAscending) {
  if (width == 8) return Solve<8>(system, inputs, num_threads, order);
  if (width == 16) return Solve<16>(system, inputs, num_threads, order);
  return Solve<32>(system, inputs, num_threads, order);
}

int WidthFor(int64_t dim) { return dim <= 8 ? 8 : dim <= 16 ? 16 : 32; }

void ExpectReference(const StackOptions& options) {
  const RandomSystem system(options);
  const int64_t dim = options.state_dim, steps = options.num_steps, n = 3;
  const int width = WidthFor(dim);
  const std::vector<float> inputs = system.Inputs(n, 9);
  const Solved solved = SolveAt(width, system, inputs);
  for (int64_t s = 0; s < n; ++s) {
    const std::vector<double> z0(inputs.begin() + s * dim, inputs.begin() + (s + 1) * dim);
    const std::vector<double> want = reference::Trajectory(system.spec(), z0);
    const auto first = solved.trajectories.begin() + s * (steps + 1) * dim;
    const std::vector<float> got(first, first + (steps + 1) * dim);
    EXPECT_LT(RelativeError(got, want, dim, 1e-6), kTolerance) << Describe(options);
    for (int64_t i = 0; i < width; ++i)
      EXPECT_EQ(solved.final_states[s * width + i], i < dim ? got[steps * dim + i] : 0.0F)
          << Describe(options);
  }
}

TEST(SequentialKernelTest, AgreesWithTheReference) {
  for (const int64_t dim : {1, 3, 8, 9, 16, 17, 31, 32}) {
    for (const int64_t steps : {1, 2, 3, 4, 5, 33, 130}) {
      for (const bool residual : {false, true})
        ExpectReference({.num_steps = steps, .state_dim = dim, .residual = residual});
    }
  }
}

TEST(SequentialKernelTest, KnowsEveryActivation) {
  for (const ActivationName& row : kActivationNames) {
    for (const double gain : {0.5, 2.0})
      ExpectReference(
          {.num_steps = 6, .state_dim = 13, .activation = row.activation, .gain = gain, .bias = 1});
  }
}

TEST(SequentialKernelTest, ASampleHasTheSameBitsInEveryLaunch) {
  const RandomSystem system({.num_steps = 40, .state_dim = 11, .residual = true});
  const std::vector<float> inputs = system.Inputs(7, 4);
  const Solved alone = SolveAt(16, system, inputs);
  for (const int num_threads : {64, 128}) {
    for (const auto order : {simt::Order::kDescending, simt::Order::kShuffled}) {
      const Solved other = SolveAt(16, system, inputs, num_threads, order);
      EXPECT_EQ(alone.final_states, other.final_states);
      EXPECT_EQ(alone.trajectories, other.trajectories);
    }
  }
  const Solved last = SolveAt(16, system, {inputs.begin() + 6 * 11, inputs.end()});
  EXPECT_TRUE(std::equal(last.final_states.begin(), last.final_states.end(),
                         alone.final_states.begin() + 6 * 16));
}

// Every NaN is one: which of two operands' NaN a sum takes is the compiler's choice.
std::vector<uint32_t> BitsOf(const DeviceVector& values) {
  std::vector<uint32_t> bits(values.size());
  for (size_t i = 0; i < bits.size(); ++i) {
    const float value = std::isnan(values[i]) ? std::numeric_limits<float>::quiet_NaN() : values[i];
    std::memcpy(&bits[i], &value, sizeof(value));
  }
  return bits;
}

// Steps that are read ahead in pairs of chunks, and those that are left over, against one step a
// launch: zero biases, and inputs with zeros, a NaN and large numbers.
template <int W>
void ExpectSameBitsStepByStep(const StackOptions& options) {
  const RandomSystem system(options);
  std::vector<float> inputs = system.Inputs(4, 7);
  const auto dim = static_cast<size_t>(options.state_dim);
  std::fill_n(inputs.begin(), dim, 0.0F);
  inputs[dim] = std::numeric_limits<float>::quiet_NaN();
  for (size_t i = 2 * dim; i < 3 * dim; ++i) inputs[i] *= 1e30F;
  const auto solve = [&](int64_t steps_at_once) {
    return Solve<W>(system, inputs, 32, simt::Order::kAscending, steps_at_once);
  };
  const Solved whole = solve(options.num_steps), single = solve(1);
  EXPECT_EQ(BitsOf(whole.trajectories), BitsOf(single.trajectories)) << Describe(options);
  EXPECT_EQ(BitsOf(whole.final_states), BitsOf(single.final_states)) << Describe(options);
}

TEST(SequentialKernelTest, StepsHaveTheSameBitsOneALaunch) {
  for (const ActivationName& row : kActivationNames) {
    for (const bool residual : {false, true}) {
      for (const int64_t steps : {1, 7, 8, 9, 15, 16, 17, 24}) {
        StackOptions options{
            .num_steps = steps, .residual = residual, .activation = row.activation, .bias = 0};
        options.state_dim = 5;
        ExpectSameBitsStepByStep<8>(options);
        options.state_dim = 16;
        ExpectSameBitsStepByStep<16>(options);
        options.state_dim = 29;
        ExpectSameBitsStepByStep<32>(options);
      }
    }
  }
}

TEST(SequentialKernelTest, NaNAndOverflowReachTheFinalState) {
  const RandomSystem system(
      {.num_steps = 5, .state_dim = 4, .activation = Activation::kIdentity, .gain = 1e30});
  const Solved solved = SolveAt(8, system, system.Inputs(1, 4));
  EXPECT_FALSE(std::isfinite(solved.final_states[0]));
}

}  // namespace
}  // namespace deeppcr::testing
