// SPDX-License-Identifier: Apache-2.0
// What the conformance tests do not see of passes in launches of their own: products of a level,
// and which barriers are needed.
#include "kernels/cuda/pass_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/cuda/block_shape.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/panel_stack.h"
#include "tests/testing/simt/products_on_cpu.h"
#include "tests/testing/simt/simt_device.h"
#include "tests/testing/solver_rig.h"
#include "tests/testing/systems.h"

namespace deeppcr {
namespace {

using testing::OptionsFor;
using testing::RandomSystem;
using testing::Solved;
using testing::SolverRig;
using testing::simt::DeviceOptions;
using testing::simt::Order;

using Matrix = std::array<double, 4>;
Matrix Times(const Matrix& a, const Matrix& b) {
  return {a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3], a[2] * b[0] + a[3] * b[2],
          a[2] * b[1] + a[3] * b[3]};
}
// Whole numbers that do not commute.
Matrix LeafOf(int32_t j) { return {1, j % 2 + 0.0, (j + 1) % 2 + 0.0, 1}; }

// Every node that wants a matrix has that of its right child times that of its left one, and no
// other is touched.
TEST(GemmTest, ALevelHasTheProductsOfItsTree) {
  constexpr int kWidth = 2;
  for (int32_t intervals = 1; intervals <= 20; ++intervals) {
    const cuda::IntervalTree tree(intervals, 1);
    std::vector<float> matrices(tree.nodes_per_block() * 4, NAN);
    const auto at = [&](int level, int32_t j) { return &matrices[tree.index_of(level, j) * 4]; };
    for (int32_t j = 1; j < intervals; ++j) std::ranges::copy(LeafOf(j), at(0, j));
    for (int level = 1; level < tree.levels; ++level) {
      testing::simt::MultiplyOnCpu(cuda::ProductsOfLevel(tree, level, kWidth, matrices.data()));
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

std::vector<Solved> AllAnswers(const RandomSystem& system, const DeviceOptions& device) {
  const SolverRig rig(cuda::NewCudaBackend(testing::simt::NewSimtDevice(device)), system.spec());
  const std::vector<float> inputs = system.Inputs(2, 5);
  return {rig.Solve({.solver = "sequential"}, inputs),
          rig.Solve(OptionsFor("newton", system.spec().num_steps, 2, 1e-4), inputs)};
}
bool Differ(const std::vector<Solved>& a, const std::vector<Solved>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (b[i].reports.empty() || !a[i].SameAnswers(b[i])) return true;
    if (a[i].reports[0].error_estimate != b[i].reports[0].error_estimate) return true;
  }
  return false;
}

bool Caught(const RandomSystem& system, const DeviceOptions& options, int site) {
  const std::vector<Solved> right = AllAnswers(system, options);
  for (const Order order : {Order::kAscending, Order::kDescending, Order::kShuffled}) {
    DeviceOptions device = options;
    device.schedule = {.order = order, .seed = 3, .disabled_site = site};
    if (Differ(right, AllAnswers(system, device))) return true;
  }
  return false;
}

// Without it some order of warps gives another answer.
TEST(PassKernelTest, EveryBarrierIsNeeded) {
  const RandomSystem system({.num_steps = 9, .state_dim = 40, .gain = 1.2});
  // More intervals than a warp has lanes.
  const RandomSystem longer({.num_steps = 90, .state_dim = 40, .gain = 1.2});
  DeviceOptions few_rows;  // so that columns follow columns in an interval
  few_rows.limits.shared_bytes = 10000;
  for (const int site :
       {int{cuda::kAfterInitialState}, int{cuda::kAfterStackLayer}, int{cuda::kAfterReducedLevel},
        int{cuda::kAfterDistributedLevel}, int{cuda::kAfterUpdatedStates}})
    EXPECT_TRUE(Caught(system, few_rows, site)) << "site " << site;
  EXPECT_TRUE(Caught(longer, few_rows, cuda::kAfterWarpNorms));
}

// Where a level's matrices are too many for one team, it is a launch of its own.
TEST(PassKernelTest, LaunchesOfALevelHaveTheBitsOfATeam) {
  const RandomSystem system({.num_steps = 129, .state_dim = 40, .gain = 0.9});
  DeviceOptions one_block;
  one_block.limits.multiprocessors = 1;
  const auto first_level = [](const DeviceOptions& device) {
    return cuda::ChooseTree(cuda::IntervalTree(65, 1), 48, Linearization::kFull, 1, device.limits)
        .first_level;
  };
  ASSERT_EQ(first_level({}), 0);
  ASSERT_EQ(first_level(one_block), 2);

  EXPECT_FALSE(Differ(AllAnswers(system, one_block), AllAnswers(system, {})));
}

// Every node, whatever the number of blocks, and no level more than a block can read.
TEST(PassKernelTest, ATreeBeginsWhereItsTeamCanReadALevel) {
  using cuda::ChooseTree;
  const cuda::LaunchLimits h100 = {.multiprocessors = 132, .max_cluster_blocks = 16};
  const cuda::IntervalTree tree(1024, 1);
  EXPECT_EQ(ChooseTree(tree, 64, Linearization::kFull, 1, h100).num_blocks, 16);
  EXPECT_EQ(ChooseTree(tree, 64, Linearization::kFull, 1, h100).first_level, 2);
  EXPECT_EQ(ChooseTree(tree, 64, Linearization::kIdentity, 1, h100).first_level, 0);
  EXPECT_EQ(ChooseTree(tree, 64, Linearization::kFull, 33, h100).num_blocks, 4);
  EXPECT_EQ(ChooseTree(tree, 64, Linearization::kFull, 33, h100).first_level, 4);
  const cuda::LaunchLimits no_clusters = {.multiprocessors = 108};
  EXPECT_EQ(ChooseTree(tree, 256, Linearization::kFull, 1, no_clusters).num_blocks, 1);
  EXPECT_EQ(ChooseTree(tree, 256, Linearization::kFull, 1, no_clusters).first_level, 10);
}

// The layers of wide stacks are dealt out to a cluster of blocks.
TEST(WideStackTest, AClusterHasTheBitsOfABlock) {
  const RandomSystem system({.num_steps = 5, .state_dim = 256, .gain = 0.9});
  DeviceOptions one_block;
  one_block.limits.multiprocessors = 1;
  EXPECT_FALSE(Differ(AllAnswers(system, one_block), AllAnswers(system, {})));
}

}  // namespace
}  // namespace deeppcr
