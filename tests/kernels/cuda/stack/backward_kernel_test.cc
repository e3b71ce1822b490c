// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kernels/cuda/stack/backward_scan_kernel.h"
#include "kernels/cuda/stack/backward_shape.h"
#include "tests/kernels/cuda/stack/backward_problem.h"
#include "tests/testing/simt/orders.h"

namespace deeppcr::testing {
namespace {

using simt::Order;

constexpr double kTolerance = 1e-4;  // the tolerance of all float32 backends
constexpr double kFloor = 1e-30;     // far above the least normal float, far below every gradient

template <int W>
void ExpectReference(const BackwardProblem& problem, const StackGradients& want,
                     const BackwardLaunch& launch, const std::string& what) {
  const int64_t dim = problem.dim();
  const BackwardAnswer got = GoBack<W>(problem, launch);
  ASSERT_EQ(got.launch.trouble, "") << what;
  EXPECT_LT(RelativeError(Used(got.initial, dim, W), want.initial, dim, kFloor), kTolerance)
      << what;
  const std::vector<float> deltas(got.deltas.begin(), got.deltas.end());
  EXPECT_LT(RelativeError(deltas, want.deltas, dim, kFloor), kTolerance) << what;
}

void ExpectReference(int width, const StackOptions& options) {
  const BackwardProblem problem(options);
  const StackGradients want = ReferenceGradients(problem);
  for (const BackwardLaunch& launch :
       {BackwardLaunch{.num_warps = 2},
        BackwardLaunch{.interval = 1, .num_blocks = 4, .num_warps = 2},
        BackwardLaunch{.interval = 4, .num_blocks = 2, .num_warps = 1},
        BackwardLaunch{.interval = 5, .num_blocks = 8, .num_warps = 3},
        BackwardLaunch{.interval = 2, .num_blocks = 16, .num_warps = 2},
        BackwardLaunch{.interval = 16}}) {
    if (launch.interval > options.num_steps) continue;
    const std::string what = Describe(options) + " W " + std::to_string(width) + launch.Name();
    if (width == 8) ExpectReference<8>(problem, want, launch, what);
    if (width == 16) ExpectReference<16>(problem, want, launch, what);
    if (width == 32) ExpectReference<32>(problem, want, launch, what);
  }
}

TEST(BackwardKernelTest, AgreesWithTheReference) {
  for (const int width : cuda::kWidths) {
    for (const int64_t dim : {1, 3, 8, 13, 16, 32}) {
      for (const int64_t steps : {1, 2, 7, 33, 130}) {
        for (const bool residual : {false, true}) {
          if (dim > width) continue;
          ExpectReference(width, {.num_steps = steps,
                                  .state_dim = dim,
                                  .residual = residual,
                                  .gain = residual ? 1.0 : 1.3});
        }
      }
    }
  }
}

TEST(BackwardKernelTest, KnowsEveryActivation) {
  for (const ActivationName& row : kActivationNames) {
    for (const double gain : {0.5, 2.0})
      ExpectReference(
          16,
          {.num_steps = 6, .state_dim = 13, .activation = row.activation, .gain = gain, .bias = 1});
  }
}

// Products that are all too small by a bit of the last place make the gradients of deep stacks too
// small: by 2^-22 of each branch, beside a few times what the sequential kernel loses.
TEST(BackwardKernelTest, DeepStacksAreAsExactByTheScan) {
  for (const bool residual : {false, true}) {
    const BackwardProblem problem({.num_steps = 2048,
                                   .state_dim = 16,
                                   .residual = residual,
                                   .activation = Activation::kIdentity,
                                   .gain = 1});
    const StackGradients want = ReferenceGradients(problem);
    const auto error = [&](int64_t interval) {
      const BackwardAnswer got = GoBack<16>(problem, {.interval = interval, .num_blocks = 2});
      EXPECT_EQ(got.launch.trouble, "");
      return RelativeError(Used(got.initial, 16, 16), want.initial, 16, kFloor);
    };
    const double branches = residual ? std::sqrt(2048.0) : 0;  // of a scale of 1 / sqrt(L) each
    EXPECT_LT(error(8), 5 * error(0) + 0x1p-22 * branches + 1e-6) << residual;
  }
}

// Bits depend neither on the size of the cluster or its blocks, nor on the place of their memory,
// nor on the order of warps.
TEST(BackwardKernelTest, ASampleHasTheSameBitsInEveryLaunch) {
  const BackwardProblem problem({.num_steps = 70, .state_dim = 9, .residual = true}, 3);
  for (const int64_t interval : {0, 1, 3}) {
    const BackwardAnswer first = GoBack<16>(problem, {.interval = interval});
    for (const int num_blocks : {1, 2, 8, 16}) {
      for (const Order order : {Order::kDescending, Order::kShuffled}) {
        const BackwardLaunch launch{.interval = interval,
                                    .num_blocks = num_blocks,
                                    .num_warps = num_blocks == 8 ? 3 : 2,
                                    .in_workspace = order == Order::kShuffled};
        const BackwardAnswer other = GoBack<16>(problem, launch, {.order = order, .seed = 7});
        ASSERT_EQ(other.launch.trouble, "");
        EXPECT_EQ(first.deltas, other.deltas) << launch.Name();
        EXPECT_EQ(first.initial, other.initial) << launch.Name();
      }
    }
    const BackwardAnswer without =
        GoBack<16>(problem, {.interval = interval, .wants_deltas = false});
    EXPECT_EQ(first.initial, without.initial);
    BackwardProblem alone({.num_steps = 70, .state_dim = 9, .residual = true}, 1);
    alone.final_gradients.assign(problem.final_gradients.end() - 9, problem.final_gradients.end());
    alone.states.assign(problem.state(2, 0), problem.state(3, 0));
    const BackwardAnswer last = GoBack<16>(alone, {.interval = interval, .num_blocks = 4});
    EXPECT_TRUE(std::equal(last.initial.begin(), last.initial.end(), first.initial.end() - 16));
    EXPECT_TRUE(std::equal(last.deltas.begin(), last.deltas.end(), first.deltas.end() - 70 * 9));
  }
}

// A column has the bits that it has alone, by either way, and steps in pieces those of one launch.
TEST(BackwardKernelTest, AColumnHasTheSameBitsAmongOthers) {
  for (const int64_t columns : {2, 7, 33}) {
    const BackwardProblem all({.num_steps = 41, .state_dim = 5, .residual = true}, 3, columns);
    for (const int64_t interval : {0, 1, 3}) {
      const BackwardLaunch launch{.interval = interval, .num_blocks = 2, .num_warps = 3};
      const BackwardAnswer together = GoBack<8>(all, launch);
      ASSERT_EQ(together.launch.trouble, "");
      BackwardLaunch other = launch;
      other.in_workspace = true;
      other.piece = 7;
      EXPECT_EQ(GoBack<8>(all, other, {.order = Order::kShuffled, .seed = 3}).initial,
                together.initial);
      for (const int64_t column : {int64_t{0}, columns - 1}) {
        BackwardProblem one({.num_steps = 41, .state_dim = 5, .residual = true}, 3);
        ASSERT_EQ(one.states, all.states);
        for (int64_t s = 0; s < 3; ++s)
          std::copy_n(all.final_gradients.begin() + (s * columns + column) * 5, 5,
                      one.final_gradients.begin() + s * 5);
        const BackwardAnswer alone = GoBack<8>(one, launch);
        EXPECT_EQ(alone.num_dependent, together.num_dependent);
        for (int64_t s = 0; s < 3; ++s)
          EXPECT_TRUE(std::equal(alone.initial.begin() + s * 8, alone.initial.begin() + s * 8 + 8,
                                 together.initial.begin() + (s * columns + column) * 8))
              << "sample " << s << " column " << column << launch.Name();
      }
    }
  }
}

TEST(BackwardKernelTest, CountsTheStepsThatWaitForOneAnother) {
  const BackwardProblem problem({.num_steps = 130, .state_dim = 4}, 2);
  EXPECT_EQ(GoBack<8>(problem, {}).num_dependent, 130);
  // 33 intervals: 4 steps each, 2 levels up, 8 steps along the 9 nodes of the chain, 2 levels down,
  // 4 steps.
  for (const int num_blocks : {1, 4, 16})
    for (const bool wants_deltas : {true, false})
      EXPECT_EQ(GoBack<8>(problem, {.interval = 4,
                                    .num_blocks = num_blocks,
                                    .num_warps = 3,
                                    .wants_deltas = wants_deltas})
                    .num_dependent,
                4 + 2 + 8 + 2 + 4);
}

// The expected gradients are finite in double precision and beyond the range of float.
TEST(BackwardKernelTest, OverflowIsNeverAFiniteNumber) {
  for (const bool residual : {false, true}) {
    BackwardProblem problem({.num_steps = 40,
                             .state_dim = 4,
                             .residual = residual,
                             .activation = Activation::kIdentity,
                             .gain = 1e6});
    std::fill(problem.states.begin(), problem.states.end(), 1.0F);
    const StackGradients want = ReferenceGradients(problem);
    ASSERT_TRUE(std::isfinite(want.initial[0]));
    for (const int64_t interval : {0, 1, 4}) {
      const BackwardAnswer got = GoBack<8>(problem, {.interval = interval, .num_blocks = 2});
      for (const float g : Used(got.initial, 4, 8)) EXPECT_FALSE(std::isfinite(g));
      const DeviceVector& deltas = got.deltas;
      int finite = 0;
      for (size_t at = 0; at < deltas.size(); ++at) {
        if (!std::isfinite(deltas[at])) continue;
        ++finite;
        EXPECT_NEAR(deltas[at] / want.deltas[at], 1, 1e-2) << interval;  // sums may cancel
      }
      EXPECT_GT(finite, 0);
    }
  }
}

TEST(BackwardKernelTest, AStateThatIsNoNumberHasNoGradient) {
  for (const Activation activation : {Activation::kRelu, Activation::kTanh}) {
    BackwardProblem problem({.num_steps = 9, .state_dim = 5, .activation = activation});
    problem.states[6 * 5 + 2] = std::nanf("");
    for (const int64_t interval : {0, 1, 4}) {
      const BackwardAnswer got = GoBack<8>(problem, {.interval = interval, .num_blocks = 2});
      for (const float g : Used(got.initial, 5, 8)) EXPECT_TRUE(std::isnan(g)) << interval;
    }
  }
}

// Every barrier is needed: without it some order of warps gives another answer.
TEST(BackwardKernelTest, EveryBarrierIsNeeded) {
  const BackwardProblem problem({.num_steps = 70, .state_dim = 5});
  const BackwardLaunch launches[] = {{.interval = 1, .num_blocks = 2, .num_warps = 2},
                                     {.interval = 10, .num_blocks = 4, .num_warps = 1},
                                     {.interval = 2, .num_blocks = 4, .num_warps = 3}};
  simt::ExpectEveryBarrierIsNeeded(
      cuda::kNumBackwardSites, launches,
      [&](const BackwardLaunch& launch, const simt::Schedule& schedule) {
        return GoBack<8>(problem, launch, schedule);
      },
      [](const BackwardAnswer& a, const BackwardAnswer& b) {
        return a.deltas == b.deltas && a.initial == b.initial;
      });
}

TEST(BackwardShapeTest, NoNodeBelowTheChainSpansBlocks) {
  for (int32_t intervals = 1; intervals <= 5000; ++intervals) {
    for (const int32_t blocks : {1, 2, 4, 8, 16}) {
      const cuda::IntervalTree tree(intervals, blocks);
      const int level = cuda::ChainLevel(tree);
      EXPECT_LE(tree.nodes(level), cuda::kChainNodes);
      EXPECT_GE(tree.per_block >> level, 1);
    }
  }
}

TEST(BackwardShapeTest, EveryShapeFitsOrLiesInTheWorkspace) {
  constexpr cuda::LaunchLimits kLimits = {
      .multiprocessors = 132, .shared_bytes = size_t{227} << 10, .max_cluster_blocks = 16};
  const cuda::NewtonShape w3 = cuda::ChooseBackwardShape({16, 128, 8, 1}, 1, kLimits);
  EXPECT_EQ(w3.num_blocks, 16);
  EXPECT_EQ(w3.num_warps, 8);
  EXPECT_FALSE(w3.in_workspace);
  EXPECT_EQ(cuda::ChooseBackwardShape({16, 128, 8, 1}, 132, kLimits).num_blocks, 1);
  EXPECT_EQ(cuda::ChooseBackwardShape({16, 1, 8, 1}, 1, kLimits).num_blocks, 1);
  EXPECT_EQ(cuda::ChooseBackwardShape({16, 1, 8, 1}, 1, {}).num_blocks, 0);
  for (const int width : cuda::kWidths) {
    for (int32_t intervals = 1; intervals <= 5000; intervals += 7) {
      const cuda::BackwardScanSize size = {width, intervals, 16, 1 + intervals % 32};
      const cuda::NewtonShape shape = cuda::ChooseBackwardShape(size, 2, kLimits);
      const cuda::IntervalTree tree(intervals, shape.num_blocks);
      EXPECT_EQ(shape.in_workspace, cuda::BackwardBytes(size, tree) > kLimits.shared_bytes);
      EXPECT_EQ(shape.in_workspace, cuda::BackwardWorkspaceBytes(size, kLimits) > 0);
      // The workspace is for intervals that the largest cluster has too little memory for.
      if (shape.in_workspace) {
        EXPECT_EQ(shape.num_blocks, 16);
      }
      EXPECT_GE(shape.num_warps, 1);
      EXPECT_LE(shape.num_warps, cuda::MaxBackwardWarps(width));
    }
  }
}

}  // namespace
}  // namespace deeppcr::testing
