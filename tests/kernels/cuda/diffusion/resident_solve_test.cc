// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/diffusion/resident_solve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/diffusion/model.h"
#include "kernels/cuda/loop/block_shape.h"
#include "tests/kernels/conformance/causality.h"
#include "tests/testing/random_diffusion.h"
#include "tests/testing/simt/orders.h"
#include "tests/testing/simt/simt_device.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

using simt::DeviceOptions;
using simt::NewSimtDevice;

RandomDiffusion Process(int64_t state_dim, int64_t hidden_dim, int64_t steps, double gain = 0.2) {
  return RandomDiffusion({.state_dim = state_dim,
                          .hidden_dim = hidden_dim,
                          .num_blocks = 2,
                          .num_steps = steps,
                          .num_classes = 3,
                          .output_gain = gain});
}

DeviceOptions GridOf(int blocks) {
  DeviceOptions options;
  options.limits.grid_blocks = blocks;
  return options;
}

SolverRig RigOn(const DeviceOptions& options, const RandomDiffusion& process) {
  return SolverRig(cuda::NewCudaBackend(NewSimtDevice(options)), process.spec());
}

ResolvedOptions Newton(int64_t steps, int64_t interval = 1) {
  ResolvedOptions options = OptionsFor("newton", steps, interval, 1e-4);
  options.initial_guess = InitialGuess::kCoarse;
  return options;
}

SampleInputs Request(int64_t samples, uint64_t seed) {
  static const std::vector<int32_t> labels = {2, 0, 1, 1, 2};
  return {.num_samples = samples, .seed = seed, .labels = {labels.data(), size_t(samples)}};
}

// Blocks of a solve, and intervals of each; no blocks where another launch solves.
std::pair<int, int> ShapeOf(const RandomDiffusion& process, int64_t interval,
                            const DeviceOptions& options) {
  const auto device = NewSimtDevice(options);
  const auto model = *cuda::DiffusionModel::Upload(*device, process.spec(), {});
  const int64_t intervals = (process.spec().num_steps() + interval - 1) / interval;
  const cuda::IntervalTree tree = cuda::PlanResidentSolve(model.view(), intervals, options.limits);
  return tree.num_intervals == 0 ? std::pair(0, 0)
                                 : std::pair(cuda::GridBlocksOf(tree), int(tree.per_block));
}

struct Case {
  int64_t state_dim, hidden_dim, steps, interval;
  int grid_blocks;
  std::pair<int, int> shape;
};
// One block; one of several intervals a block, of which the last one lacks some; a second and a
// third group of blocks, full and not; intervals of several steps, of which the last one has fewer.
const Case kCases[] = {
    {5, 30, 1, 1, 1, {1, 1}},    {5, 30, 7, 1, 1, {1, 8}},    {12, 40, 11, 1, 3, {3, 4}},
    {16, 100, 23, 2, 8, {6, 2}}, {8, 64, 9, 1, 9, {9, 1}},    {12, 30, 33, 1, 20, {17, 2}},
    {16, 40, 70, 1, 9, {9, 8}},  {3, 20, 48, 3, 16, {16, 1}}, {12, 30, 36, 1, 18, {18, 2}},
};

// The answers are those of the launches of a pass each but for the rounding of another tree, and
// take no more iterations.
TEST(ResidentSolveTest, AnswersAsManyLaunchesDo) {
  for (const Case& c : kCases) {
    const RandomDiffusion process = Process(c.state_dim, c.hidden_dim, c.steps);
    EXPECT_EQ(ShapeOf(process, c.interval, GridOf(c.grid_blocks)), c.shape);
    EXPECT_EQ(ShapeOf(process, c.interval, GridOf(0)).first, 0);
    const ResolvedOptions options = Newton(c.steps, c.interval);
    const SolverRig rig = RigOn(GridOf(c.grid_blocks), process);
    const Solved exact = rig.Solve({.solver = "sequential"}, Request(2, 3));
    const Solved got = rig.Solve(options, Request(2, 3));
    const Solved want = RigOn(GridOf(0), process).Solve(options, Request(2, 3));
    ASSERT_EQ(got.reports.size(), 2U);
    for (size_t s = 0; s < 2; ++s) {
      EXPECT_TRUE(got.reports[s].converged && !got.reports[s].fallback) << c.steps;
      EXPECT_EQ(got.reports[s].iterations, want.reports[s].iterations) << c.steps;
      EXPECT_EQ(got.reports[s].chord_corrections, want.reports[s].chord_corrections) << c.steps;
    }
    ASSERT_EQ(got.trajectory.size(), exact.trajectory.size());
    for (size_t i = 0; i < got.trajectory.size(); ++i)
      EXPECT_NEAR(got.trajectory[i], exact.trajectory[i], 3e-4) << c.steps << " " << i;
  }
}

// Bit for bit, k updates make k intervals exact; where as many updates are made as there are
// intervals, all of them.
TEST(ResidentSolveTest, EveryUpdateMakesOneMoreIntervalExact) {
  for (const Case& c : kCases) {
    if (c.steps < 4 * c.interval) continue;
    const RandomDiffusion process = Process(c.state_dim, c.hidden_dim, c.steps, 2.0);
    const SolverRig rig = RigOn(GridOf(c.grid_blocks), process);
    ExpectCausality(rig, Request(1, 3), c.steps, c.interval, 4);
  }
}

// Behind the first group of blocks too.
TEST(ResidentSolveTest, UpdatesMakeLaterGroupsExact) {
  const RandomDiffusion process = Process(4, 20, 20, 2.0);
  EXPECT_EQ(ShapeOf(process, 1, GridOf(20)), std::pair(20, 1));
  ExpectCausality(RigOn(GridOf(20), process), Request(1, 3), 20, 1, 13);
}

TEST(ResidentSolveTest, BitsAreThoseOfASampleAlone) {
  const RandomDiffusion process = Process(12, 40, 21);
  const SolverRig rig = RigOn(GridOf(11), process);
  const ResolvedOptions options = Newton(21);
  const Solved together = rig.Solve(options, Request(5, 7));
  for (int round = 0; round < 2; ++round) {
    for (int64_t s = 0; s < 5; ++s) {
      SampleInputs request = Request(5, 7);
      request.num_samples = 1;
      request.first_sample = s;
      request.labels = request.labels.subspan(s, 1);
      const Solved alone = rig.Solve(options, request);
      const auto begin = together.trajectory.begin() + s * 22 * 12;
      EXPECT_TRUE(std::equal(alone.trajectory.begin(), alone.trajectory.end(), begin)) << s;
      EXPECT_EQ(alone.reports[0].error_estimate, together.reports[s].error_estimate);
    }
  }
}

// Other solvers, and what has too many numbers of passes, have launches of their own.
TEST(ResidentSolveTest, OtherSolversPassByOthers) {
  const RandomDiffusion process = Process(12, 40, 21);
  const SolverRig grid = RigOn(GridOf(11), process), none = RigOn(GridOf(0), process);
  for (const std::string_view solver : {"picard", "jacobi"}) {
    const ResolvedOptions options = OptionsFor(solver, 21, 1, 1e-4);
    EXPECT_TRUE(grid.Solve(options, Request(2, 3)).SameAnswers(none.Solve(options, Request(2, 3))));
  }
  ResolvedOptions options = Newton(21);
  const auto same = [&] {
    return grid.Solve(options, Request(1, 3)).SameAnswers(none.Solve(options, Request(1, 3)));
  };
  options.warm_sweeps = 1;
  EXPECT_TRUE(same());
  options.warm_sweeps = 0;
  options.max_iterations = 1 << 20;
  EXPECT_TRUE(same());
  options = Newton(21, 20);  // too few intervals for the blocks
  EXPECT_TRUE(same());
}

// One launch, of a sample whose noise is small.
class OneSolve {
 public:
  OneSolve(const RandomDiffusion& process, int blocks)
      : options_(GridOf(blocks)),
        device_(NewSimtDevice(options_)),
        model_(*cuda::DiffusionModel::Upload(*device_, process.spec(), {})),
        process_(model_.view()),
        tree_(cuda::PlanResidentSolve(process_, process_.num_steps, options_.limits)),
        noise_(process_.num_steps * process_.state_dim, 0.1F),
        tape_(process_.num_steps * cuda::DenoiserTape::Floats(process_.denoiser)),
        initial_(process_.width),
        places_(cuda::GridPlaces::Count(cuda::GridBlocksOf(tree_), process_.width)),
        workspace_(cuda::WorkspaceBytes(process_.width, tree_)) {
    std::fill_n(initial_.begin(), process_.state_dim, 0.5F);
    process_.noise = noise_.data();
    process_.table_of = &table_of_;
  }

  // Solves with numbers behind `made` and this cancel word. Returns the final state.
  std::vector<float> Run(uint32_t made, Termination cancel = Termination::kDirect) {
    std::vector<float> final_state(process_.width);
    const auto word = static_cast<int32_t>(cancel);
    cuda::NewtonArgs newton = {
        .part = cuda::NewtonPart::kWhole,
        .stack = {.num_steps = process_.num_steps, .state_dim = process_.state_dim},
        .policy = {.num_intervals = process_.num_steps},
        .start = {},
        .tree = tree_,
        .shooting_interval = 1,
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
    const cuda::PropagationArgs<cuda::DiffusionView> propagation = {
        .process = process_,
        .intervals = {tree_, 1, cuda::kEveryMember, workspace_.data()},
        .rows = 0,
        .progress = nullptr,
        .linearization = Linearization::kFull,
        .kind = {}};
    const auto stream = *device_->NewStream();
    stream->Launch(cuda::ResidentSolveArgs{
        .resident = {propagation, tree_.per_block, cuda::GridBlocksOf(tree_), {tape_.data()}},
        .solve = {newton, {places_.data(), made}}});
    EXPECT_TRUE(stream->status().ok()) << stream->status();
    return final_state;
  }
  const Progress& outcome() const { return outcome_; }

 private:
  const DeviceOptions options_;
  const std::unique_ptr<cuda::Device> device_;
  const cuda::DiffusionModel model_;
  cuda::DiffusionView process_;
  const cuda::IntervalTree tree_;
  std::vector<float> noise_, tape_, initial_;
  std::vector<uint64_t> places_;
  std::vector<std::byte> workspace_;
  int32_t table_of_ = 0;
  Progress outcome_;
};

// The cancel word is looked at in every pass, after it has been made.
TEST(ResidentSolveTest, StopsAtTheCancelWord) {
  const RandomDiffusion process = Process(12, 20, 21);
  OneSolve solve(process, 11);
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

// Places have NaN with the number of the first pass before they are cleared.
TEST(ResidentSolveTest, ClearsItsPlaces) {
  const RandomDiffusion process = Process(12, 20, 21);
  DeviceOptions options = GridOf(11);
  options.fill = uint64_t{1} << 32 | 0xFFFFFFFF;
  EXPECT_TRUE(RigOn(options, process)
                  .Solve(Newton(21), Request(1, 3))
                  .SameAnswers(RigOn(GridOf(11), process).Solve(Newton(21), Request(1, 3))));
}

// Places are as the last solve has left them, up to the last number that there is.
TEST(ResidentSolveTest, NumbersGoOn) {
  const RandomDiffusion process = Process(12, 20, 21);
  OneSolve solve(process, 11);
  const std::vector<float> right = solve.Run(0);
  constexpr uint32_t kLast = 0xFFFFFFFF - cuda::kMostGridPasses;
  for (const uint32_t made : {cuda::kMostGridPasses, 2 * cuda::kMostGridPasses, kLast}) {
    EXPECT_TRUE((cuda::GridPlaces{nullptr, made}.HasNumbers()));
    EXPECT_EQ(solve.Run(made), right) << made;
  }
  EXPECT_FALSE((cuda::GridPlaces{nullptr, kLast + 1}.HasNumbers()));
}

// A request that nobody waits for any more stops, and so does one that does not converge.
TEST(ResidentSolveTest, StopsWhenAsked) {
  const RandomDiffusion process = Process(12, 40, 21);
  const SolverRig rig = RigOn(GridOf(11), process);
  CancelToken token;
  token.Cancel();
  const SampleReport cancelled = rig.Solve(Newton(21), Request(1, 3), &token).reports[0];
  EXPECT_EQ(cancelled.termination, Termination::kCancelled);
  EXPECT_EQ(cancelled.iterations, 0);
  ResolvedOptions few = Newton(21);
  few.max_iterations = 1;
  few.rtol = 1e-7;
  few.on_no_convergence = OnNoConvergence::kReturn;
  const SampleReport report = rig.Solve(few, Request(1, 3)).reports[0];
  EXPECT_EQ(report.termination, Termination::kMaxIterations);
  EXPECT_EQ(report.iterations, 1);
}

// With one group of blocks and with three, and with outcomes for more than a warp.
TEST(ResidentSolveTest, EveryWaitIsNeeded) {
  struct Launch {
    RandomDiffusion process;
    int blocks;
  };
  std::vector<Launch> launches;
  launches.push_back({Process(12, 40, 13, 0.6), 4});
  launches.push_back({Process(12, 20, 40, 0.6), 20});
  launches.push_back({Process(5, 20, 40, 0.6), 40});
  const auto answer = [](const Launch& launch, const simt::Schedule& schedule) {
    DeviceOptions options = GridOf(launch.blocks);
    options.schedule = schedule;
    return RigOn(options, launch.process)
        .Solve(Newton(launch.process.spec().num_steps()), Request(1, 3));
  };
  std::vector<bool> noticed(cuda::kNumGridSolveSites);
  for (const Launch& launch : launches) {
    const Solved right = answer(launch, {});
    ASSERT_FALSE(right.reports.empty());
    const simt::OrdersOfWarps orders(
        [&](const simt::Schedule& schedule) {
          const Solved other = answer(launch, schedule);
          return other.reports.empty() || !other.SameAnswers(right) ||
                 other.reports[0].error_estimate != right.reports[0].error_estimate;
        },
        6);
    for (int site = cuda::kAfterGridGuess; site < cuda::kNumGridSolveSites; ++site)
      noticed[site] = noticed[site] || orders.Notice(site);
  }
  for (int site = cuda::kAfterGridGuess; site < cuda::kNumGridSolveSites; ++site)
    EXPECT_TRUE(noticed[site]) << "site " << site;
}

// W4, a DDPM of a thousand steps with three blocks 128 wide, on an H200.
TEST(ResidentSolveTest, FitsTheGpu) {
  cuda::LaunchLimits h200 = {.multiprocessors = 132,
                             .shared_bytes = size_t{227} << 10,
                             .max_cluster_blocks = 16,
                             .grid_blocks = 132};
  cuda::DiffusionView process = {};
  cuda::DenoiserView& d = process.denoiser;
  process.width = 16;
  process.state_dim = 16;
  d.state_dim = d.state_cols = 16;
  d.hidden_dim = d.hidden_width = 128;
  d.num_blocks = 3;
  const auto shape = [&](int64_t intervals) {
    const cuda::IntervalTree tree = cuda::PlanResidentSolve(process, intervals, h200);
    return std::tuple(tree.num_intervals, cuda::GridBlocksOf(tree), tree.per_block);
  };
  EXPECT_EQ(shape(1000), std::tuple(1000, 125, 8));
  EXPECT_EQ(shape(1024), std::tuple(1024, 128, 8));
  EXPECT_EQ(std::get<0>(shape(1025)), 0);  // of seventeen groups a block has no room
  EXPECT_EQ(shape(500), std::tuple(500, 125, 4));
  EXPECT_EQ(shape(100), std::tuple(100, 100, 1));
  EXPECT_EQ(shape(133), std::tuple(133, 67, 2));
  EXPECT_EQ(shape(66), std::tuple(66, 66, 1));
  EXPECT_EQ(std::get<0>(shape(65)), 0);  // half of the blocks would have nothing to do
  EXPECT_LE(cuda::ResidentSolveBytes(process, cuda::GridTree(1000, 132)), h200.shared_bytes);
  process.width = process.state_dim = 32;
  EXPECT_EQ(std::get<0>(shape(100)), 0);
  process.width = process.state_dim = 16;
  d.num_blocks = 4;  // no block holds its layers
  EXPECT_EQ(std::get<0>(shape(100)), 0);
  d.num_blocks = 3;
  h200.grid_blocks = 0;
  EXPECT_EQ(std::get<0>(shape(100)), 0);
}

TEST(ResidentSolveTest, BlocksShareIntervals) {
  for (int blocks = 1; blocks <= 40; ++blocks) {
    for (int intervals = 1; intervals <= 8 * blocks; ++intervals) {
      const cuda::IntervalTree tree = cuda::GridTree(intervals, blocks);
      ASSERT_LE(cuda::GridBlocksOf(tree), blocks);
      ASSERT_LE(tree.per_block, 8);
      ASSERT_EQ(1 << tree.local_levels, tree.per_block);
      // As few as keep all blocks at work.
      ASSERT_TRUE(tree.per_block == 1 || intervals > tree.per_block / 2 * blocks);
    }
  }
}

}  // namespace
}  // namespace deeppcr::testing
