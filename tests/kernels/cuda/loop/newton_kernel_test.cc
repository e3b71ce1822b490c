// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/loop/newton_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "kernels/cuda/stack/sequential_kernel.h"
#include "kernels/iteration/scan_tree.h"
#include "tests/kernels/cuda/stack/stack_on_device.h"
#include "tests/testing/simt/executor.h"
#include "tests/testing/simt/orders.h"
#include "tests/testing/step_on_the_way.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

using simt::Order;

constexpr int kWidth = 16;

TEST(IntervalTreeTest, EveryNodeHasAPlaceOfItsOwnAndTheTreeIsScanTrees) {
  for (int32_t intervals = 1; intervals <= 70; ++intervals) {
    const ScanTree tree(intervals);
    for (const int32_t blocks : {1, 2, 4, 8, 16}) {
      const cuda::IntervalTree mine(intervals, blocks);
      ASSERT_EQ(mine.levels, tree.levels());
      std::vector<std::vector<int>> used(blocks, std::vector<int>(mine.nodes_per_block()));
      for (int level = 0; level < std::max(mine.levels, 1); ++level) {
        ASSERT_EQ(mine.nodes(level), tree.nodes(level));
        for (int32_t j = 0; j < mine.nodes(level); ++j) {
          EXPECT_EQ(mine.needs_matrix(level, j), tree.needs_matrix(level, j));
          ASSERT_LT(mine.block_of(level, j), blocks);
          EXPECT_EQ(used[mine.block_of(level, j)].at(mine.index_of(level, j))++, 0);
        }
      }
    }
  }
}

struct Launch {
  int64_t interval = 4;
  int num_blocks = 1;
  int num_warps = 1;
  StoppingPolicy policy = {};
  int32_t cancel_word = 0;
  bool holds_layers = true;
};

struct Solved {
  DeviceVector final_states, trajectories;
  std::vector<Progress> outcomes;
  simt::Outcome launch;
};

DeviceVector Poisoned(int64_t n) { return DeviceVector(n, std::nanf("")); }

template <int W>
Solved Solve(const DenseStackSpec& spec, const std::vector<float>& inputs, const Launch& launch,
             const simt::Schedule& schedule = {}) {
  const int64_t dim = spec.state_dim, n = static_cast<int64_t>(inputs.size()) / dim;
  const auto intervals = static_cast<int32_t>((spec.num_steps - 1) / launch.interval + 1);
  const StackOnDevice stack(spec, W);
  const DeviceVector initial = Padded(inputs, dim, W);
  Solved solved{
      Poisoned(n * W), Poisoned(n * (spec.num_steps + 1) * dim), std::vector<Progress>(n), {}};
  cuda::NewtonArgs args{.part = cuda::NewtonPart::kWhole,
                        .stack = stack.view(),
                        .policy = launch.policy,
                        .start = StartProgress(launch.policy),
                        .tree = cuda::IntervalTree(intervals, launch.num_blocks),
                        .shooting_interval = static_cast<int32_t>(launch.interval),
                        .guess = {},
                        .initial_states = initial.data(),
                        .final_states = solved.final_states.data(),
                        .trajectories = solved.trajectories.data(),
                        .outcomes = solved.outcomes.data(),
                        .progress = nullptr,
                        .cancel = nullptr,
                        .workspace = nullptr,
                        .holds_layers = launch.holds_layers};
  args.policy.num_intervals = intervals;
  const std::vector<int32_t> cancel(n, launch.cancel_word);
  args.cancel = cancel.data();
  const simt::LaunchShape shape{.num_clusters = static_cast<int>(n),
                                .num_blocks = launch.num_blocks,
                                .num_threads = launch.num_warps * cuda::kWarpSize,
                                .shared_bytes = cuda::NewtonBytes(args, W)};
  solved.launch = simt::Execute(
      shape, schedule, [&](simt::Thread& thread) { cuda::SolveNewton<W, false>(thread, args); });
  return solved;
}

// The trajectory of the first sample, [L + 1, D].
template <int W>
DeviceVector Sequential(const RandomSystem& system, const std::vector<float>& inputs) {
  const DenseStackSpec& spec = system.spec();
  const StackOnDevice stack(spec, W);
  const DeviceVector initial = Padded(inputs, spec.state_dim, W);
  DeviceVector final_state(W), trajectory((spec.num_steps + 1) * spec.state_dim);
  int64_t num_dependent = 0;
  const cuda::SequentialArgs args{.stack = stack.view(),
                                  .num_samples = 1,
                                  .begin = 0,
                                  .end = system.spec().num_steps,
                                  .states = initial.data(),
                                  .final_states = final_state.data(),
                                  .trajectories = trajectory.data(),
                                  .num_dependent = &num_dependent};
  simt::Execute({.shared_bytes = cuda::SequentialBytes<W>(32)}, {},
                [&](simt::Thread& thread) { cuda::SolveSequentially<W>(thread, args); });
  return trajectory;
}

double LargestError(const DeviceVector& a, const DeviceVector& b, int64_t dim) {
  double worst = 0;
  for (size_t first = 0; first < b.size(); first += dim) {
    double error = 0, size = 1e-2;
    for (int64_t i = 0; i < dim; ++i) {
      if (std::isnan(a[first + i])) return INFINITY;
      error = std::max<double>(error, std::fabs(a[first + i] - b[first + i]));
      size = std::max<double>(size, std::fabs(b[first + i]));
    }
    worst = std::max(worst, error / size);
  }
  return worst;
}

template <int W>
void ExpectSequentialAnswer(const StackOptions& options, const Launch& launch) {
  const RandomSystem system(options);
  const std::vector<float> inputs = system.Inputs(1, 5);
  const std::string what = Describe(options) + " C " + std::to_string(launch.interval) +
                           " blocks " + std::to_string(launch.num_blocks) + " warps " +
                           std::to_string(launch.num_warps);
  const Solved solved = Solve<W>(system.spec(), inputs, launch);
  ASSERT_EQ(solved.launch.trouble, "") << what;
  EXPECT_EQ(solved.outcomes[0].termination, Termination::kConverged) << what;
  EXPECT_LE(LargestError(solved.trajectories, Sequential<W>(system, inputs), options.state_dim),
            launch.policy.rtol)
      << what;
  const size_t last = options.num_steps * options.state_dim;
  for (int64_t i = 0; i < W; ++i)
    EXPECT_EQ(solved.final_states[i], i < options.state_dim ? solved.trajectories[last + i] : 0.0F)
        << what;
}

TEST(NewtonKernelTest, AgreesWithTheSequentialKernel) {
  for (const int64_t dim : {1, 3, 8, 13, 16, 32}) {
    for (const int64_t steps : {1, 2, 7, 33, 130}) {
      for (const bool residual : {false, true}) {
        const StackOptions options{.num_steps = steps,
                                   .state_dim = dim,
                                   .residual = residual,
                                   .gain = residual ? 0.3 : 0.9};
        for (const Launch& launch :
             {Launch{.interval = 1, .num_blocks = 4, .num_warps = 2},
              Launch{.interval = 4, .num_blocks = 2, .num_warps = 1},
              Launch{.interval = 5, .num_blocks = 8, .num_warps = 3}, Launch{.interval = 16}}) {
          if (launch.interval > steps) continue;
          if (dim <= 8) ExpectSequentialAnswer<8>(options, launch);
          if (dim > 3 && dim <= 16) ExpectSequentialAnswer<16>(options, launch);
          if (dim > 16) ExpectSequentialAnswer<32>(options, launch);
        }
      }
    }
  }
}

// After k iterations the first k intervals have the bits of the sequential run.
TEST(NewtonKernelTest, IsCausalBitForBit) {
  constexpr int64_t kSteps = 60, kDim = 11, kInterval = 4;
  const RandomSystem system({.num_steps = kSteps, .state_dim = kDim, .gain = 1.8});
  const std::vector<float> inputs = system.Inputs(1, 5);
  const DeviceVector sequential = Sequential<kWidth>(system, inputs);
  for (const Linearization linearization : {Linearization::kFull, Linearization::kIdentity}) {
    for (int k = 1; k <= 6; ++k) {
      const Solved solved = Solve<kWidth>(
          system.spec(), inputs,
          {.interval = kInterval,
           .num_blocks = 4,
           .num_warps = 2,
           .policy = {.linearization = linearization, .rtol = 1e-7, .max_iterations = k}});
      ASSERT_EQ(solved.launch.trouble, "");
      const int64_t updates = solved.outcomes[0].updates();
      ASSERT_GE(updates, k);
      const int64_t exact = (updates * kInterval + 1) * kDim;
      EXPECT_TRUE(std::equal(sequential.begin(),
                             sequential.begin() + std::min<int64_t>(exact, sequential.size()),
                             solved.trajectories.begin()))
          << k;
    }
  }
}

TEST(NewtonKernelTest, PicardConvergesToo) {
  const StackOptions options{.num_steps = 64, .state_dim = 12, .residual = true, .gain = 0.1};
  Launch launch{.interval = 2, .num_blocks = 4, .num_warps = 2};
  launch.policy.linearization = Linearization::kIdentity;
  ExpectSequentialAnswer<kWidth>(options, launch);
  launch.policy.linearization = Linearization::kFull;
  launch.policy.warm_sweeps = 3;
  launch.policy.reuse_matrices = true;
  ExpectSequentialAnswer<kWidth>(options, launch);
}

// Bits depend neither on the size of the cluster or its blocks nor on the order of warps.
TEST(NewtonKernelTest, ASampleHasTheSameBitsInEveryLaunch) {
  const RandomSystem system({.num_steps = 50, .state_dim = 9, .residual = true, .gain = 0.5});
  const std::vector<float> inputs = system.Inputs(3, 4);
  const Solved first = Solve<kWidth>(system.spec(), inputs, {.interval = 3});
  for (const int num_blocks : {1, 2, 8, 16}) {
    for (const Order order : {Order::kDescending, Order::kShuffled}) {
      const Solved other = Solve<kWidth>(system.spec(), inputs,
                                         {.interval = 3, .num_blocks = num_blocks, .num_warps = 2},
                                         {.order = order, .seed = 7});
      ASSERT_EQ(other.launch.trouble, "");
      EXPECT_EQ(first.trajectories, other.trajectories) << num_blocks;
      for (int i = 0; i < 3; ++i)
        EXPECT_EQ(first.outcomes[i].error_estimate, other.outcomes[i].error_estimate);
    }
  }
}

// The state that a confirmation tries at the end of one block is the state that enters the next
// block: a window is open there and shut wherever else the confirmation might try.
TEST(NewtonKernelTest, AWindowBetweenTheClaimAndTheAnswerIsSeenByTheNextBlock) {
  constexpr double kRtol = 1e-2;
  int seen = 0;
  for (uint64_t seed = 0; seed < 16000; ++seed) {
    StepOnTheWay window(seed, kRtol, 2);
    if (!window.has_error(5e-5)) continue;  // farther than the probes look (SlopeReach)
    window.PlantWindow(0.5, 2);
    const StackAttack& attack = window.attack();
    Launch launch{.interval = 2};
    launch.policy.rtol = kRtol;
    const Solved alone = Solve<kWidth>(attack.spec(), attack.inputs, launch);
    seen += alone.outcomes[0].confirmations > 2 ? 1 : 0;
    for (const int num_blocks : {2, 8, 16}) {  // some blocks have only one interval
      launch.num_blocks = num_blocks;
      const Solved other = Solve<kWidth>(attack.spec(), attack.inputs, launch);
      ASSERT_EQ(other.launch.trouble, "");
      EXPECT_EQ(other.trajectories, alone.trajectories) << "seed " << seed;
      EXPECT_EQ(other.outcomes[0].confirmations, alone.outcomes[0].confirmations);
      EXPECT_EQ(other.outcomes[0].error_estimate, alone.outcomes[0].error_estimate);
    }
  }
  EXPECT_GE(seen, 8);
}

// The stages of a pass: C steps, the nodes up to the chain, the chain, the way down from it, and
// the update.
TEST(NewtonKernelTest, CountsItsStages) {
  const RandomSystem system({.num_steps = 200, .state_dim = 4, .residual = true, .gain = 0.5});
  const std::vector<float> inputs = system.Inputs(1, 4);
  for (const int64_t interval : {1, 3, 16, 50}) {
    const int64_t intervals = (200 - 1) / interval + 1;
    int64_t levels = 0, nodes = intervals;
    for (; nodes > 16; nodes = (nodes + 1) / 2) ++levels;
    // Up and down between the intervals and the chain.
    const int64_t steps = levels == 0 ? 0 : levels <= 3 ? (int64_t{1} << levels) : 2 * levels;
    for (const int blocks : {1, 4}) {
      const Solved solved =
          Solve<8>(system.spec(), inputs, {.interval = interval, .num_blocks = blocks});
      const Progress& progress = solved.outcomes[0];
      ASSERT_EQ(progress.termination, Termination::kConverged);
      const int64_t passes = progress.updates() + progress.confirmations;
      EXPECT_EQ(progress.stages, passes * (interval + steps + nodes - 1 + 1)) << interval;
    }
  }
}

TEST(NewtonKernelTest, OverflowEndsTheSolve) {
  const RandomSystem system(
      {.num_steps = 40, .state_dim = 4, .activation = Activation::kIdentity, .gain = 1e6});
  const Solved solved = Solve<kWidth>(system.spec(), system.Inputs(1, 4), {.num_blocks = 2});
  EXPECT_EQ(solved.launch.trouble, "");
  EXPECT_EQ(solved.outcomes[0].termination, Termination::kNonFinite);
}

TEST(NewtonKernelTest, LooksAtItsCancelWordAfterEveryPass) {
  const RandomSystem system({.num_steps = 60, .state_dim = 8, .gain = 2.5});
  const Solved solved = Solve<8>(system.spec(), system.Inputs(1, 5),
                                 {.num_blocks = 2,
                                  .policy = {.rtol = 1e-7},
                                  .cancel_word = static_cast<int32_t>(Termination::kDeadline)});
  EXPECT_EQ(solved.outcomes[0].termination, Termination::kDeadline);
  EXPECT_EQ(solved.outcomes[0].iterations, 1);
}

// Every barrier is needed: without it some order of warps gives another answer.
TEST(NewtonKernelTest, EveryBarrierIsNeeded) {
  const RandomSystem system({.num_steps = 40, .state_dim = 5, .gain = 1.2});
  const std::vector<float> inputs = system.Inputs(1, 4);
  const Launch launches[] = {{.interval = 1, .num_blocks = 2, .num_warps = 2},
                             {.interval = 10, .num_blocks = 4, .num_warps = 1},
                             {.interval = 2, .num_blocks = 4, .num_warps = 3},
                             {.interval = 2,
                              .num_blocks = 4,
                              .num_warps = 3,
                              .policy = {.linearization = Linearization::kZero}},
                             {.interval = 1,
                              .num_blocks = 2,
                              .num_warps = 2,
                              .policy = {.linearization = Linearization::kIdentity}}};
  simt::ExpectEveryBarrierIsNeeded(
      cuda::kNumWholeSites, launches,
      [&](const Launch& launch, const simt::Schedule& schedule) {
        return Solve<8>(system.spec(), inputs, launch, schedule);
      },
      [](const Solved& a, const Solved& b) {
        return a.trajectories == b.trajectories &&
               a.outcomes[0].error_estimate == b.outcomes[0].error_estimate;
      });
}

// Passes over a workspace in which the intervals' transitions stand, as another kernel would have
// propagated them.
struct Parts {
  int32_t intervals = 1;
  int num_blocks = 1;
  int num_warps = 1;
  bool holds_tree = false;
  Linearization linearization = Linearization::kFull;
};
struct AfterParts {
  std::vector<float> states;        // [passes, P, columns, W]
  std::vector<float> final_states;  // [passes, W]
  std::vector<double> progress;     // of every pass
  bool shares = true;               // each block has what it asks for of the state before its own
  simt::Outcome launch;
};

std::vector<NextPass> PassesOf(Linearization linearization) {
  using enum NextPass;
  if (linearization == Linearization::kFull)
    return {kWarmSweep, kIterate, kCorrect, kIterate, kCorrect, kConfirm, kConfirmDisplaced};
  return {kIterate, kIterate, kLinearize, kCorrect, kConfirm, kConfirmUpdated};
}

template <int W>
class PartsOnExecutor {
 public:
  PartsOnExecutor(const Parts& parts, const simt::Schedule& schedule)
      : parts_(parts),
        schedule_(schedule),
        tree_(parts.intervals, parts.num_blocks),
        workspace_(cuda::BlockMemory::Bytes(tree_, W) / sizeof(float) * parts.num_blocks,
                   std::nanf("")) {}

  AfterParts Run() {
    Launch(cuda::NewtonPart::kStart);
    for (const NextPass next : PassesOf(parts_.linearization)) {
      progress_[0].next = next;
      progress_[0].probes = next == NextPass::kCorrect;
      const IterationKind kind = KindOf(progress_[0], parts_.linearization);
      Propagate(kind);
      Launch(cuda::NewtonPart::kPass);
      Keep(kind);
    }
    progress_[0].next = NextPass::kStop;
    Launch(cuda::NewtonPart::kPass);  // leaves everything as it is
    Keep({});
    return after_;
  }

 private:
  cuda::BlockMemory MemoryOf(int block) {
    auto* const base = reinterpret_cast<std::byte*>(workspace_.data());
    return cuda::MemoryInWorkspace(base, tree_, W, 0, block);
  }
  void Propagate(const IterationKind& kind) {
    std::normal_distribution<float> normal(0, 0.3F / std::sqrt(static_cast<float>(W)));
    const auto fill = [&](float* to, int count) {
      for (int i = 0; i < count; ++i) to[i] = normal(generator_);
    };
    for (int32_t p = 0; p < parts_.intervals; ++p) {
      const cuda::BlockMemory memory = MemoryOf(tree_.block_of(0, p));
      const int32_t i = tree_.index_of(0, p);
      fill(memory.Propagated(i), kNumColumns * W);
      fill(memory.Residual(i), kNumColumns * W);
      if (kind.forms_matrices()) fill(memory.Matrix(i), W * W);
    }
  }
  void Launch(cuda::NewtonPart part) {
    cuda::NewtonArgs args{.part = part,
                          .stack = {.num_steps = parts_.intervals, .state_dim = W},
                          .policy = {.linearization = parts_.linearization, .max_iterations = 100},
                          .start = {},
                          .tree = tree_,
                          .shooting_interval = 1,
                          .guess = {},
                          .initial_states = initial_.data(),
                          .final_states = final_.data(),
                          .trajectories = nullptr,
                          .outcomes = outcomes_.data(),
                          .progress = progress_.data(),
                          .cancel = nullptr,
                          .workspace = reinterpret_cast<std::byte*>(workspace_.data()),
                          .holds_layers = false,
                          .holds_tree = parts_.holds_tree};
    args.policy.num_intervals = parts_.intervals;
    const simt::LaunchShape shape{.num_clusters = 1,
                                  .num_blocks = parts_.num_blocks,
                                  .num_threads = parts_.num_warps * cuda::kWarpSize,
                                  .shared_bytes = cuda::NewtonBytes(args, W)};
    const simt::Outcome outcome = simt::Execute(
        shape, schedule_, [&](simt::Thread& thread) { cuda::SolveNewtonInParts<W>(thread, args); });
    after_.launch.trouble += outcome.trouble;
    after_.launch.passes.resize(cuda::kNumNewtonSites);
    for (size_t site = 0; site < outcome.passes.size(); ++site)
      after_.launch.passes.at(site) += outcome.passes[site];
  }
  void Keep(const IterationKind& kind) {
    for (int32_t p = 0; p < parts_.intervals; ++p) {
      const int block = tree_.block_of(0, p);
      const float* const end = MemoryOf(block).State(tree_.index_of(0, p) + 1);
      after_.states.insert(after_.states.end(), end, end + kNumColumns * W);
      if (p + 1 == parts_.intervals || tree_.block_of(0, p + 1) == block) continue;
      const float* const entry = MemoryOf(block + 1).State(0);
      const int first = kind.confirms() ? kUpdateColumn : 0;
      const int last = kind.confirms() ? kBallColumn + 1 : kind.vectors();
      after_.shares &= std::equal(end + first * W, end + last * W, entry + first * W);
    }
    after_.final_states.insert(after_.final_states.end(), final_.begin(), final_.end());
    const Progress& p = outcomes_[0];
    for (const double x : {double(p.next), double(p.probes), double(p.refused), double(p.draws),
                           double(p.warm_sweeps), double(p.iterations), double(p.corrections),
                           double(p.confirmations), double(p.stages), double(p.columns), p.update,
                           p.contraction, p.error_estimate, p.rounding_estimate, p.remaining_way})
      after_.progress.push_back(x);
  }

  const Parts parts_;
  const simt::Schedule schedule_;
  const cuda::IntervalTree tree_;
  std::vector<float> workspace_;
  std::mt19937 generator_{11};
  const DeviceVector initial_ = DeviceVector(W, 0.5F);
  DeviceVector final_ = Poisoned(W);
  std::vector<Progress> outcomes_ = std::vector<Progress>(1), progress_ = std::vector<Progress>(1);
  AfterParts after_;
};

template <int W>
AfterParts SolveParts(const Parts& parts, const simt::Schedule& schedule = {}) {
  return PartsOnExecutor<W>(parts, schedule).Run();
}

template <int W>
void ExpectTheBitsOfTheWorkspace(Linearization linearization, int32_t intervals) {
  const AfterParts wanted =
      SolveParts<W>({.intervals = intervals, .num_warps = 2, .linearization = linearization});
  ASSERT_EQ(wanted.launch.trouble, "");
  ASSERT_FALSE(std::ranges::any_of(wanted.states, [](float x) { return std::isnan(x); }));
  for (const bool holds_tree : {false, true}) {
    for (const int num_blocks : {1, 4, 16}) {
      const AfterParts got = SolveParts<W>({.intervals = intervals,
                                            .num_blocks = num_blocks,
                                            .num_warps = num_blocks == 4 ? 3 : 8,
                                            .holds_tree = holds_tree,
                                            .linearization = linearization},
                                           {.order = Order::kShuffled, .seed = 6});
      ASSERT_EQ(got.launch.trouble, "");
      EXPECT_TRUE(got.shares);
      EXPECT_EQ(got.states, wanted.states) << intervals << " " << num_blocks;
      EXPECT_EQ(got.final_states, wanted.final_states) << intervals << " " << num_blocks;
      EXPECT_EQ(got.progress, wanted.progress) << intervals << " " << num_blocks;
    }
  }
}

// The tree of a launch that holds one has the bits of the tree in the workspace, in launches of any
// shape.
TEST(NewtonPartsTest, ATreeInSharedMemoryGivesTheBitsOfTheWorkspace) {
  for (const Linearization linearization : {Linearization::kFull, Linearization::kIdentity,
                                            Linearization::kDiagonal, Linearization::kZero}) {
    for (const int32_t intervals : {1, 2, 17, 64, 70})
      ExpectTheBitsOfTheWorkspace<8>(linearization, intervals);
  }
  for (const int32_t intervals : {16, 130})
    ExpectTheBitsOfTheWorkspace<kWidth>(Linearization::kFull, intervals);
  ExpectTheBitsOfTheWorkspace<32>(Linearization::kFull, 33);
}

TEST(NewtonPartsTest, BarriersAroundATreeInSharedMemoryAreNeeded) {
  const Parts launches[] = {{.intervals = 70, .num_blocks = 2, .num_warps = 3, .holds_tree = true},
                            {.intervals = 40, .num_blocks = 4, .num_warps = 2, .holds_tree = true}};
  simt::ExpectBarriersAreNeeded(
      {cuda::kBeforeTree, cuda::kBeforeLevel, cuda::kAfterLocalReduce, cuda::kAfterReduce,
       cuda::kBeforeLevelDown, cuda::kAfterNode, cuda::kAfterChain, cuda::kAfterOwnNorms,
       cuda::kAfterUpdate},
      launches,
      [&](const Parts& launch, const simt::Schedule& schedule) {
        return SolveParts<8>(launch, schedule);
      },
      [](const AfterParts& a, const AfterParts& b) {
        return a.states == b.states && a.progress == b.progress;
      });
}

}  // namespace
}  // namespace deeppcr::testing
