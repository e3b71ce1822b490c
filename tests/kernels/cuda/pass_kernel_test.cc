// SPDX-License-Identifier: Apache-2.0
// What the conformance tests do not see of passes in launches of their own: products of a level,
// and which barriers are needed.
#include "kernels/cuda/pass_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

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

// Without it some order of warps gives another answer.
TEST(PassKernelTest, EveryBarrierIsNeeded) {
  const RandomSystem system({.num_steps = 9, .state_dim = 40, .gain = 1.2});
  DeviceOptions few_rows;  // so that columns follow columns in an interval
  few_rows.limits.shared_bytes = 10000;
  const std::vector<Solved> right = AllAnswers(system, few_rows);
  for (const int site :
       {int{cuda::kAfterInitialState}, int{cuda::kAfterStackLayer}, int{cuda::kAfterWarpNorms}}) {
    bool caught = false;
    for (const Order order : {Order::kAscending, Order::kDescending, Order::kShuffled}) {
      DeviceOptions device = few_rows;
      device.schedule = {.order = order, .seed = 3, .disabled_site = site};
      caught = caught || Differ(right, AllAnswers(system, device));
    }
    EXPECT_TRUE(caught) << "site " << site;
  }
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
