// SPDX-License-Identifier: Apache-2.0
// Properties of a pass after its propagation that the conformance tests do not see: the products of
// a level, the levels that are launches of their own, and the need for each barrier.
#include "kernels/cuda/loop/pass_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <random>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/runtime/gemm.h"
#include "kernels/cuda/stack/panel_step.h"
#include "tests/testing/simt/orders.h"
#include "tests/testing/simt/products_on_cpu.h"
#include "tests/testing/simt/simt_device.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr::testing {
namespace {

using simt::DeviceOptions;
using simt::Order;

using Matrix = std::array<double, 4>;
Matrix Times(const Matrix& a, const Matrix& b) {
  return {a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3], a[2] * b[0] + a[3] * b[2],
          a[2] * b[1] + a[3] * b[3]};
}
// Matrices of whole numbers that do not commute.
Matrix LeafOf(int32_t j) { return {1, j % 2 + 0.0, (j + 1) % 2 + 0.0, 1}; }

// Every node that needs a matrix has the matrix of its right child times that of its left child;
// the memory of other nodes is left alone.
TEST(GemmTest, ALevelHasTheProductsOfItsTree) {
  constexpr int kWidth = 2;
  for (int32_t intervals = 1; intervals <= 20; ++intervals) {
    const cuda::IntervalTree tree(intervals, 1);
    std::vector<float> matrices(tree.nodes_per_block() * 4, NAN);
    const auto at = [&](int level, int32_t j) { return &matrices[tree.index_of(level, j) * 4]; };
    for (int32_t j = 1; j < intervals; ++j) std::ranges::copy(LeafOf(j), at(0, j));
    for (int level = 1; level < tree.levels; ++level) {
      simt::MultiplyOnCpu(cuda::ProductsOfLevel(tree, level, kWidth, matrices.data()));
      for (int32_t j = 0; j < tree.nodes(level); ++j) {
        EXPECT_EQ(std::isnan(at(level, j)[0]), !tree.needs_matrix(level, j)) << intervals;
        if (!tree.needs_matrix(level, j)) continue;
        Matrix want = LeafOf(j << level);
        for (int32_t p = (j << level) + 1; p < (j + 1) << level; ++p) want = Times(LeafOf(p), want);
        for (int i = 0; i < 4; ++i)
          EXPECT_EQ(at(level, j)[i], want[i]) << intervals << " level " << level << " node " << j;
      }
    }
  }
}

std::unique_ptr<Backend> BackendOn(const DeviceOptions& options) {
  return cuda::NewCudaBackend(simt::NewSimtDevice(options));
}
std::vector<Solved> AllAnswers(const RandomSystem& system, const DeviceOptions& device) {
  const SolverRig rig(BackendOn(device), system.spec());
  const std::vector<float> inputs = system.Inputs(2, 5);
  return {rig.Solve({.solver = "sequential"}, inputs),
          rig.Solve(OptionsFor("newton", system.spec().num_steps, 2, 1e-4), inputs)};
}
bool Differ(const Solved& a, const Solved& b) {
  if (a.reports.size() != b.reports.size() || !a.SameAnswers(b)) return true;
  for (size_t s = 0; s < a.reports.size(); ++s) {
    if (a.reports[s].error_estimate != b.reports[s].error_estimate) return true;
    if (a.reports[s].iterations != b.reports[s].iterations) return true;
  }
  return false;
}
bool Differ(const std::vector<Solved>& a, const std::vector<Solved>& b) {
  return !std::equal(a.begin(), a.end(), b.begin(),
                     [](const Solved& x, const Solved& y) { return !Differ(x, y); });
}

// The answers of a device of `options`, under other orders of its warps.
auto Orders(const RandomSystem& system, const DeviceOptions& options) {
  return simt::OrdersOfWarps(
      [&system, options, right = AllAnswers(system, options)](const simt::Schedule& schedule) {
        DeviceOptions device = options;
        device.schedule = schedule;
        return Differ(right, AllAnswers(system, device));
      });
}

DeviceOptions OneBlock() {
  DeviceOptions options;
  options.limits.multiprocessors = 1;
  return options;
}

// Without any of the barriers some order of warps gives another answer.
TEST(PassKernelTest, EveryBarrierIsNeeded) {
  const RandomSystem system({.num_steps = 9, .state_dim = 40, .gain = 1.2});
  // There are more intervals than a warp has lanes.
  const RandomSystem longer({.num_steps = 90, .state_dim = 40, .gain = 1.2});
  DeviceOptions few_rows;  // so few that an interval takes its columns in parts
  few_rows.limits.shared_bytes = 10000;
  const auto short_ones = Orders(system, few_rows), long_ones = Orders(longer, few_rows);
  for (const int site :
       {int{cuda::kAfterInitialState}, int{cuda::kAfterColumns}, int{cuda::kAfterStackLayer}})
    EXPECT_TRUE(short_ones.Notice(site)) << "site " << site;
  EXPECT_TRUE(long_ones.Notice(cuda::kAfterWarpNorms));
  // Tests a cluster, and a block that goes through the tree alone.
  const auto one_block = Orders(system, OneBlock());
  for (const int site : {int{cuda::kAfterReducedLevel}, int{cuda::kAfterDistributedLevel},
                         int{cuda::kAfterUpdatedStates}}) {
    EXPECT_TRUE(long_ones.Notice(site)) << "site " << site;
    EXPECT_TRUE(one_block.Notice(site)) << "one block, site " << site;
  }
}

// Intervals of an even number of steps end in the memory that they began in, and take their columns
// in parts of different sizes.
TEST(PassKernelTest, NoOrderOfWarpsChangesAnAnswer) {
  DeviceOptions device;
  device.limits.max_warps = cuda::kMaxBlockWarps;
  for (const int64_t dim : {33, 64}) {
    const RandomSystem system({.num_steps = 8, .state_dim = dim, .gain = 1.2});
    Orders(system, device);
  }
}

int FirstLevel(const DeviceOptions& device, int32_t intervals, int width, Linearization kind) {
  return cuda::ChooseTree(cuda::IntervalTree(intervals, 1), width, kind, 1, device.limits)
      .first_level;
}

// A level whose matrices are too many for one team is a launch of its own.
TEST(PassKernelTest, LaunchesOfALevelHaveTheBitsOfATeam) {
  const RandomSystem system({.num_steps = 129, .state_dim = 40, .gain = 0.9});
  ASSERT_EQ(FirstLevel({}, 65, 48, Linearization::kFull), 0);
  ASSERT_EQ(FirstLevel(OneBlock(), 65, 48, Linearization::kFull), 2);
  EXPECT_FALSE(Differ(AllAnswers(system, OneBlock()), AllAnswers(system, {})));
}

// The memory that a pass leaves, if a team takes the tree from `first_level` on.
struct PassMemory {
  std::vector<float> workspace, final_states;
  std::vector<cuda::IntervalNorms> norms;
  std::vector<UpdateNorms> outcomes;
};

class PassRun {
 public:
  static constexpr int kWidth = 16, kSamples = 3;

  PassRun(int32_t intervals, IterationKind kind) : tree_(intervals, 1), kind_(kind) {
    const size_t floats = kSamples * cuda::BlockMemory::Bytes(tree_, kWidth) / sizeof(float);
    std::mt19937 random(7);
    std::uniform_real_distribution<float> values(-0.3F, 0.3F);
    std::generate_n(std::back_inserter(start_), floats, [&] { return values(random); });
  }

  PassMemory Run(const std::vector<int32_t>& members, cuda::TreeShape shape) const {
    const int levels = kind_.linearization == Linearization::kZero ? 0 : tree_.levels;
    const int first = shape.first_level, count = static_cast<int>(members.size());
    PassMemory memory = {.workspace = start_,
                         .final_states = std::vector<float>(kSamples * kWidth),
                         .norms = std::vector<cuda::IntervalNorms>(kSamples * tree_.num_intervals *
                                                                   (kWidth / cuda::kPassRows)),
                         .outcomes = std::vector<UpdateNorms>(kSamples)};
    const auto device = simt::NewSimtDevice({});
    const auto stream = *device->NewStream();
    const cuda::TreeArgs args = ArgsOf(members, shape, &memory);
    const auto sweep = [&](cuda::Sweep direction, int level) {
      stream->Launch(cuda::LevelArgs{args.update.pass, direction, level, kind_}, count);
    };
    for (int level = 1; level <= first && level < levels; ++level) sweep(cuda::Sweep::kUp, level);
    if (0 < first && first < levels) stream->Launch(args, count);
    for (int level = std::min(first, levels) - 1; level >= 0; --level)
      sweep(cuda::Sweep::kDown, level);
    if (first == 0) stream->Launch(args, count);
    if (first > 0) stream->Launch(args.update, count);
    if (first > 0) stream->Launch(args.collect, count);
    EXPECT_TRUE(stream->status().ok()) << stream->status();
    return memory;
  }

  // Expects y_p = F_p + A_p d_{p-1} with d_p = A_p d_{p-1} + r_p, one interval after the other, for
  // diagonals that the pass forms and for solvers without matrices. The balls show what the probes
  // have become.
  void ExpectPlainScan(int32_t sample, const PassMemory& got) const {
    const cuda::BlockMemory before = MemoryOf(sample, start_),
                            after = MemoryOf(sample, got.workspace);
    for (int row = 0; row < kWidth; ++row) {
      double prefix[kNumColumns] = {};
      for (int32_t p = 0; p < tree_.num_intervals; ++p) {
        SCOPED_TRACE(std::to_string(p) + " of " + std::to_string(tree_.num_intervals) + " row " +
                     std::to_string(row));
        const int32_t leaf = tree_.index_of(0, p);
        const float* const y = after.State(p + 1);
        double next[kNumColumns] = {}, rho = 0;
        for (int v = 0; v < kind_.vectors(); ++v) {
          const int at = v * kWidth + row;
          const double product = FactorOf(p == 0 ? nullptr : before.Matrix(leaf), row) * prefix[v];
          next[v] = before.Propagated(p)[at] + product;
          prefix[v] = product + before.Residual(leaf)[at];
          if (v > 0) rho = std::max(rho, std::fabs(next[v]));
        }
        EXPECT_NEAR(y[row], next[0], 1e-4);
        const double correction = next[0] - before.State(p + 1)[row];
        const float last = before.State(p + 1)[kUpdateColumn * kWidth + row];
        EXPECT_NEAR(y[kUpdateColumn * kWidth + row], correction, 1e-4);
        const float ball = kind_.probes ? BallOf(last, correction, next[0], rho)
                                        : before.State(p + 1)[kBallColumn * kWidth + row];
        EXPECT_NEAR(y[kBallColumn * kWidth + row], ball, 1e-4 * 8 * kRoundingFactor);
      }
    }
  }

 private:
  cuda::BlockMemory MemoryOf(int32_t sample, const std::vector<float>& workspace) const {
    auto* const base = reinterpret_cast<std::byte*>(const_cast<float*>(workspace.data()));
    return cuda::MemoryInWorkspace(base, tree_, kWidth, sample, 0);
  }
  double FactorOf(const float* diagonal, int at) const {
    if (diagonal == nullptr || kind_.linearization == Linearization::kZero) return 0;
    return kind_.linearization == Linearization::kDiagonal ? diagonal[at % kWidth] : 1;
  }
  cuda::TreeArgs ArgsOf(const std::vector<int32_t>& members, cuda::TreeShape shape,
                        PassMemory* memory) const {
    cuda::PassView pass = {.tree = tree_,
                           .state_dim = kWidth,
                           .width = kWidth,
                           .num_steps = tree_.num_intervals,
                           .shooting_interval = 1,
                           .members = {},
                           .workspace = reinterpret_cast<std::byte*>(memory->workspace.data())};
    std::ranges::copy(members, pass.members.at);
    return {.shape = shape,
            .update = {pass, kind_, memory->norms.data(), memory->final_states.data()},
            .collect = {pass, 0.01, memory->norms.data(), memory->outcomes.data()}};
  }

  const cuda::IntervalTree tree_;
  const IterationKind kind_;
  std::vector<float> start_;
};

bool Same(const PassMemory& a, const PassMemory& b) {
  const auto same = [](const UpdateNorms& x, const UpdateNorms& y) {
    return x.update == y.update && x.rounding == y.rounding && x.combined == y.combined &&
           x.finite == y.finite;
  };
  return a.workspace == b.workspace && a.final_states == b.final_states &&
         std::ranges::equal(a.outcomes, b.outcomes, same);
}

// Tests every kind of matrix, every first level, and members that are not all of the samples.
TEST(PassKernelTest, LaunchesOfALevelDoWhatATeamDoes) {
  for (const Linearization linearization : {Linearization::kFull, Linearization::kDiagonal,
                                            Linearization::kIdentity, Linearization::kZero}) {
    for (const bool refresh : {false, true}) {
      for (const int32_t intervals : {1, 2, 5, 33, 70}) {
        const PassRun pass(intervals, {linearization, refresh, /*probes=*/intervals != 5});
        const PassMemory want = pass.Run({2, 0}, {.num_blocks = 4, .first_level = 0});
        if (linearization != Linearization::kFull && refresh) pass.ExpectPlainScan(2, want);
        for (int first = 0; first <= cuda::IntervalTree(intervals, 1).levels; ++first)
          EXPECT_TRUE(Same(pass.Run({2, 0}, {.num_blocks = 1, .first_level = first}), want))
              << static_cast<int>(linearization) << refresh << " " << intervals << " " << first;
      }
    }
  }
}

TEST(PassKernelTest, ATreeBeginsWhereItsTeamCanReadALevel) {
  const cuda::LaunchLimits h100 = {.multiprocessors = 132, .max_cluster_blocks = 16};
  const cuda::LaunchLimits no_clusters = {.multiprocessors = 108};
  for (const cuda::LaunchLimits& limits : {h100, no_clusters}) {
    for (const Linearization kind :
         {Linearization::kFull, Linearization::kDiagonal, Linearization::kZero}) {
      for (const int width : {8, 16, 48, 64, 256}) {
        for (const int members : {1, 3, 8}) {
          for (int32_t intervals = 1; intervals <= 20000; intervals += 1 + intervals / 3) {
            const cuda::IntervalTree tree(intervals, 1);
            const auto [blocks, first] = cuda::ChooseTree(tree, width, kind, members, limits);
            const auto bytes = [&](int level) {
              return tree.nodes(level) * cuda::TransitionBytes(kind, width);
            };
            const int64_t most = blocks * cuda::kTreeBlockBytes;
            EXPECT_TRUE(first == tree.levels || bytes(first) <= most) << intervals;
            EXPECT_TRUE(first == 0 || bytes(first - 1) > most) << intervals;
            EXPECT_LE(blocks, std::max(1, limits.ClustersAtOnce(1) / members));
          }
        }
      }
    }
  }
  const auto blocks = [&](int32_t intervals, int members) {
    return cuda::ChooseTree(cuda::IntervalTree(intervals, 1), 64, Linearization::kFull, members,
                            h100)
        .num_blocks;
  };
  EXPECT_EQ(blocks(1024, 1), 16);
  EXPECT_EQ(blocks(1024, 33), 4);
  EXPECT_EQ(blocks(4, 1), 2);  // there are rows for 32 warps
}

// The layers of wide stacks are dealt out to a cluster of blocks.
TEST(WideStackTest, AClusterHasTheBitsOfABlock) {
  const RandomSystem system({.num_steps = 5, .state_dim = 256, .gain = 0.9});
  EXPECT_FALSE(Differ(AllAnswers(system, OneBlock()), AllAnswers(system, {})));
}

}  // namespace
}  // namespace deeppcr::testing
