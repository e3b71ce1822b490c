// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_HELPED_SCAN_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_HELPED_SCAN_H_

// The scan d_p = A_p d_{p-1} + r_p, d_0 = 0, over the intervals of a solve by one launch
// (grid_solve.h), for matrices [W, W] that fill a block's shared memory soon: a block has one
// interval, and blocks that have none help.
//
// Every kGroupBlocks nodes have helpers, which compose them up to each of them. One more takes the
// vectors through the groups, whose matrices it keeps; what enters a group goes back to its blocks,
// each of which takes it past the nodes before its own. So vectors take three exchanges; matrices
// take two, once for all passes with the same ones, as everybody keeps what it has read.
//
// Matrices are handed on and kept in the order of a PanelLayer, by which vectors are multiplied;
// their products are those of split factors (math/tangent_tiles.h).

#include <cstdint>

#include "kernels/cuda/loop/block_memory.h"
#include "kernels/cuda/loop/grid_places.h"
#include "kernels/cuda/loop/interval_norms.h"
#include "kernels/cuda/loop/interval_tree.h"
#include "kernels/cuda/loop/newton_args.h"
#include "kernels/cuda/math/panel_layer.h"
#include "kernels/cuda/math/tangent_tiles.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

// The barrier calls of the scan, beyond those of resident_stack.h.
enum HelpedScanSite : int {
  kBeforeHelpedEntry = 128,
  kAfterHelpedEntry,
  kAfterHelpedCorrection,
  kForHelpedMatrix,  // elements are awaited, not a barrier, as with the next ones
  kForHelpedVectors,
  kForHelpedEntry,
  kForLedMatrices,
  kForLedVectors,
  kForTotals,
  kForTotalVectors,
  kAfterLedNodes,
  kAfterLedNode,
  kAfterTotals,
  kAfterTotal,
  kNumHelpedScanSites,
};

// Helpers of a group: each has a share of the columns of matrices.
inline constexpr int kGroupHelpers = 2;

// Who does what in a launch for P intervals: blocks with an interval come first, then the helpers
// of each group, then the one that takes vectors through the groups, if there are two or more. The
// last interval gives no node, as nothing follows it.
struct HelpedShape {
  int32_t intervals;

  constexpr int groups() const { return (intervals - 1 + kGroupBlocks - 1) / kGroupBlocks; }
  constexpr int blocks() const {
    return intervals + kGroupHelpers * groups() + (groups() > 1 ? 1 : 0);
  }
  // Nodes of a group.
  constexpr int nodes(int group) const {
    const int left = intervals - 1 - group * kGroupBlocks;
    return left < kGroupBlocks ? left : kGroupBlocks;
  }
  // Groups whose matrices vectors go through: nothing enters the first, nothing leaves the last.
  constexpr int inner_groups() const { return groups() > 2 ? groups() - 2 : 0; }
};

// What the blocks of a helped scan hand on: GridPlaces of the intervals, then what enters groups.
struct HelpedPlaces {
  GridPlaces places;
  int32_t intervals;

  static constexpr int64_t Count(int intervals, int width) {
    return GridPlaces::Count(intervals, width) +
           int64_t{HelpedShape{intervals}.groups()} * GridPlaces::VectorElements(width);
  }
  DEEPPCR_DEVICE uint64_t* Node(int node, int width) const { return places.Node(node, width); }
  // The composition of the nodes of a group up to a node.
  DEEPPCR_DEVICE uint64_t* UpTo(int node, int width) const {
    return places.Prefix(node, intervals, width);
  }
  // The vectors of a node.
  static DEEPPCR_DEVICE uint64_t* VectorsOf(uint64_t* node, int width) {
    return node + width * width;
  }
  // The vectors that enter a group.
  DEEPPCR_DEVICE uint64_t* Entering(int group, int width) const {
    return places.base + GridPlaces::Count(intervals, width) +
           group * GridPlaces::VectorElements(width);
  }
};

// Propagation: that of a block's interval, with states of kWidth elements, in a Context; it has the
// first Floats(steps) of the memory of a block with an interval of so many steps.
template <class Propagation>
class HelpedScan {
 public:
  using Context = typename Propagation::Context;
  static constexpr int W = Propagation::kWidth, kWidth = W, kRowsOfLane = W / kWarpSize;
  static constexpr bool kHasHelpers = true;
  static_assert(W % kWarpSize == 0 && W % kTileTangents == 0);
  static constexpr int kVectors = kNumColumns * W;
  static constexpr int kThreads = kResidentWarps * kWarpSize;
  // Floats at the end of the memory that the scan leaves to norms.
  static constexpr int kNorms = kResidentWarps * sizeof(RelativeNorms) / sizeof(float);

  // Floats of shared memory of any block of a launch: with an interval, with a group, or between
  // groups.
  static constexpr int64_t Floats(int32_t intervals, int64_t shooting_interval) {
    const HelpedShape shape = {intervals};
    constexpr int64_t kTwo = 2 * kRoom;
    const int64_t of_interval =
        Propagation::Floats(shooting_interval) + int64_t{2} * W * W + kTwo + 6 * kVectors;
    const int64_t of_group = int64_t{kGroupBlocks} * (W * W + kVectors) + 2 * kTileFloats + kTwo;
    const int64_t of_totals =
        int64_t{shape.inner_groups()} * (W * W) + shape.groups() * kVectors + kTwo;
    const int64_t helped = shape.groups() > 1 && of_totals > of_group ? of_totals : of_group;
    return (of_interval > helped ? of_interval : helped) + kNorms;
  }
  static DEEPPCR_DEVICE int64_t Floats(const NewtonArgs& args) {
    return Floats(args.tree.num_intervals, args.shooting_interval);
  }
  // Blocks that have intervals.
  static DEEPPCR_DEVICE int Givers(const Context&, const IntervalTree& tree) {
    return tree.num_intervals;
  }

  // `memory`: Floats of shared memory, aligned to 16 bytes, which is the scan's for the whole
  // solve.
  DEEPPCR_DEVICE HelpedScan(Context& context, const GridPlaces& places, const NewtonArgs& args,
                            float* memory)
      : context_(context),
        shape_{args.tree.num_intervals},
        places_{places, args.tree.num_intervals},
        block_(context.Uniform(context.block())),
        memory_(memory + (count() > 0 ? Propagation::Floats(args.shooting_interval) : 0)) {}

  DEEPPCR_DEVICE int32_t first() const { return block_; }
  DEEPPCR_DEVICE int32_t count() const { return block_ < shape_.intervals ? 1 : 0; }
  // The interval's states at its start and at its end, what propagation made of the first, each
  // [kNumColumns, W], and the interval's matrix.
  DEEPPCR_DEVICE float* State(int i) const { return Vectors() + i * kVectors; }
  DEEPPCR_DEVICE float* Propagated(int) const { return State(2); }
  DEEPPCR_DEVICE float* Residual() const { return State(3); }
  DEEPPCR_DEVICE float* Matrix() const { return memory_; }
  // The lane's row, of several.
  DEEPPCR_DEVICE int Row(int q) const { return context_.lane() + q * kWarpSize; }

  // Takes the vectors of the pass of this number to the block. Returns the number of stages.
  DEEPPCR_DEVICE int32_t Run(IterationKind kind, uint32_t number, uint32_t) {
    number_ = number;
    if (block_ < shape_.intervals) {
      Give(kind);
      if (block_ > 0) {
        kind.vectors() == 1 ? Enter<1>(kind) : Enter<kNumColumns>(kind);
      }
    } else if (const int helper = block_ - shape_.intervals;
               helper < kGroupHelpers * shape_.groups()) {
      const int group = helper / kGroupHelpers, share = helper % kGroupHelpers;
      kind.vectors() == 1 ? Lead<1>(kind, group, share) : Lead<kNumColumns>(kind, group, share);
    } else {
      kind.vectors() == 1 ? TakeThroughGroups<1>(kind) : TakeThroughGroups<kNumColumns>(kind);
    }
    context_.SyncBlock(kAfterHelpedCorrection);
    // The longest way: through a group's nodes and the groups, past nodes and past the interval.
    const int of_group = shape_.nodes(0);
    return (of_group > 1 ? of_group - 1 : 0) + shape_.inner_groups() +
           (shape_.groups() > 1 ? 1 : 0);
  }
  // Writes the states to the workspace, where other launches find them: the memory of a tree of a
  // single block.
  DEEPPCR_DEVICE void KeepStates(const NewtonArgs& args) const {
    const BlockMemory memory = MemoryInWorkspace(args.workspace, args.tree, W, 0, 0);
    for (int at = context_.thread(); at < 2 * W; at += context_.num_threads()) {
      const int end = at / W, row = at % W;
      if (end == 1 || block_ == 0) memory.State(block_ + end)[row] = State(end)[row];
    }
  }
  // The elements of the lane's q-th row of the correction A_p d_{p-1}.
  template <int N>
  DEEPPCR_DEVICE void Correct(int q, float (&corrections)[N]) const {
    DEEPPCR_UNROLL
    for (int v = 0; v < N; ++v) corrections[v] = Corrections()[v * W + Row(q)];
  }

 private:
  // Columns of a matrix as those of tiles: element k of column c. The lanes of a half-warp read and
  // write pairs in different banks.
  static constexpr int kColumnFloats = W + 2 * kSegments, kShare = W / kGroupHelpers,
                       kTileFloats = kShare * kColumnFloats;
  static DEEPPCR_DEVICE int TilePlace(int k, int c) {
    return c * kColumnFloats + k + 2 * (k / (W / kSegments));
  }
  // Vectors that are multiplied by a matrix.
  template <int N>
  static constexpr VectorShape ShapeOf() {
    return VectorShape::For(W, N);
  }
  static constexpr int kRoom = VectorShape::For(W, kNumColumns).floats();

  // ---- The memory of a block with an interval: its matrix, that of the nodes before it in its
  // group, vectors to multiply, then other vectors
  DEEPPCR_DEVICE float* MatrixBefore() const { return memory_ + W * W; }
  DEEPPCR_DEVICE float* Entry(int which) const { return memory_ + 2 * W * W + which * kRoom; }
  DEEPPCR_DEVICE float* Vectors() const { return memory_ + 2 * W * W + 2 * kRoom; }
  DEEPPCR_DEVICE float* Before() const { return State(4); }
  DEEPPCR_DEVICE float* Corrections() const { return State(5); }

  // A lane's quarter of its warp's row of a matrix.
  struct Quarter {
    float weights[W / kPanelCols][4];
  };
  DEEPPCR_DEVICE int RowOfLane() const {
    return context_.warp() * kPanelRows + context_.lane() / kSegments;
  }
  DEEPPCR_DEVICE Quarter QuarterOf(const float* matrix) const {
    constexpr int kFloats = 4 * kWarpSize;
    const float* const from = matrix + context_.warp() * (W / kPanelCols * kFloats);
    Quarter row;
    DEEPPCR_UNROLL
    for (int j = 0; j < W / kPanelCols; ++j)
      context_.LoadFour(from + j * kFloats + 4 * context_.lane(), row.weights[j]);
    return row;
  }
  // Calls f(v, b_v + (A x_v)[row]) for N vectors and the row of the lane, by one of the lanes that
  // share it. `to_add`: b_v of the row, W floats apart; null: zeros.
  template <int N, class F>
  DEEPPCR_DEVICE void Multiply(const Quarter& row, const float* vectors, const float* to_add,
                               const F& f) const {
    constexpr int kOfLane = (N + kSegments - 1) / kSegments;
    const int segment = context_.lane() % kSegments;
    float added[kOfLane] = {};  // ahead of the product
    DEEPPCR_UNROLL
    for (int k = 0; k < kOfLane; ++k) {
      const int v = k * kSegments + segment;
      if (to_add != nullptr && v < N) added[k] = to_add[v * W];
    }
    const VectorShape shape = ShapeOf<N>();
    const float* const x = vectors + segment * shape.quarter();
    float sums[N];
    DEEPPCR_UNROLL
    for (int v = 0; v < N; ++v) {
      float even = 0.0F, odd = 0.0F;
      DEEPPCR_UNROLL
      for (int j = 0; j < W / kPanelCols; ++j) {
        float four[4];
        context_.LoadFour(x + j * shape.stride() + 4 * v, four);
        AddFour(row.weights[j], four, &even, &odd);
      }
      sums[v] = even + odd;
    }
    DEEPPCR_UNROLL
    for (int mask = 1; mask < kSegments; mask *= 2) {
      DEEPPCR_UNROLL
      for (int v = 0; v < N; ++v) sums[v] += context_.ShuffleXor(sums[v], mask);
    }
    DEEPPCR_UNROLL
    for (int v = 0; v < N; ++v)
      if (segment == v % kSegments) f(v, added[v / kSegments] + sums[v]);
  }
  // Awaits elements 0, ..., count - 1 of this pass, a multiple of two, of which place(element) is
  // the first of a pair, and calls put(element, value) for each, by the thread that has it.
  // kTogether pairs of a thread are on their way at a time.
  template <int kTogether, class Place, class Put>
  DEEPPCR_DEVICE void Await(int count, int site, const Place& place, const Put& put) const {
    const int stride = 2 * context_.num_threads();
    for (int begin = 2 * context_.thread(); begin < count; begin += kTogether * stride) {
      const uint64_t* places[kTogether];
      float values[kTogether][2];
      DEEPPCR_UNROLL
      for (int k = 0; k < kTogether; ++k)
        places[k] = place(begin + k * stride < count ? begin + k * stride : begin);
      context_.AwaitAllNumbered(places, number_, values, site);
      DEEPPCR_UNROLL
      for (int k = 0; k < kTogether; ++k) {
        const int at = begin + k * stride;
        if (at >= count) continue;
        put(at, values[k][0]);
        put(at + 1, values[k][1]);
      }
    }
  }
  // Awaits the matrices of nodes 0, ..., count - 1, that of the i-th at node(i), one after another,
  // all elements of each at a time, and calls put(i, element, value).
  template <class Node, class Put>
  DEEPPCR_DEVICE void AwaitMatrices(int count, int site, const Node& node, const Put& put) const {
    constexpr int kTogether = W * W / (2 * kThreads);
    DEEPPCR_AS_WRITTEN
    for (int i = 0; i < count; ++i) {
      const uint64_t* const from = node(i) + 2 * context_.thread();
      const uint64_t* places[kTogether];
      float values[kTogether][2];
      DEEPPCR_UNROLL
      for (int k = 0; k < kTogether; ++k) places[k] = from + k * (2 * kThreads);
      context_.AwaitAllNumbered(places, number_, values, site);
      DEEPPCR_UNROLL
      for (int k = 0; k < kTogether; ++k) {
        const int at = 2 * context_.thread() + k * (2 * kThreads);
        put(i, at, values[k][0]);
        put(i, at + 1, values[k][1]);
      }
    }
  }
  // Awaits their N vectors, likewise.
  template <int N, class Node, class Put>
  DEEPPCR_DEVICE void AwaitVectors(int count, int site, const Node& node, const Put& put) const {
    constexpr int kFloats = N * W;
    Await<2>(
        count * kFloats, site,
        [&](int at) { return HelpedPlaces::VectorsOf(node(at / kFloats), W) + at % kFloats; },
        [&](int at, float value) { put(at / kFloats, at % kFloats, value); });
  }

  // ---- A block with an interval
  DEEPPCR_DEVICE void Give(IterationKind kind) const {
    if (block_ + 1 == shape_.intervals) return;
    uint64_t* const node = places_.Node(block_, W);
    // d_0 = 0: nothing goes through the first interval.
    if (kind.forms_matrices() && block_ > 0) {
      DEEPPCR_UNROLL
      for (int k = 0; k < W * W / kThreads; ++k) {
        const int at = context_.thread() + k * kThreads;
        context_.StoreNumbered(node + at, Matrix()[at], number_);
      }
    }
    for (int at = context_.thread(); at < kind.vectors() * W; at += context_.num_threads())
      context_.StoreNumbered(HelpedPlaces::VectorsOf(node, W) + at, Residual()[at], number_);
  }
  // Takes the vectors that enter the block's group past the nodes before it, and past its interval.
  template <int N>
  DEEPPCR_DEVICE void Enter(IterationKind kind) const {
    const int before = block_ - 1, group = before / kGroupBlocks, row = RowOfLane();
    const auto up_to = [&](int) { return places_.UpTo(before, W); };
    if (kind.forms_matrices() && group > 0)
      AwaitMatrices(1, kForHelpedMatrix, up_to,
                    [&](int, int at, float value) { MatrixBefore()[at] = value; });
    AwaitVectors<N>(1, kForHelpedVectors, up_to, [&](int, int at, float value) {
      group > 0 ? Before()[at] = value : Entry(1)[PlaceOf<N>(at)] = value;
    });
    if (group > 0) {
      Await<1>(
          N * W, kForHelpedEntry, [&](int at) { return places_.Entering(group, W) + at; },
          [&](int at, float value) { Entry(0)[PlaceOf<N>(at)] = value; });
      context_.SyncBlock(kBeforeHelpedEntry);
      Multiply<N>(QuarterOf(MatrixBefore()), Entry(0), Before() + row,
                  [&](int v, float sum) { Entry(1)[ShapeOf<N>().Place(v, row)] = sum; });
    }
    const Quarter own = QuarterOf(Matrix());
    context_.SyncBlock(kAfterHelpedEntry);
    Multiply<N>(own, Entry(1), nullptr,
                [&](int v, float sum) { Corrections()[v * W + row] = sum; });
  }
  // The place of element `at` of vectors [N, W] among vectors that are multiplied.
  template <int N>
  static DEEPPCR_DEVICE int PlaceOf(int at) {
    return ShapeOf<N>().Place(at / W, at % W);
  }

  // ---- The helper of a group. Memory: the matrices of its nodes, the compositions of the last two
  // by columns, vectors to multiply, and the vectors of its nodes
  DEEPPCR_DEVICE float* Led(int i) const { return memory_ + i * (W * W); }
  DEEPPCR_DEVICE float* Composed(int i) const { return Led(kGroupBlocks) + i % 2 * kTileFloats; }
  DEEPPCR_DEVICE float* LedEntry(int i) const {
    return Led(kGroupBlocks) + 2 * kTileFloats + i % 2 * kRoom;
  }
  DEEPPCR_DEVICE float* LedVectors(int i) const {
    return Led(kGroupBlocks) + 2 * kTileFloats + 2 * kRoom + i * kVectors;
  }

  // Both helpers compose all vectors, each gives its share of their elements: so whoever gives a
  // node again has waited for both.
  template <int N>
  DEEPPCR_DEVICE void Lead(IterationKind kind, int group, int share) const {
    const int first = group * kGroupBlocks, count = shape_.nodes(group);
    const auto node = [&](int i) { return places_.Node(first + i, W); };
    // d_0 = 0: nothing goes through a composition with the first interval.
    const bool composes = kind.forms_matrices() && group > 0;
    if (composes) {
      AwaitMatrices(1, kForLedMatrices, node, [&](int, int at, float value) {
        const int column = ColumnAt(at) - share * kShare;
        if (column >= 0 && column < kShare) Composed(0)[TilePlace(RowAt(at), column)] = value;
        Led(0)[at] = value;
      });
    }
    AwaitVectors<N>(count, kForLedVectors, node, [&](int i, int at, float value) {
      if (i == 0) LedEntry(0)[PlaceOf<N>(at)] = value;
      LedVectors(i)[at] = value;
    });
    if (kind.forms_matrices())
      AwaitMatrices(
          count - 1, kForLedMatrices, [&](int i) { return node(i + 1); },
          [&](int i, int at, float value) { Led(i + 1)[at] = value; });
    context_.SyncBlock(kAfterLedNodes);
    const int row = RowOfLane();
    Quarter own = QuarterOf(Led(1));
    for (int i = 1; i < count; ++i) {
      uint64_t* const to = places_.UpTo(first + i, W);
      Multiply<N>(own, LedEntry(i - 1), LedVectors(i) + row, [&](int v, float sum) {
        LedEntry(i)[ShapeOf<N>().Place(v, row)] = sum;
        if (row / kShare == share)
          context_.StoreNumbered(HelpedPlaces::VectorsOf(to, W) + v * W + row, sum, number_);
      });
      own = QuarterOf(Led(i + 1 < count ? i + 1 : i));
      if (composes) Compose(Led(i), Composed(i - 1), Composed(i), to, share * kShare);
      context_.SyncBlock(kAfterLedNode);
    }
    GiveFirst<N>(places_.UpTo(first, W), composes, share);
  }
  // Gives the helper's share of the group's first node, which is the composition up to it. Whoever
  // waits for a part has waited for all threads, which had the whole node before the barrier.
  template <int N>
  DEEPPCR_DEVICE void GiveFirst(uint64_t* to, bool matrix, int share) const {
    if (matrix) {
      DEEPPCR_AS_WRITTEN
      for (int at = context_.thread(); at < W * W; at += kThreads) {
        if (ColumnAt(at) / kShare == share) context_.StoreNumbered(to + at, Led(0)[at], number_);
      }
    }
    for (int at = context_.thread(); at < N * W; at += kThreads) {
      if (at % W / kShare == share)
        context_.StoreNumbered(HelpedPlaces::VectorsOf(to, W) + at, LedVectors(0)[at], number_);
    }
  }
  // Row and column of an element of a matrix in the order of a PanelLayer (PanelPlace).
  static DEEPPCR_DEVICE int RowAt(int at) {
    return at / (kPanelRows * W) * kPanelRows + at / (4 * kSegments) % kPanelRows;
  }
  static DEEPPCR_DEVICE int ColumnAt(int at) {
    return at / 4 % kSegments * (W / kSegments) + at / (4 * kWarpSize) % (W / kPanelCols) * 4 +
           at % 4;
  }
  // next = A X, of kShare columns: the warps of sixteen of them share the rows. `first_column`: of
  // the matrix that is given.
  DEEPPCR_DEVICE void Compose(const float* matrix, const float* x, float* next, uint64_t* to,
                              int first_column) const {
    constexpr int kTiles = W / 8, kColumnTiles = kShare / kTileTangents;
    constexpr int kOut = kTiles * kColumnTiles / kResidentWarps;
    const PanelLayer layer = {matrix, nullptr, nullptr, W, W};
    const TileElements elements(context_, W);
    const int task = context_.warp();
    const int column = task % kColumnTiles * kTileTangents + context_.lane() / kSegments;
    const int first = task / kColumnTiles * kOut;
    float y[kOut][4];
    MultiplyFactors<kTiles, kTiles, kOut, FactorsAre::kSplit>(
        context_, layer, first,
        [&](int j) {
          TangentFactors factors;
          DEEPPCR_UNROLL
          for (int h = 0; h < 2; ++h) {
            DEEPPCR_UNROLL
            for (int r = 0; r < 4; r += 2) {
              float pair[2];
              context_.LoadTwo(x + TilePlace(elements.At(2 * j + h, 0), column + 4 * r), pair);
              factors.at[h][r] = pair[0];
              factors.at[h][r + 1] = pair[1];
            }
          }
          return factors;
        },
        y);
    DEEPPCR_UNROLL
    for (int p = 0; p < kOut; ++p) {
      DEEPPCR_UNROLL
      for (int r = 0; r < 4; ++r) {
        const int k = elements.At(first + p, r % 2), c = column + r / 2 * 8;
        next[TilePlace(k, c)] = y[p][r];
        context_.StoreNumbered(to + PanelPlace(W, k, first_column + c), y[p][r], number_);
      }
    }
  }

  // ---- The block between the groups. Memory: the matrices of the inner groups, vectors to
  // multiply, and the vectors of all groups
  DEEPPCR_DEVICE float* Total(int group) const { return memory_ + (group - 1) * (W * W); }
  DEEPPCR_DEVICE float* TotalEntry(int i) const {
    return memory_ + shape_.inner_groups() * (W * W) + i % 2 * kRoom;
  }
  DEEPPCR_DEVICE float* TotalVectors(int group) const {
    return TotalEntry(0) + 2 * kRoom + group * kVectors;
  }

  template <int N>
  DEEPPCR_DEVICE void TakeThroughGroups(IterationKind kind) const {
    const int last = shape_.groups() - 1;
    const auto total = [&](int group) {
      return places_.UpTo(group * kGroupBlocks + kGroupBlocks - 1, W);
    };
    if (kind.forms_matrices())
      AwaitMatrices(
          last - 1, kForTotals, [&](int i) { return total(i + 1); },
          [&](int i, int at, float value) { Total(i + 1)[at] = value; });
    AwaitVectors<N>(last, kForTotalVectors, total, [&](int g, int at, float value) {
      (g == 0 ? TotalEntry(1)[PlaceOf<N>(at)] : TotalVectors(g)[at]) = value;
      if (g == 0) context_.StoreNumbered(places_.Entering(1, W) + at, value, number_);
    });
    context_.SyncBlock(kAfterTotals);
    const int row = RowOfLane();
    uint64_t* entering = places_.Entering(2, W) + row;
    Quarter own = QuarterOf(Total(1));
    for (int g = 1; g < last; ++g) {
      Multiply<N>(own, TotalEntry(g), TotalVectors(g) + row, [&](int v, float sum) {
        TotalEntry(g + 1)[ShapeOf<N>().Place(v, row)] = sum;
        context_.StoreNumbered(entering + v * W, sum, number_);
      });
      entering += kVectors;
      own = QuarterOf(Total(g + 1 < last ? g + 1 : g));
      context_.SyncBlock(kAfterTotal);
    }
  }

  Context& context_;
  const HelpedShape shape_;
  const HelpedPlaces places_;
  const int block_;
  float* const memory_;
  uint32_t number_ = 0;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_HELPED_SCAN_H_
