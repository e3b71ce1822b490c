// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_CHAIN_COPY_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_CHAIN_COPY_H_

// The nodes of a tree's chain, of which every block of a cluster forms its own, in the memory of
// all blocks that go through them.

#include <cstdint>

#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// Copies kFloats floats of each of the nodes first, ..., last - 1 by all threads of a block:
// node(j), which may be in another block, to to[j kFloats]. All that a thread copies is on its way
// at a time; one after another, on the way through the chain, each node would be waited for. The
// last comes first: blocks that began with the same node would wait for its block.
template <int kFloats, class Context, class Node>
DEEPPCR_DEVICE void CopyNodes(Context& context, int32_t first, int32_t last, const Node& node,
                              float* to) {
  constexpr int kTogether = 4, kFours = kFloats / 4;
  const int32_t count = (last - first) * kFours, stride = context.num_threads();
  for (int32_t begin = context.thread(); begin < count; begin += kTogether * stride) {
    float values[kTogether][4] = {};
    int32_t places[kTogether];
    DEEPPCR_UNROLL
    for (int k = 0; k < kTogether; ++k) {
      const int32_t at = begin + k * stride < count ? begin + k * stride : begin;
      const int32_t j = last - 1 - at / kFours, four = at % kFours;
      context.LoadFour(node(j) + 4 * four, values[k]);
      places[k] = j * kFloats + 4 * four;
    }
    DEEPPCR_UNROLL
    for (int k = 0; k < kTogether; ++k)
      if (begin + k * stride < count) context.StoreFour(values[k], to + places[k]);
  }
}

// Copies kFloats floats at `from`, in the block's own memory, to place(b) of its own block and
// every later one b, by all threads of the block. Whoever stores in another block's memory waits
// for nothing; a barrier of the cluster, which a block comes to anyway, says that all has arrived.
template <int kFloats, class Context, class Place>
DEEPPCR_DEVICE void ShareNode(Context& context, const float* from, int num_blocks,
                              const Place& place) {
  constexpr int kFours = kFloats / 4;
  // Threads that copy the same four floats, each to blocks of its own, load them once.
  const int groups = context.num_threads() < kFours ? 1 : context.num_threads() / kFours;
  const int group = groups == 1 ? 0 : context.thread() / kFours;
  const int first = groups == 1 ? context.thread() : context.thread() % kFours;
  if (group >= groups) return;
  for (int four = first; four < kFours; four += context.num_threads()) {
    float values[4] = {};
    context.LoadFour(from + 4 * four, values);
    for (int b = context.block() + group; b < num_blocks; b += groups)
      context.StoreFour(values, place(b) + 4 * four);
  }
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_CHAIN_COPY_H_
