// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_LOOP_PASS_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_LOOP_PASS_KERNEL_H_

// A pass of the iterative loop after its propagation: for states that are too wide for
// newton_kernel.h, and for GPUs without clusters. A warp works on kPassRows rows of one interval or
// one node of the tree of one sample. The vectors of a level are a launch of their own where the
// level has so many matrices that it takes the whole device to read them; above such levels, a
// cluster of blocks per sample goes up and down the rest of the tree in one launch.
//
// Symbols as in kernels/backend/backend.h. Data that a launch leaves for the next launch lies in
// the workspace of a single block (IntervalTree(P, 1), block_memory.h). Products of full matrices
// are a GemmArgs; the products of all levels are formed before a vector goes through any of them.

#include <cstdint>

#include "kernels/cuda/loop/block_memory.h"
#include "kernels/cuda/loop/guess.h"
#include "kernels/cuda/loop/interval_norms.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/iteration/pass.h"

namespace deeppcr::cuda {

// Arguments that the launches of a space share. Pointers are to device memory.
struct PassView {
  IntervalTree tree;
  int32_t state_dim, width;  // D, W
  int64_t num_steps;
  int32_t shooting_interval;
  Members members;
  std::byte* workspace;  // [n, BlockMemory::Bytes]

  DEEPPCR_DEVICE BlockMemory MemoryOf(int64_t sample) const {
    return MemoryInWorkspace(workspace, tree, width, sample, 0);
  }
};

// ---- Before the first pass
struct StartArgs {
  PassView pass;  // samples 0, 1, ...
  GuessView guess;
  const float* initial_states;  // z_0 [n, W], zero beyond D
};

// Body of a launch of one block per sample and state, P + 1 states a sample: the guess, and zeros
// in the other columns.
template <class Context>
DEEPPCR_DEVICE void StartPasses(Context& context, const StartArgs& args) {
  const PassView& pass = args.pass;
  const int32_t states = pass.tree.num_intervals + 1;
  const int64_t sample = context.cluster() / states;
  const int32_t p = context.cluster() % states - 1;
  const SampleGuess guess(args.guess, args.initial_states, sample, pass.tree.num_intervals,
                          pass.state_dim, pass.width);
  const int64_t wanted = int64_t{p + 1} * pass.shooting_interval;
  const int64_t end = wanted < pass.num_steps ? wanted : pass.num_steps;
  float* const y = pass.MemoryOf(sample).State(p + 1);
  for (int i = context.thread(); i < pass.width; i += context.num_threads()) {
    y[i] = guess.At(p, end, i);
    for (int v = 1; v < kNumColumns; ++v) y[v * pass.width + i] = 0.0F;
  }
}

// ---- Matrices by a warp
inline constexpr int kPassRows = 8, kRowSharers = kWarpSize / kPassRows;

// Part of a row that a lane has in one round: all loads come before the first product, which waits
// for them.
struct RowPart {
  static constexpr int kFours = 4, kApart = kRowSharers * 4, kWidth = kFours * kApart;
  float fours[kFours][4] = {};

  // Loads from column k on; zeros beyond the width.
  template <class Context>
  DEEPPCR_DEVICE RowPart(Context& context, const float* row, int k, int width) {
    DEEPPCR_UNROLL
    for (int j = 0; j < kFours; ++j)
      if (k + j * kApart < width) context.LoadFour(row + k + j * kApart, fours[j]);
  }
  DEEPPCR_DEVICE float AddProduct(const RowPart& other, float sum) const {
    DEEPPCR_UNROLL
    for (int j = 0; j < kFours; ++j) {
      DEEPPCR_UNROLL
      for (int i = 0; i < 4; ++i) sum = fmaf(fours[j][i], other.fours[j][i], sum);
    }
    return sum;
  }
};

// Calls f(row, v, (A x_v)[row]) for kPassRows rows of A [W, W] from `first` on and vectors x
// [columns, W]: kRowSharers lanes share a row and all of these lanes call f.
template <class Context, class F>
DEEPPCR_DEVICE void ForProducts(Context& context, const float* matrix, const float* x, int width,
                                int columns, int first, const F& f) {
  const int row = first + context.lane() / kRowSharers;
  float sums[kNumColumns] = {};
  for (int k = context.lane() % kRowSharers * 4; k < width; k += RowPart::kWidth) {
    const RowPart of_row(context, matrix + int64_t{row} * width, k, width);
    DEEPPCR_UNROLL
    for (int v = 0; v < kNumColumns; ++v) {
      if (v >= columns) break;
      sums[v] = of_row.AddProduct(RowPart(context, x + v * width, k, width), sums[v]);
    }
  }
  DEEPPCR_UNROLL
  for (int v = 0; v < kNumColumns; ++v) {
    if (v >= columns) break;
    sums[v] += context.ShuffleXor(sums[v], 1);
    f(row, v, sums[v] + context.ShuffleXor(sums[v], 2));
  }
}

// Calls f(row, v, (A x_v)[row]) by one lane for all v of a row in their order, for the A of an
// interval or node. In memory a full A is [W, W], a diagonal [W], and the identity nothing.
template <class Context, class F>
DEEPPCR_DEVICE void ForTransition(Context& context, IterationKind kind, const float* matrix,
                                  const float* x, int width, int first, const F& f) {
  const int columns = kind.vectors();
  if (kind.linearization == Linearization::kFull)
    return ForProducts(context, matrix, x, width, columns, first,
                       [&](int row, int v, float product) {
                         if (context.lane() % kRowSharers == 0) f(row, v, product);
                       });
  const bool diagonal = kind.linearization == Linearization::kDiagonal;
  if (context.lane() >= kPassRows) return;
  const int row = first + context.lane();
  for (int v = 0; v < columns; ++v) {
    const float in = x[v * width + row];
    f(row, v, diagonal ? matrix[row] * in : in);
  }
}

// ---- The tree, and y_p <- F_p + A_p d_{p-1}
enum class Sweep : uint8_t { kUp, kDown };

struct LevelArgs {
  PassView pass;
  Sweep sweep;
  int32_t level;
  IterationKind kind;
};

struct UpdateArgs {
  PassView pass;
  IterationKind kind;
  IntervalNorms* norms;  // [n, P, W / kPassRows]
  float* final_states;   // y_P [n, W]
};

struct CollectArgs {
  PassView pass;
  double floor;
  const IntervalNorms* norms;  // norms of the update
  UpdateNorms* outcomes;       // [n], for the host
};

// Number of blocks of the cluster that takes the levels of a tree from `first_level` on.
struct TreeShape {
  int32_t num_blocks, first_level;
};

struct TreeArgs {
  TreeShape shape;
  UpdateArgs update;
  CollectArgs collect;
};

// Work of one warp, of several, on a member.
template <class Context>
class PassWarp {
 public:
  DEEPPCR_DEVICE PassWarp(Context& context, const PassView& pass, int32_t sample,
                          IterationKind kind, int32_t warp, int32_t num_warps)
      : context_(context),
        tree_(pass.tree),
        width_(pass.width),
        kind_(kind),
        sample_(sample),
        memory_(pass.MemoryOf(sample)),
        warp_(warp),
        num_warps_(num_warps) {}

  // Forms the right-hand sides of a level, and diagonals. The last node's are not needed.
  DEEPPCR_DEVICE void UpSweep(int level) const {
    const bool diagonals = kind_.linearization == Linearization::kDiagonal && kind_.refresh;
    ForRows(tree_.nodes(level) - 1, [&](int32_t node, int first) {
      const int32_t left = 2 * node, right = left + 1;
      const float* const matrix = MatrixOf(level - 1, right);
      Apply(matrix, ResidualOf(level - 1, left), ResidualOf(level - 1, right), first,
            ResidualOf(level, node));
      if (!diagonals || !tree_.needs_matrix(level, node) || context_.lane() >= kPassRows) return;
      const int i = first + context_.lane();
      MatrixOf(level, node)[i] = matrix[i] * MatrixOf(level - 1, left)[i];
    });
  }

  // Computes the vectors that enter the nodes of a level: a left node takes those of its parent, a
  // right node those that have gone through the left node.
  DEEPPCR_DEVICE void DownSweep(int level) const {
    ForRows(tree_.nodes(level), [&](int32_t node, int first) {
      float* const out = PrefixOf(level, node);
      if (node == 0) return Copy(nullptr, first, out);
      if (node == 1) return Copy(ResidualOf(level, 0), first, out);
      const float* const parent = PrefixOf(level + 1, node / 2);
      if (node % 2 == 0) return Copy(parent, first, out);
      Apply(MatrixOf(level, node - 1), parent, ResidualOf(level, node - 1), first, out);
    });
  }

  DEEPPCR_DEVICE void Update(const UpdateArgs& args) const {
    const int32_t units = width_ / kPassRows;
    ForRows(tree_.num_intervals, [&](int32_t p, int first) {
      const IntervalNorms norms = MergeOfWarp(context_, UpdateRows(args, p, first));
      const int64_t at = int64_t{sample_} * tree_.num_intervals + p;
      if (context_.lane() == 0) args.norms[at * units + first / kPassRows] = norms;
    });
  }

 private:
  // Calls f(node, first) for all rows of `nodes` nodes, or intervals.
  template <class F>
  DEEPPCR_DEVICE void ForRows(int32_t nodes, const F& f) const {
    // Nodes that fit into memory with their matrices give counts far below 2^32.
    const auto units = static_cast<uint32_t>(width_ / kPassRows), count = nodes * units;
    for (uint32_t u = warp_; u < count; u += num_warps_)
      f(static_cast<int32_t>(u / units), static_cast<int>(u % units) * kPassRows);
  }

  DEEPPCR_DEVICE IntervalNorms UpdateRows(const UpdateArgs& args, int32_t p, int first) const {
    const bool corrected = p > 0 && kind_.linearization != Linearization::kZero;
    const int32_t leaf = tree_.index_of(0, p);
    float* const y = memory_.State(p + 1);
    const float* const base = memory_.Propagated(p);
    IntervalUpdate update(kind_);
    const auto take = [&](int row, int v, float correction) {
      update.Take(v, base[v * width_ + row], correction, width_, y + row);
      if (v == 0 && p + 1 == tree_.num_intervals)
        args.final_states[int64_t{sample_} * width_ + row] = y[row];
    };
    if (corrected) {
      ForTransition(context_, kind_, memory_.Matrix(leaf), memory_.Prefix(leaf), width_, first,
                    take);
    } else if (context_.lane() < kPassRows) {
      for (int v = 0; v < kind_.vectors(); ++v) take(first + context_.lane(), v, 0.0F);
    }
    return update.norms();
  }

  DEEPPCR_DEVICE float* ResidualOf(int level, int32_t j) const {
    return memory_.Residual(tree_.index_of(level, j));
  }
  DEEPPCR_DEVICE float* PrefixOf(int level, int32_t j) const {
    return memory_.Prefix(tree_.index_of(level, j));
  }
  DEEPPCR_DEVICE float* MatrixOf(int level, int32_t j) const {
    return memory_.Matrix(tree_.index_of(level, j));
  }
  // out = A in + base.
  DEEPPCR_DEVICE void Apply(const float* matrix, const float* in, const float* base, int first,
                            float* out) const {
    ForTransition(context_, kind_, matrix, in, width_, first, [&](int row, int v, float product) {
      out[v * width_ + row] = base[v * width_ + row] + product;
    });
  }
  // Copies rows of the vectors in use; null: zeros.
  DEEPPCR_DEVICE void Copy(const float* from, int first, float* to) const {
    for (int at = context_.lane(); at < kind_.vectors() * kPassRows; at += kWarpSize) {
      const int i = at / kPassRows * width_ + first + at % kPassRows;
      to[i] = from == nullptr ? 0.0F : from[i];
    }
  }

  Context& context_;
  const IntervalTree tree_;
  const int width_;
  const IterationKind kind_;
  const int32_t sample_;
  const BlockMemory memory_;
  const int32_t warp_, num_warps_;
};

// The barrier calls of a pass.
enum PassSite : int {
  kAfterWarpNorms = 24,  // beyond those of block_recurrence.h
  kAfterReducedLevel,
  kAfterDistributedLevel,
  kAfterUpdatedStates,
  kNumPassSites,
};

// Blocks of a member that have a warp for all rows of `nodes` nodes, or intervals.
constexpr int32_t RowBlocks(int32_t nodes, int width, int warps) {
  return static_cast<int32_t>((int64_t{nodes} * (width / kPassRows) + warps - 1) / warps);
}
// Warp of a launch with RowBlocks blocks per member, one member after the other.
template <class Context>
DEEPPCR_DEVICE PassWarp<Context> WarpOfRows(Context& context, const PassView& pass, int32_t nodes,
                                            IterationKind kind) {
  const int warps = context.num_threads() / kWarpSize;
  const int32_t blocks = RowBlocks(nodes, pass.width, warps);
  return {context,
          pass,
          pass.members.at[context.cluster() / blocks],
          kind,
          context.cluster() % blocks * warps + context.warp(),
          blocks * warps};
}

// Bodies of launches of RowBlocks(nodes of the level, or intervals) blocks per member.
template <class Context>
DEEPPCR_DEVICE void SweepLevel(Context& context, const LevelArgs& args) {
  const auto warp = WarpOfRows(context, args.pass, args.pass.tree.nodes(args.level), args.kind);
  args.sweep == Sweep::kUp ? warp.UpSweep(args.level) : warp.DownSweep(args.level);
}
template <class Context>
DEEPPCR_DEVICE void UpdateStates(Context& context, const UpdateArgs& args) {
  WarpOfRows(context, args.pass, args.pass.tree.num_intervals, args.kind).Update(args);
}

// The norms of interval p.
DEEPPCR_DEVICE UpdateNorms CollectInterval(const CollectArgs& args, int64_t sample, int32_t p) {
  const int32_t units = args.pass.width / kPassRows;
  const IntervalNorms* const of_rows =
      args.norms + (sample * args.pass.tree.num_intervals + p) * units;
  IntervalNorms all = of_rows[0];
  for (int32_t i = 1; i < units; ++i) Merge(of_rows[i], &all);
  return NormsOf(all, args.floor);
}
// Body of a launch of one block per member, with an UpdateNorms of shared memory for each warp.
template <class Context>
DEEPPCR_DEVICE void CollectNorms(Context& context, const CollectArgs& args) {
  const int64_t sample = args.pass.members.at[context.cluster()];
  UpdateNorms norms;
  for (int32_t p = context.thread(); p < args.pass.tree.num_intervals; p += context.num_threads())
    Merge(CollectInterval(args, sample, p), &norms);
  norms = MergeOfWarp(context, norms);
  auto* const of_warps = reinterpret_cast<UpdateNorms*>(context.shared());
  if (context.lane() == 0) of_warps[context.warp()] = norms;
  context.SyncBlock(kAfterWarpNorms);
  if (context.thread() != 0) return;
  for (int w = 1; w < context.num_threads() / kWarpSize; ++w) Merge(of_warps[w], &norms);
  args.outcomes[sample] = norms;
}

// Body of a launch of one team per member, with shared memory as for CollectNorms: the up-sweep and
// the down-sweep over the levels of the tree from first_level on; where that is the first level,
// the update and its norms too.
template <class Team>
DEEPPCR_DEVICE void SolveTree(const Team& team, const TreeArgs& args) {
  auto& context = team.context();
  const PassView& pass = args.update.pass;
  const IterationKind kind = args.update.kind;
  const int32_t first = args.shape.first_level;
  const PassWarp warp(context, pass, pass.members.at[context.cluster()], kind, team.warp(),
                      team.num_warps());
  const int32_t levels = kind.linearization == Linearization::kZero ? first : pass.tree.levels;
  for (int32_t level = first + 1; level < levels; ++level) {
    warp.UpSweep(level);
    team.Sync(kAfterReducedLevel);
  }
  for (int32_t level = levels - 1; level >= first; --level) {
    warp.DownSweep(level);
    team.Sync(kAfterDistributedLevel);
  }
  if (first > 0) return;
  warp.Update(args.update);
  team.Sync(kAfterUpdatedStates);
  if (team.leads()) CollectNorms(context, args.collect);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_LOOP_PASS_KERNEL_H_
