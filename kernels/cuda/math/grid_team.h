// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_GRID_TEAM_H_
#define DEEPPCR_KERNELS_CUDA_MATH_GRID_TEAM_H_

// All blocks of a launch as a team (team.h), where they run side by side: a cooperative launch.
// What one block makes of a vector, all others need for the next layer. An element goes through
// global memory together with the number of its exchange, in one store, and is awaited by its
// readers one by one: that takes a store and a load, where a barrier of all blocks would take a
// fence, an addition and a second load besides.

#include <cstdint>

#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// Global memory through which the blocks of a launch hand elements on: sets of places, a place for
// each float of a block's shared memory up to the last that is exchanged. Exchanges are numbered
// from 1 on, from one launch to the next, so that nothing has to be cleared. Before a number would
// come again all places are to be zero again: of some places only rare launches make use.
//
// Exchange k has the set k modulo their number, which has to be larger than that of the exchanges
// in which every block makes an element at least once. Nobody then waits for what a block writes
// over: it begins k when it has all elements of those before, among them one of each block, which
// made it when it had read all that was there before.
struct GridExchange {
  uint64_t* places;  // [sets, floats], zero before the first launch: a float, its number above it
  int32_t sets;      // a power of two
  int32_t floats;
  uint32_t made;  // exchanges since all places were zero

  constexpr int64_t num_places() const { return int64_t{sets} * floats; }
  // True if numbers are left for so many exchanges.
  constexpr bool HasNumbersFor(int64_t exchanges) const {
    return made + exchanges <= int64_t{0xFFFFFFFF};
  }
};
// An exchange without places, for steps of `exchanges` exchanges in each of which every block makes
// an element, of vectors in the first `floats` floats of shared memory.
constexpr GridExchange NewExchange(int32_t exchanges, int64_t floats) {
  int32_t sets = 1;
  while (sets <= exchanges) sets *= 2;
  return {nullptr, sets, static_cast<int32_t>(floats), 0};
}

// The barrier calls of an exchange.
enum ExchangeSite : int {
  kBeforeExchange = 40,  // beyond those of reverse_step.h
  kForElements,          // elements are awaited, not a barrier
  kAfterExchange,
  kNumExchangeSites,
};

template <class GridContext>
class GridTeam {
 public:
  using Context = GridContext;
  DEEPPCR_DEVICE GridTeam(GridContext& context, const GridExchange& exchange)
      : context_(context), exchange_(exchange), number_(exchange.made + 1) {}

  DEEPPCR_DEVICE Context& context() const { return context_; }
  // Neighbours in number are in different blocks: a layer of fewer panels than warps keeps all
  // blocks at work.
  DEEPPCR_DEVICE int warp() const { return context_.warp() * context_.num_blocks() + place(); }
  // Number of the block.
  DEEPPCR_DEVICE int place() const {
    const int place = context_.block() + from_last_, blocks = context_.num_blocks();
    return place < blocks ? place : place - blocks;
  }
  DEEPPCR_DEVICE int num_warps() const {
    return context_.num_blocks() * (context_.num_threads() / kWarpSize);
  }
  DEEPPCR_DEVICE bool leads() const { return context_.block() == 0; }
  // The same, but that the first warps are those of the last `blocks` blocks, if there are more.
  DEEPPCR_DEVICE GridTeam FromLast(int blocks) const {
    GridTeam team = *this;
    team.from_last_ = blocks < context_.num_blocks() ? blocks : 0;
    return team;
  }
  // Elements of one vector between two Completes.
  DEEPPCR_DEVICE void Put(float* element, float value) const {
    context_.StoreNumbered(Place(element), value, number_);
  }
  // For what each block does for itself.
  DEEPPCR_DEVICE void Sync(int site) const { context_.SyncBlock(site); }
  // The first barrier keeps warps that had nothing to do for the layer from asking for its elements
  // all the while. Elements are awaited in pairs: a zero follows an odd number of them.
  template <class Shape>
  DEEPPCR_DEVICE void Complete(int, float* vector, const Shape& shape) const {
    if constexpr (Shape::kMayBeOdd) {
      if (shape.cols % 2 == 1 && leads() && context_.thread() == 0)
        Put(vector + shape.Place(0, shape.cols), 0.0F);
    }
    context_.SyncBlock(kBeforeExchange);
    for (int k = 2 * context_.thread(); k < shape.cols; k += 2 * context_.num_threads()) {
      float* const to = vector + shape.Place(0, k);
      float pair[2];
      context_.AwaitNumbered(Place(to), number_, pair, kForElements);
      to[0] = pair[0];
      to[1] = pair[1];
    }
    context_.SyncBlock(kAfterExchange);
    ++number_;
  }

 private:
  DEEPPCR_DEVICE uint64_t* Place(const float* element) const {
    const auto at = element - reinterpret_cast<const float*>(context_.shared());
    const uint32_t set = number_ & static_cast<uint32_t>(exchange_.sets - 1);
    return exchange_.places + int64_t{set} * exchange_.floats + at;
  }

  Context& context_;
  const GridExchange exchange_;
  int from_last_ = 0;        // blocks at the end that are numbered first
  mutable uint32_t number_;  // of the exchange that is next
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_GRID_TEAM_H_
