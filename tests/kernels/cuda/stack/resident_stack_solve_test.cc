// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/stack/resident_stack_solve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/stack/warp_stack_model.h"
#include "tests/kernels/conformance/causality.h"
#include "tests/testing/simt/orders.h"
#include "tests/testing/simt/simt_device.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

using simt::DeviceOptions;
using simt::NewSimtDevice;

DeviceOptions GridOf(int blocks) {
  DeviceOptions options;
  options.limits.grid_blocks = blocks;
  return options;
}
SolverRig RigOn(const DeviceOptions& options, const RandomSystem& system) {
  return SolverRig(cuda::NewCudaBackend(NewSimtDevice(options)), system.spec());
}
// Blocks of a launch for so many intervals.
int BlocksOf(int32_t intervals) { return cuda::HelpedShape{intervals}.blocks(); }

struct Case {
  StackOptions stack;
  int64_t interval;
  int32_t intervals;
};
StackOptions Residual(int64_t steps, int64_t dim, double gain = 0.3) {
  return {.num_steps = steps, .state_dim = dim, .residual = true, .gain = gain};
}
StackOptions Relu(int64_t steps, int64_t dim, double gain = 1.1) {
  return {.num_steps = steps, .state_dim = dim, .activation = Activation::kRelu, .gain = gain};
}
bool TakesOneLaunch(const Case& c, int grid_blocks) {
  const int64_t intervals = (c.stack.num_steps + c.interval - 1) / c.interval;
  EXPECT_EQ(intervals, c.intervals);
  return cuda::PlanResidentStack(64, intervals, c.interval, GridOf(grid_blocks).limits)
             .num_intervals == c.intervals;
}
// Two intervals; a group that is full; a second group of one node, of two; a third and a fourth
// group; a last interval that has fewer steps.
const Case kCases[] = {{Residual(2, 64), 1, 2},   {Relu(9, 64), 1, 9},
                       {Residual(10, 50), 1, 10}, {Relu(31, 49), 3, 11},
                       {Residual(20, 63), 1, 20}, {Relu(29, 64), 1, 29},
                       {Residual(57, 64), 2, 29}};

// The answers are those of the launches of a pass each but for the rounding of other products, and
// take no more iterations.
void ExpectAnswersOfManyLaunches(const Case& c) {
  SCOPED_TRACE(Describe(c.stack));
  const RandomSystem system(c.stack);
  const int64_t steps = c.stack.num_steps;
  const ResolvedOptions options = OptionsFor("newton", steps, c.interval, 1e-4);
  const std::vector<float> inputs = system.Inputs(2, 3);
  EXPECT_TRUE(TakesOneLaunch(c, BlocksOf(c.intervals)));
  EXPECT_FALSE(TakesOneLaunch(c, BlocksOf(c.intervals) - 1));
  const SolverRig rig = RigOn(GridOf(BlocksOf(c.intervals)), system);
  const Solved exact = rig.Solve({.solver = "sequential"}, inputs);
  const Solved got = rig.Solve(options, inputs);
  const Solved want = RigOn(GridOf(BlocksOf(c.intervals) - 1), system).Solve(options, inputs);
  ASSERT_EQ(got.reports.size(), 2U);
  ASSERT_EQ(got.trajectory.size(), exact.trajectory.size());
  for (size_t s = 0; s < 2; ++s) {
    EXPECT_TRUE(got.reports[s].converged && !got.reports[s].fallback);
    EXPECT_EQ(got.reports[s].iterations, want.reports[s].iterations);
    EXPECT_EQ(got.reports[s].chord_corrections, want.reports[s].chord_corrections);
  }
  float largest = 0;
  for (const float x : exact.trajectory) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < got.trajectory.size(); ++i)
    ASSERT_NEAR(got.trajectory[i], exact.trajectory[i], 1e-4 * largest) << i;
}
TEST(ResidentStackSolveTest, AnswersAsManyLaunchesDo) {
  for (const Case& c : kCases) {
    if (c.intervals < 12) ExpectAnswersOfManyLaunches(c);
  }
}
TEST(ResidentStackSolveTest, AnswersOfManyGroups) {
  for (const Case& c : kCases) {
    if (c.intervals >= 12) ExpectAnswersOfManyLaunches(c);
  }
}

// Bit for bit, k updates make k intervals exact, behind the first group of blocks too.
TEST(ResidentStackSolveTest, EveryUpdateMakesOneMoreIntervalExact) {
  for (const Case& c : kCases) {
    if (c.intervals < 9) continue;
    SCOPED_TRACE(Describe(c.stack));
    const RandomSystem system(c.stack);
    const std::vector<float> inputs = system.Inputs(1, 3);
    ExpectCausality(RigOn(GridOf(BlocksOf(c.intervals)), system),
                    {.num_samples = 1, .inputs = inputs}, c.stack.num_steps, c.interval,
                    c.intervals == 20 ? 12 : 3);
  }
}

// Solves `samples` together, then some of them alone: each has the same states and estimate.
void ExpectBitsOfSamplesAlone(const StackOptions& stack, int64_t interval, int32_t intervals,
                              int64_t samples, const std::vector<int64_t>& alone) {
  const RandomSystem system(stack);
  const SolverRig rig = RigOn(GridOf(BlocksOf(intervals)), system);
  const ResolvedOptions options = OptionsFor("newton", stack.num_steps, interval, 1e-4);
  const std::vector<float> inputs = system.Inputs(samples, 7);
  const Solved together = rig.Solve(options, inputs);
  for (const int64_t s : alone) {
    const auto input = inputs.begin() + s * stack.state_dim;
    const Solved one = rig.Solve(options, {input, input + stack.state_dim});
    const auto states = together.trajectory.begin() + s * (stack.num_steps + 1) * stack.state_dim;
    EXPECT_TRUE(std::equal(one.trajectory.begin(), one.trajectory.end(), states)) << s;
    EXPECT_EQ(one.reports[0].error_estimate, together.reports[s].error_estimate) << s;
  }
}
TEST(ResidentStackSolveTest, BitsAreThoseOfASampleAlone) {
  ExpectBitsOfSamplesAlone(Residual(21, 64), 2, 11, 5, {0, 1, 2, 3, 4, 0, 1, 2, 3, 4});
}

// Other solvers, what has too many numbers of passes, and what a GPU has too few blocks or too
// little memory for, have launches of their own.
TEST(ResidentStackSolveTest, OtherSolversPassByOthers) {
  const RandomSystem system(Residual(24, 64));
  const std::vector<float> inputs = system.Inputs(2, 3);
  const SolverRig grid = RigOn(GridOf(BlocksOf(12)), system), none = RigOn(GridOf(0), system);
  const auto same = [&](const ResolvedOptions& options) {
    return grid.Solve(options, inputs).SameAnswers(none.Solve(options, inputs));
  };
  EXPECT_FALSE(same(OptionsFor("newton", 24, 2, 1e-4)));
  for (const std::string_view solver : {"picard", "jacobi"})
    EXPECT_TRUE(same(OptionsFor(solver, 24, 2, 1e-4))) << solver;
  ResolvedOptions options = OptionsFor("newton", 24, 2, 1e-4);
  options.warm_sweeps = 1;
  EXPECT_TRUE(same(options));
  options.warm_sweeps = 0;
  options.max_iterations = 1 << 20;
  EXPECT_TRUE(same(options));
  EXPECT_TRUE(same(OptionsFor("newton", 24, 1, 1e-4)));   // too few blocks
  EXPECT_TRUE(same(OptionsFor("newton", 24, 24, 1e-4)));  // one interval
  EXPECT_TRUE(same(OptionsFor("newton", 24, 12, 1e-4)));  // a block has no room for twelve layers
  // Both loops have the same memory in turns.
  const ResolvedOptions at_once = OptionsFor("newton", 24, 2, 1e-4);
  const Solved before = grid.Solve(at_once, inputs);
  EXPECT_TRUE(same(OptionsFor("newton", 24, 12, 1e-4)));
  EXPECT_TRUE(grid.Solve(at_once, inputs).SameAnswers(before));
}

// Places have NaN with the number of the first pass before they are cleared.
TEST(ResidentStackSolveTest, ClearsItsPlaces) {
  const RandomSystem system(Residual(10, 64));
  const std::vector<float> inputs = system.Inputs(1, 3);
  const ResolvedOptions newton = OptionsFor("newton", 10, 1, 1e-4);
  DeviceOptions options = GridOf(BlocksOf(10));
  options.fill = uint64_t{1} << 32 | 0xFFFFFFFF;
  const Solved got = RigOn(options, system).Solve(newton, inputs);
  EXPECT_TRUE(got.reports[0].converged && !got.reports[0].fallback);
  EXPECT_TRUE(got.SameAnswers(RigOn(GridOf(BlocksOf(10)), system).Solve(newton, inputs)));
}

// States that overflow are never an answer.
TEST(ResidentStackSolveTest, OverflowIsNoAnswer) {
  const RandomSystem system(Relu(20, 64, 40));
  std::vector<float> inputs = system.Inputs(1, 3);
  const SolverRig rig = RigOn(GridOf(BlocksOf(20)), system);
  ResolvedOptions options = OptionsFor("newton", 20, 1, 1e-4);
  options.on_no_convergence = OnNoConvergence::kReturn;
  for (const float factor : {1e30F, INFINITY}) {
    for (float& x : inputs) x = 0.5F * factor;
    EXPECT_FALSE(rig.Solve(options, inputs).reports[0].converged) << factor;
  }
}

// Matrices that overflow in a group, where all states are zero, make no wrong answer of them.
TEST(ResidentStackSolveTest, MatricesThatOverflowMakeNoWrongAnswer) {
  const RandomSystem system({.num_steps = 20,
                             .state_dim = 64,
                             .activation = Activation::kIdentity,
                             .gain = 1e7,
                             .bias = 0});
  const SolverRig rig(cuda::NewCudaBackend(NewSimtDevice(GridOf(BlocksOf(20)))), system.spec());
  ResolvedOptions options = OptionsFor("newton", 20, 1, 1e-4);
  options.on_no_convergence = OnNoConvergence::kReturn;
  std::vector<float> inputs(64);
  for (const float x : {0.0F, 1e-30F}) {
    std::fill(inputs.begin(), inputs.end(), x);
    const Solved exact = rig.Solve({.solver = "sequential"}, inputs);
    const Solved got = rig.Solve(options, inputs);
    ASSERT_EQ(got.reports.size(), 1U);
    EXPECT_TRUE(!got.reports[0].converged || got.SameAnswers(exact)) << x;
    EXPECT_FALSE(x > 0 && got.reports[0].converged);
  }
}

// More samples than are launched before the host looks.
TEST(ResidentStackSolveTest, ManySamplesHaveTheirOwnBits) {
  ExpectBitsOfSamplesAlone(Relu(6, 50), 2, 3, 9, {0, 7, 8});
}

// A guess that is the answer takes one update, of each sample its own.
TEST(ResidentStackSolveTest, BeginsWithTheGuessOfEachSample) {
  const RandomSystem system(Residual(20, 64));
  const SolverRig rig = RigOn(GridOf(BlocksOf(10)), system);
  const std::vector<float> inputs = system.Inputs(2, 3);
  const Solved exact = rig.Solve({.solver = "sequential"}, inputs);
  ResolvedOptions options = OptionsFor("newton", 20, 2, 1e-4);
  options.initial_guess = InitialGuess::kPrevious;
  const Solved got =
      rig.Solve(options, {.num_samples = 2, .inputs = inputs, .initial_states = exact.trajectory});
  ASSERT_EQ(got.reports.size(), 2U);
  for (const SampleReport& report : got.reports) {
    EXPECT_TRUE(report.converged && !report.fallback);
    EXPECT_LE(report.iterations, 1);
  }
  EXPECT_EQ(got.trajectory, exact.trajectory);
}

// A GPU with more blocks than a block between groups has room for.
TEST(ResidentStackSolveTest, TakesNoMoreIntervalsThanItHasRoomFor) {
  const DeviceOptions options = GridOf(148);
  const auto intervals = [&](int64_t p) {
    return cuda::PlanResidentStack(64, p, 1, options.limits).num_intervals;
  };
  EXPECT_EQ(intervals(113), 113);
  EXPECT_EQ(intervals(cuda::MostHelpedIntervals(options.limits)), 0);
  const RandomSystem system(Residual(120, 64));
  const std::vector<float> inputs = system.Inputs(1, 3);
  const Solved got = RigOn(options, system).Solve(OptionsFor("newton", 120, 4, 1e-4), inputs);
  ASSERT_EQ(got.reports.size(), 1U);
  EXPECT_TRUE(got.reports[0].converged && !got.reports[0].fallback);
}

// A request that nobody waits for any more stops, and so does one that does not converge.
TEST(ResidentStackSolveTest, StopsWhenAsked) {
  const RandomSystem system(Residual(12, 64, 0.8));
  const std::vector<float> inputs = system.Inputs(1, 3);
  const SolverRig rig = RigOn(GridOf(BlocksOf(12)), system);
  const SampleInputs request = {.num_samples = 1, .inputs = inputs};
  CancelToken token;
  token.Cancel();
  const ResolvedOptions newton = OptionsFor("newton", 12, 1, 1e-4);
  const SampleReport cancelled = rig.Solve(newton, request, &token).reports[0];
  EXPECT_EQ(cancelled.termination, Termination::kCancelled);
  EXPECT_EQ(cancelled.iterations, 0);
  ResolvedOptions few = newton;
  few.max_iterations = 1;
  few.rtol = 1e-7;
  few.on_no_convergence = OnNoConvergence::kReturn;
  const SampleReport report = rig.Solve(few, request).reports[0];
  EXPECT_EQ(report.termination, Termination::kMaxIterations);
  EXPECT_EQ(report.iterations, 1);
}

// One launch, of a sample whose input is small.
class OneSolve {
 public:
  OneSolve(const RandomSystem& system, int32_t intervals)
      : device_(NewSimtDevice(GridOf(BlocksOf(intervals)))),
        model_(*cuda::PanelStackModel::Upload(*device_, system.spec(), {})),
        tree_(intervals, 1),
        initial_(model_.width(), 0.1F),
        places_(cuda::HelpedPlaces::Count(intervals, model_.width())),
        workspace_(cuda::WorkspaceBytes(model_.width(), tree_)) {}

  // Solves with numbers behind `made` and this cancel word. Returns the final state.
  std::vector<float> Run(uint32_t made, Termination cancel = Termination::kDirect) {
    std::vector<float> final_state(model_.width());
    const auto word = static_cast<int32_t>(cancel);
    const cuda::PanelStackView& stack = model_.view();
    cuda::NewtonArgs newton = {
        .part = cuda::NewtonPart::kWhole,
        .stack = {.num_steps = stack.num_steps, .state_dim = stack.state_dim},
        .policy = {.num_intervals = tree_.num_intervals},
        .start = {},
        .tree = tree_,
        .shooting_interval = static_cast<int32_t>(stack.num_steps / tree_.num_intervals),
        .guess = {},
        .initial_states = initial_.data(),
        .final_states = final_state.data(),
        .trajectories = nullptr,
        .outcomes = &outcome_,
        .progress = nullptr,
        .cancel = &word,
        .workspace = workspace_.data(),
        .holds_layers = false};
    newton.start = StartProgress(newton.policy);
    const auto stream = *device_->NewStream();
    stream->Launch(
        cuda::ResidentStackArgs{.stack = stack, .solve = {newton, {places_.data(), made}}});
    EXPECT_TRUE(stream->status().ok()) << stream->status();
    return final_state;
  }
  const Progress& outcome() const { return outcome_; }

 private:
  const std::unique_ptr<cuda::Device> device_;
  const cuda::PanelStackModel model_;
  const cuda::IntervalTree tree_;
  std::vector<float> initial_;
  std::vector<uint64_t> places_;
  std::vector<std::byte> workspace_;
  Progress outcome_;
};

// The cancel word is looked at in every pass, after it has been made.
TEST(ResidentStackSolveTest, StopsAtTheCancelWord) {
  const RandomSystem system(Residual(11, 64));
  OneSolve solve(system, 11);
  solve.Run(0);
  EXPECT_EQ(solve.outcome().termination, Termination::kConverged);
  EXPECT_GT(solve.outcome().iterations, 1);
  uint32_t made = 0;
  for (const Termination reason : {Termination::kCancelled, Termination::kDeadline}) {
    solve.Run(made += cuda::kMostGridPasses, reason);
    EXPECT_EQ(solve.outcome().termination, reason);
    EXPECT_EQ(solve.outcome().next, NextPass::kStop);
    EXPECT_EQ(solve.outcome().iterations, 1);
  }
}

// Places are as the last solve has left them, up to the last number that there is.
TEST(ResidentStackSolveTest, NumbersGoOn) {
  const RandomSystem system(Residual(22, 64));
  OneSolve solve(system, 11);
  const std::vector<float> right = solve.Run(0);
  constexpr uint32_t kLast = 0xFFFFFFFF - cuda::kMostGridPasses;
  for (const uint32_t made : {cuda::kMostGridPasses, 2 * cuda::kMostGridPasses, kLast})
    EXPECT_EQ(solve.Run(made), right) << made;
}

// With a single node, one group of blocks, two, of which the last has a single node, four, and with
// outcomes for more than a warp.
TEST(ResidentStackSolveTest, EveryWaitIsNeeded) {
  const std::vector<Case> launches = {
      kCases[0], kCases[1], kCases[2], kCases[5], {Residual(40, 64), 1, 40}};
  const auto answer = [](const Case& c, const simt::Schedule& schedule) {
    const RandomSystem system(c.stack);
    DeviceOptions options = GridOf(BlocksOf(c.intervals));
    options.schedule = schedule;
    return RigOn(options, system)
        .Solve(OptionsFor("newton", c.stack.num_steps, c.interval, 1e-4), system.Inputs(1, 3));
  };
  std::vector<int> sites = {cuda::kAfterGridGuess,    cuda::kAfterGridPropagation,
                            cuda::kAfterGridNorms,    cuda::kForGridOutcomes,
                            cuda::kForGridHalo,       cuda::kAfterGridOutcomes,
                            cuda::kAfterGridProgress, cuda::kAfterStackEntry,
                            cuda::kAfterStackState,   cuda::kAfterProbesEntry};
  for (int site = cuda::kBeforeHelpedEntry; site < cuda::kNumHelpedScanSites; ++site)
    sites.push_back(site);
  std::vector<bool> noticed(cuda::kNumHelpedScanSites);
  for (const Case& launch : launches) {
    const Solved right = answer(launch, {});
    ASSERT_FALSE(right.reports.empty());
    const simt::OrdersOfWarps orders(
        [&](const simt::Schedule& schedule) {
          const Solved other = answer(launch, schedule);
          return other.reports.empty() || !other.SameAnswers(right) ||
                 other.reports[0].error_estimate != right.reports[0].error_estimate;
        },
        3);
    for (const int site : sites) {
      if (!noticed[site]) noticed[site] = orders.Notice(site);
    }
  }
  for (const int site : sites) EXPECT_TRUE(noticed[site]) << "site " << site;
}

// W6, a stack of 1,024 layers, on an H200.
TEST(ResidentStackSolveTest, FitsTheGpu) {
  cuda::LaunchLimits h200 = {.multiprocessors = 132,
                             .shared_bytes = size_t{227} << 10,
                             .max_cluster_blocks = 16,
                             .grid_blocks = 132};
  const auto intervals = [&](int width, int64_t steps, int64_t interval) {
    return cuda::PlanResidentStack(width, (steps + interval - 1) / interval, interval, h200)
        .num_intervals;
  };
  EXPECT_EQ(cuda::MostHelpedIntervals(h200), 105);
  EXPECT_EQ(cuda::HelpedShape{105}.blocks(), 132);
  EXPECT_EQ(intervals(64, 1024, 8), 0);  // 128 intervals leave too few blocks to help
  EXPECT_EQ(intervals(64, 1024, 9), 0);  // nor do 114
  EXPECT_EQ(intervals(64, 1024, 10), 103);
  EXPECT_EQ(cuda::HelpedShape{103}.blocks(), 130);
  EXPECT_EQ(intervals(64, 1024, 11), 0);  // no room for so many layers
  EXPECT_EQ(intervals(64, 100, 1), 100);
  EXPECT_EQ(intervals(48, 1024, 10), 0);
  EXPECT_EQ(intervals(80, 1024, 10), 0);
  EXPECT_EQ(intervals(64, 9, 9), 0);
  h200.grid_blocks = 0;
  EXPECT_EQ(intervals(64, 1024, 10), 0);
}

// A launch has no block too many: each node has one that composes it.
TEST(ResidentStackSolveTest, GroupsHaveNodes) {
  for (int32_t intervals = 2; intervals < 200; ++intervals) {
    const cuda::HelpedShape shape = {intervals};
    int nodes = 0;
    for (int g = 0; g < shape.groups(); ++g) {
      ASSERT_GE(shape.nodes(g), 1);
      ASSERT_LE(shape.nodes(g), cuda::kGroupBlocks);
      nodes += shape.nodes(g);
    }
    ASSERT_EQ(nodes, intervals - 1);
  }
}

}  // namespace
}  // namespace deeppcr::testing
