// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/loop/newton_shape.h"

#include <gtest/gtest.h>

namespace deeppcr::cuda {
namespace {

constexpr LaunchLimits kLimits = {
    .multiprocessors = 132, .shared_bytes = size_t{227} << 10, .max_cluster_blocks = 16};

TEST(NewtonShapeTest, OneSampleGetsTheLargestCluster) {
  const NewtonShape shape = ChooseNewtonShape(16, 1, 512, kLimits);
  EXPECT_EQ(shape.num_blocks, 16);
  EXPECT_EQ(shape.num_warps, MaxNewtonWarps(16));
  EXPECT_EQ(ChooseNewtonShape(16, 1, 3, kLimits).num_blocks, 4);
  EXPECT_EQ(ChooseNewtonShape(16, 1, 1, kLimits).num_blocks, 1);
  EXPECT_EQ(ChooseNewtonShape(16, 1, 16, kLimits).num_warps, 1);
}

TEST(NewtonShapeTest, ManySamplesShareTheMultiprocessors) {
  EXPECT_EQ(ChooseNewtonShape(8, 16, 64, kLimits).num_blocks, 8);
  EXPECT_EQ(ChooseNewtonShape(8, 132, 64, kLimits).num_blocks, 1);
  EXPECT_EQ(ChooseNewtonShape(8, 1000, 64, kLimits).num_blocks, 1);
  // Intervals that do not fit into fewer blocks get more, however many samples there are.
  EXPECT_GT(ChooseNewtonShape(16, 1000, 512, kLimits).num_blocks, 4);
}

// The number of clusters that the device reports overrules the number that its multiprocessors
// suggest.
TEST(NewtonShapeTest, ClustersThatTheHardwareCannotPlaceAreNotCountedOn) {
  LaunchLimits limits = kLimits;
  EXPECT_EQ(limits.ClustersAtOnce(16), 8);
  EXPECT_EQ(ChooseNewtonShape(8, 8, 512, limits).num_blocks, 16);
  limits.clusters = {{132, 66, 32, 16, 7}};
  EXPECT_EQ(limits.ClustersAtOnce(16), 7);
  EXPECT_EQ(ChooseNewtonShape(8, 7, 512, limits).num_blocks, 16);
  EXPECT_EQ(ChooseNewtonShape(8, 8, 512, limits).num_blocks, 8);
}

TEST(NewtonShapeTest, EveryShapeFitsOrLiesInTheWorkspace) {
  for (const int width : kWidths) {
    for (int32_t intervals = 1; intervals <= 5000; intervals += 7) {
      const NewtonShape shape = ChooseNewtonShape(width, 2, intervals, kLimits);
      const size_t bytes =
          BlockMemory::SharedBytes(IntervalTree(intervals, shape.num_blocks), width);
      EXPECT_EQ(shape.in_workspace, bytes > kLimits.shared_bytes);
      // The workspace is for intervals that the largest cluster has too little memory for.
      if (shape.in_workspace) {
        EXPECT_EQ(shape.num_blocks, 16);
      }
      EXPECT_GE(shape.num_warps, 1);
      EXPECT_LE(shape.num_warps, MaxNewtonWarps(width));
    }
  }
}

// Launches that make parts of a solve lie in the workspace, whatever they would fit into, and have
// warps of their own.
TEST(NewtonShapeTest, PartsOfASolveHaveMoreWarps) {
  for (const int width : kWidths) {
    for (const int32_t intervals : {1, 5, 100, 1000, 100'000}) {
      const NewtonShape whole = ChooseNewtonShape(width, 2, intervals, kLimits),
                        part = ChoosePartShape(width, 2, intervals, kLimits);
      EXPECT_TRUE(part.in_workspace);
      EXPECT_EQ(part.num_blocks, whole.num_blocks);
      EXPECT_GE(part.num_warps, whole.num_warps);
      EXPECT_LE(part.num_warps, MaxPartWarps(width));
    }
  }
  LaunchLimits limits = kLimits;
  EXPECT_EQ(ChoosePartShape(16, 1, 1000, limits).num_warps, MaxPartWarps(16));
  limits.max_warps = 3;
  EXPECT_EQ(ChoosePartShape(16, 1, 1000, limits).num_warps, 3);
}

// A workspace may have more bytes than an int can count.
TEST(BlockMemoryTest, ItsPartsFillItsBytes) {
  for (const auto& [intervals, width] : {std::pair{512, 208}, {8193, 256}, {131073, 64}}) {
    const IntervalTree tree(intervals, 1);
    std::byte* const base = reinterpret_cast<std::byte*>(uintptr_t{1} << 44);
    const BlockMemory memory = {tree, width, base};
    const auto place = [&](const float* part) {
      return static_cast<size_t>(reinterpret_cast<const std::byte*>(part) - base);
    };
    const size_t nodes = static_cast<size_t>(tree.nodes_per_block());
    EXPECT_EQ(place(memory.ChainMatrix(0)) - place(memory.Matrix(0)),
              nodes * width * width * sizeof(float));
    EXPECT_EQ(place(memory.State(0)), place(memory.ChainResidual(kChainNodes)));
    EXPECT_EQ(AlignedBytes(place(memory.State(0))), BlockMemory::TreeBytes(tree, width));
    EXPECT_EQ(AlignedBytes(place(memory.Prefix(tree.nodes_per_block()))),
              BlockMemory::Bytes(tree, width));
    EXPECT_EQ(place(memory.HeldWeights()), BlockMemory::SharedBytes(tree, width));
    // The states of another base lie behind the tree that would be there.
    const BlockMemory apart = {tree, width, base + 4096, base};
    EXPECT_EQ(apart.State(3), memory.State(3));
    EXPECT_EQ(place(apart.Residual(0)), place(memory.Residual(0)) + 4096);
  }
}

TEST(NewtonShapeTest, WithoutClustersNothingFits) {
  EXPECT_EQ(ChooseNewtonShape(8, 1, 1, {.shared_bytes = size_t{227} << 10}).num_blocks, 0);
}

}  // namespace
}  // namespace deeppcr::cuda
