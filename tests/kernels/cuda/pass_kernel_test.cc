// SPDX-License-Identifier: Apache-2.0
// What the conformance tests do not see of passes in launches of their own: products of a level,
// and which barriers are needed.
#include "kernels/cuda/pass_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/panel_stack.h"
#include "tests/testing/simt/simt_device.h"
#include "tests/testing/simt/tf32_products.h"
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

// Every node that wants a matrix has that of its right child times that of its left one, and no
// other is touched.
TEST(GemmTest, ALevelHasTheProductsOfItsTree) {
  constexpr int kWidth = 2, kFloats = kWidth * kWidth;
  for (int32_t intervals = 1; intervals <= 20; ++intervals) {
    const cuda::IntervalTree tree(intervals, 1);
    std::vector<float> matrices(tree.nodes_per_block() * kFloats, NAN);
    const auto at = [&](int level, int32_t j) {
      return &matrices[tree.index_of(level, j) * kFloats];
    };
    // Shears: they add up.
    for (int32_t j = 1; j < intervals; ++j) {
      const float shear[] = {1, static_cast<float>(j), 0, 1};
      std::copy_n(shear, kFloats, at(0, j));
    }
    for (int level = 1; level < tree.levels; ++level) {
      testing::simt::MultiplyInTf32(cuda::ProductsOfLevel(tree, level, kWidth, matrices.data()));
      for (int32_t j = 0; j < tree.nodes(level); ++j) {
        float sum = 0;
        for (int32_t p = j << level; p < (j + 1) << level && p < intervals; ++p)
          sum += static_cast<float>(p);
        EXPECT_EQ(std::isnan(at(level, j)[1]), !tree.needs_matrix(level, j)) << intervals;
        if (tree.needs_matrix(level, j)) {
          EXPECT_EQ(at(level, j)[1], sum) << intervals << " level " << level << " node " << j;
        }
      }
    }
  }
}

// Right times left, and not the other way round.
TEST(GemmTest, TheLaterOneIsOnTheLeft) {
  const float right[] = {1, 2, 3, 4}, left[] = {5, 6, 7, 8};
  float product[4] = {};
  testing::simt::MultiplyInTf32({2, 1, right, left, 0, product, 0});
  EXPECT_EQ(std::vector<float>(product, product + 4), (std::vector<float>{19, 22, 43, 50}));
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
