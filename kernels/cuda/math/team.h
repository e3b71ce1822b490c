// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_TEAM_H_
#define DEEPPCR_KERNELS_CUDA_MATH_TEAM_H_

// Team of threads that makes a step: a block, or all blocks of a cluster; grid_team.h has one of
// all blocks of a launch. The rows of a layer are dealt out to the team's warps; each block has a
// copy in its shared memory of every vector that a layer reads.

#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

template <class BlockContext>
class BlockTeam {
 public:
  using Context = BlockContext;
  explicit DEEPPCR_DEVICE BlockTeam(BlockContext& context) : context_(context) {}

  DEEPPCR_DEVICE Context& context() const { return context_; }
  DEEPPCR_DEVICE int warp() const { return context_.warp(); }
  DEEPPCR_DEVICE int num_warps() const { return context_.num_threads() / kWarpSize; }
  // True in one block of a team, which writes all results outside shared memory.
  DEEPPCR_DEVICE bool leads() const { return true; }
  // The same team, with the first warps in its last blocks, where it deals blocks out.
  DEEPPCR_DEVICE const BlockTeam& FromLast(int) const { return *this; }
  // Writes to every copy of an element.
  DEEPPCR_DEVICE void Put(float* element, float value) const { *element = value; }
  DEEPPCR_DEVICE void Sync(int site) const { context_.SyncBlock(site); }
  // Waits until what all warps have Put in vectors of this shape is in every copy.
  template <class Shape>
  DEEPPCR_DEVICE void Complete(int site, float*, const Shape&) const {
    Sync(site);
  }

 private:
  Context& context_;
};

template <class BlocksContext>
class ClusterTeam {
 public:
  using Context = BlocksContext;
  explicit DEEPPCR_DEVICE ClusterTeam(BlocksContext& context) : context_(context) {}

  DEEPPCR_DEVICE Context& context() const { return context_; }
  DEEPPCR_DEVICE int warp() const { return context_.block() * warps_per_block() + context_.warp(); }
  DEEPPCR_DEVICE int num_warps() const { return context_.num_blocks() * warps_per_block(); }
  DEEPPCR_DEVICE bool leads() const { return context_.block() == 0; }
  DEEPPCR_DEVICE const ClusterTeam& FromLast(int) const { return *this; }
  DEEPPCR_DEVICE void Put(float* element, float value) const {
    for (int b = 0; b < context_.num_blocks(); ++b) *context_.Remote(element, b) = value;
  }
  DEEPPCR_DEVICE void Sync(int site) const { context_.SyncCluster(site); }
  template <class Shape>
  DEEPPCR_DEVICE void Complete(int site, float*, const Shape&) const {
    Sync(site);
  }

 private:
  DEEPPCR_DEVICE int warps_per_block() const { return context_.num_threads() / kWarpSize; }
  Context& context_;
};

// The threads of a block from warp `first` on, as the context, and the team, of what they do while
// the warps before make something else. They have no barriers.
template <class BlockContext>
class LaterWarps {
 public:
  DEEPPCR_DEVICE LaterWarps(BlockContext& context, int first)
      : context_(context), before_(first * kWarpSize) {}

  DEEPPCR_DEVICE const LaterWarps& context() const { return *this; }
  DEEPPCR_DEVICE int thread() const { return context_.thread() - before_; }
  DEEPPCR_DEVICE int num_threads() const { return context_.num_threads() - before_; }
  DEEPPCR_DEVICE void Prefetch(const float* from) const { context_.Prefetch(from); }
  template <int N>
  DEEPPCR_DEVICE void CopyAsync(const float* from, float* to) const {
    context_.template CopyAsync<N>(from, to);
  }

 private:
  BlockContext& context_;
  const int before_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_TEAM_H_
