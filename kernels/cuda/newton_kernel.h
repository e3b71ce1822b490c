// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_NEWTON_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_NEWTON_KERNEL_H_

// The whole Newton (or Picard) solve of a sample in one launch: a cluster of blocks holds the
// shooting intervals in its shared memory, or where they are too many in global memory, iterates,
// and decides on its own when to stop.
//
// Symbols as in kernels/backend/backend.h. A warp works on one interval or one node of the tree at
// a time. States and vectors lie in shared memory as [columns, W]; lanes hold them as stack_step.h
// says. Every thread of a cluster makes the same decisions from the same norms.

#include <math.h>

#include <cstdint>

#include "kernels/backend/iteration.h"
#include "kernels/cuda/block_memory.h"
#include "kernels/cuda/device_code.h"
#include "kernels/cuda/interval_tree.h"
#include "kernels/cuda/rounding_source.h"
#include "kernels/cuda/stack_step.h"
#include "kernels/solver/stopping.h"

namespace deeppcr::cuda {

// y_1..y_P before the first pass: `states` where they are not null, else the affine map of z_0
// where there is one, else z_0.
struct GuessView {
  const float* states;  // [n, P, W], zero beyond D
  const float* map;     // [count, D + 1, W], zero beyond D: AffineGuess::coefficients
  int64_t stride, count;
};

// What a launch does. Where propagation is another kernel's (diffusion), the parts of a solve are
// launches of their own, and what they have in common lies in slabs.
enum class NewtonPart : uint8_t {
  kWhole,  // the solve, of a dense stack
  kStart,  // the guess
  kPass,   // what follows a propagation: tree, update, decision; nothing once it has stopped
};

// Pointers are the device's.
struct NewtonArgs {
  NewtonPart part;
  StackView stack;  // of which, in parts, only the sizes are used
  StoppingPolicy policy;
  Progress start;  // what there is before the first pass, counts of the guess among it
  IntervalTree tree;
  int32_t shooting_interval;  // C
  GuessView guess;
  const float* initial_states;  // z_0 [n, W], zero beyond D
  float* final_states;          // y_P [n, W], zero beyond D
  float* trajectories;          // z_0..z_L [n, L + 1, D], or null
  Progress* outcomes;           // [n], for the host
  Progress* progress;           // [n], from part to part; null for the whole
  const int32_t* cancel;        // [n], or null: not 0 is the Termination to end with
  std::byte* slabs;             // [n, blocks, BlockMemory::Bytes], or null: shared memory
};

// The A_p of a pass.
enum class PassMatrices : uint8_t { kJacobians, kDiagonals, kIdentity, kZero };

// What a pass computes.
struct PassKind {
  PassMatrices matrices;
  bool refresh;  // Jacobians or diagonals are formed anew, and their products
  bool probes;   // vectors carry the probes

  DEEPPCR_DEVICE bool stored() const {
    return matrices == PassMatrices::kJacobians || matrices == PassMatrices::kDiagonals;
  }
};

DEEPPCR_DEVICE PassMatrices MatricesOf(NextPass next, Linearization linearization) {
  if (next == NextPass::kWarmSweep) return PassMatrices::kIdentity;
  if (next != NextPass::kIterate || linearization == Linearization::kFull)
    return PassMatrices::kJacobians;
  if (linearization == Linearization::kDiagonal) return PassMatrices::kDiagonals;
  return linearization == Linearization::kIdentity ? PassMatrices::kIdentity : PassMatrices::kZero;
}

DEEPPCR_DEVICE PassKind KindOf(const Progress& progress, Linearization linearization) {
  PassKind kind = {MatricesOf(progress.next, linearization), false, progress.probes};
  kind.refresh = kind.stored() && progress.next != NextPass::kCorrect;
  return kind;
}

// The barrier calls of the kernel.
enum NewtonSite : int {
  kAfterGuess,
  kAfterLocalPropagate,
  kAfterPropagate,
  kAfterLocalReduce,
  kAfterReduce,
  kAfterDistribute,
  kAfterLocalDistribute,
  kAfterUpdate,
  kAfterHalo,
  kBeforeExit,
  kNumNewtonSites,
};

// kInSlab: what a block holds lies in its slab of global memory instead of its shared memory.
template <int W, bool kInSlab, class Context>
class NewtonSolve {
 public:
  DEEPPCR_DEVICE NewtonSolve(Context& context, const NewtonArgs& args)
      : context_(context),
        args_(args),
        tree_(args.tree),
        memory_{args.tree, MemoryOfBlock(context, args)},
        warps_(context.num_threads() / kWarpSize),
        first_(context.block() * args.tree.per_block),
        count_(Clamp(args.tree.num_intervals - first_)),
        row_(context.lane() % W) {}

  DEEPPCR_DEVICE void Run() {
    Progress progress = args_.start;
    PlaceGuess();
    while (progress.next != NextPass::kStop) {
      const PassKind kind = KindOf(progress, args_.policy.linearization);
      stages_ = 0;
      Propagate(kind);
      SolveAndUpdate(kind, &progress);
    }
    WriteAnswer(progress);
    context_.SyncCluster(kBeforeExit);  // nobody leaves while another may read his shared memory
  }

  DEEPPCR_DEVICE void Start() {
    PlaceGuess();
    Keep(args_.start);
  }

  DEEPPCR_DEVICE void Pass() {
    Progress progress = args_.progress[context_.cluster()];
    if (progress.next == NextPass::kStop) return;
    stages_ = EndOf(0);
    SolveAndUpdate(KindOf(progress, args_.policy.linearization), &progress);
    Keep(progress);
    if (progress.next == NextPass::kStop) WriteFinalState();
  }

 private:
  static constexpr int kRows = LanePart<W>::kColumns;  // of a matrix column that a lane holds
  static constexpr int kRow = BlockMemory<W>::kRow;

  static DEEPPCR_DEVICE std::byte* MemoryOfBlock(Context& context, const NewtonArgs& args) {
    if constexpr (!kInSlab) return context.shared();
    const int64_t block = int64_t{context.cluster()} * context.num_blocks() + context.block();
    return args.slabs + block * static_cast<int64_t>(BlockMemory<W>::Bytes(args.tree));
  }
  // Where `local`, of this block's memory, lies in that of another one.
  template <class T>
  DEEPPCR_DEVICE T* Remote(T* local, int block) const {
    if constexpr (!kInSlab) return context_.Remote(local, block);
    const auto stride = static_cast<int64_t>(BlockMemory<W>::Bytes(args_.tree));
    return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(local) +
                                (block - context_.block()) * stride);
  }

  DEEPPCR_DEVICE void SolveAndUpdate(PassKind kind, Progress* progress) {
    if (kind.matrices != PassMatrices::kZero) {
      Reduce(kind);
      Distribute(kind);
    }
    const WarpNorms norms = Update(kind);
    AdvanceProgress(args_.policy, {norms.update, norms.rounding, norms.combined, norms.finite != 0},
                    stages_, ColumnsOf(kind), progress);
    if (norms.told != 0 && progress->next != NextPass::kStop)
      Stop(progress, static_cast<Termination>(norms.told));
  }
  // For the next part, and for the host.
  DEEPPCR_DEVICE void Keep(const Progress& progress) const {
    if (context_.block() != 0 || context_.thread() != 0) return;
    args_.progress[context_.cluster()] = progress;
    args_.outcomes[context_.cluster()] = progress;
  }

  DEEPPCR_DEVICE int32_t Clamp(int32_t count) const {
    return count < 0 ? 0 : count > tree_.per_block ? tree_.per_block : count;
  }
  DEEPPCR_DEVICE int Columns(PassKind kind) const { return kind.probes ? kNumColumns : 1; }
  DEEPPCR_DEVICE int64_t BeginOf(int64_t p) const { return p * args_.shooting_interval; }
  DEEPPCR_DEVICE int64_t EndOf(int64_t p) const {
    const int64_t end = (p + 1) * args_.shooting_interval;
    return end < args_.stack.num_steps ? end : args_.stack.num_steps;
  }
  // Vectors that a pass pushes through all steps. A diagonal takes none of its own.
  DEEPPCR_DEVICE int64_t ColumnsOf(PassKind kind) const {
    const bool dense = kind.refresh && kind.matrices == PassMatrices::kJacobians;
    return Columns(kind) + (dense ? args_.stack.state_dim : 0);
  }

  // Every interval of the block, a warp each.
  template <class F>
  DEEPPCR_DEVICE void ForIntervals(const F& f) {
    for (int32_t i = context_.warp(); i < count_; i += warps_) f(i);
  }
  // Every node of the level that this block holds, a warp each.
  template <class F>
  DEEPPCR_DEVICE void ForNodes(int level, const F& f) {
    const int32_t in_block = level <= tree_.local_levels ? tree_.per_block >> level : 1;
    const int32_t nodes = tree_.nodes(level);
    if (level > tree_.local_levels && context_.block() % (1 << (level - tree_.local_levels)) != 0)
      return;
    const int32_t first = static_cast<int32_t>(int64_t{first_} >> level);
    for (int32_t k = context_.warp(); k < in_block && first + k < nodes; k += warps_) f(first + k);
  }

  // ---- The guess
  DEEPPCR_DEVICE const float* InitialState() const {
    return args_.initial_states + int64_t{context_.cluster()} * W;
  }
  // y at the end of interval p; p = -1 is z_0.
  DEEPPCR_DEVICE float GuessOf(int32_t p) const {
    if (p < 0) return InitialState()[row_];
    const GuessView& guess = args_.guess;
    const int64_t sample = context_.cluster();
    if (guess.states != nullptr) return guess.states[(sample * tree_.num_intervals + p) * W + row_];
    return guess.map != nullptr ? EvaluateMap(EndOf(p)) : InitialState()[row_];
  }
  // The affine map at the first fitted step that is not before `step`.
  DEEPPCR_DEVICE float EvaluateMap(int64_t step) const {
    const GuessView& guess = args_.guess;
    const int64_t after = (step + guess.stride - 1) / guess.stride - 1;
    const int64_t at = after < guess.count ? after : guess.count - 1;
    const float* map = guess.map + at * (args_.stack.state_dim + 1) * W;
    float y = map[row_];
    for (int32_t k = 0; k < args_.stack.state_dim; ++k)
      y = fmaf(map[(k + 1) * W + row_], InitialState()[k], y);
    return y;
  }
  DEEPPCR_DEVICE void PlaceGuess() {
    for (int32_t i = context_.warp(); count_ > 0 && i <= count_; i += warps_) {
      float* y = memory_.State(i);
      if (context_.lane() >= W) continue;
      y[row_] = GuessOf(first_ + i - 1);
      for (int v = 1; v < kNumColumns; ++v) y[v * W + row_] = 0.0F;
    }
    context_.SyncBlock(kAfterGuess);
  }

  // ---- (1) F_p, A_p and the probes
  DEEPPCR_DEVICE void Propagate(PassKind kind) {
    ForIntervals([&](int32_t i) { PropagateInterval(i, kind); });
    stages_ += EndOf(0);
    // Where the first nodes of the tree span blocks, their children are those of other blocks; and
    // where there is no tree, nothing else keeps a block from running ahead of those that still
    // read what it had for the last pass.
    tree_.local_levels > 0 && kind.matrices != PassMatrices::kZero
        ? context_.SyncBlock(kAfterLocalPropagate)
        : context_.SyncCluster(kAfterPropagate);
  }

  DEEPPCR_DEVICE void PropagateInterval(int32_t i, PassKind kind) {
    const int64_t p = first_ + i;
    const float* entry = memory_.State(i);
    const bool matrix = kind.refresh && p > 0;  // d_0 = 0: the first one is never used
    float z = entry[row_];
    float probes[kNumProbes];
    float column[kRows] = {};
    for (int v = 0; v < kNumProbes; ++v) probes[v] = kind.probes ? entry[(1 + v) * W + row_] : 0.0F;
    for (int64_t l = BeginOf(p); l < EndOf(p); ++l) {
      const LayerPart<W> layer = LoadLayer<W>(context_, args_.stack, l);
      const float a = Multiply<W>(context_, layer, z) + layer.bias;
      const float next = FinishStep(args_.stack, row_, a, z);
      if (matrix || kind.probes) {
        const float slope = SlopeAt(a);
        if (matrix) l == BeginOf(p) ? FirstTangents(l, slope, column) : Tangents(l, slope, column);
        if (kind.probes) Probes(layer, l, slope, z, next, probes);
      }
      z = next;
    }
    StorePropagated(i, kind, z, probes);
    if (!matrix) return;
    if (kind.matrices == PassMatrices::kDiagonals) KeepDiagonal(column);
    StoreColumn(memory_.Matrix(tree_.index_of(0, static_cast<int32_t>(p))), column);
  }
  // C = 1 then: the column is one of the step's Jacobian.
  DEEPPCR_DEVICE void KeepDiagonal(float (&column)[kRows]) const {
    DEEPPCR_UNROLL
    for (int r = 0; r < kRows; ++r) column[r] = FirstRow() + r == row_ ? column[r] : 0.0F;
  }

  DEEPPCR_DEVICE float SlopeAt(float pre_activation) const {
    const float slope = Differentiate(args_.stack.activation, pre_activation);
    return args_.stack.residual ? args_.stack.scale * slope : slope;
  }

  // F_p and the residual F_p - y_p.
  DEEPPCR_DEVICE void StorePropagated(int32_t i, PassKind kind, float z,
                                      const float (&probes)[kNumProbes]) {
    if (context_.lane() >= W) return;
    float* propagated = memory_.Propagated(i);
    float* residual = memory_.Residual(tree_.index_of(0, first_ + i));
    const float* y = memory_.State(i + 1);
    DEEPPCR_UNROLL
    for (int v = 0; v < kNumColumns; ++v) {
      if (v >= Columns(kind)) break;
      const float value = v == 0 ? z : probes[v == 0 ? 0 : v - 1];
      propagated[v * W + row_] = value;
      residual[v * W + row_] = value - y[v * W + row_];
    }
  }

  // A lane's part of column lane % W of a matrix: rows first_row .. first_row + kRows - 1.
  DEEPPCR_DEVICE int FirstRow() const { return context_.lane() / W * kRows; }
  DEEPPCR_DEVICE void StoreColumn(float* matrix, const float (&column)[kRows]) const {
    DEEPPCR_UNROLL
    for (int r = 0; r < kRows; ++r) matrix[(FirstRow() + r) * W + row_] = column[r];
  }
  // The whole column, from the lanes that share it.
  DEEPPCR_DEVICE void GatherColumn(const float (&column)[kRows], float (&whole)[W]) {
    DEEPPCR_UNROLL
    for (int k = 0; k < W; ++k)
      whole[k] = context_.Shuffle(column[k % kRows], k / kRows * W + row_);
  }
  // Row i of `left` (global or shared memory) times a column.
  DEEPPCR_DEVICE float RowTimes(const float (&left)[W], const float (&whole)[W]) const {
    float chains[2] = {};
    DEEPPCR_UNROLL
    for (int k = 0; k < W; ++k) chains[k % 2] = fmaf(left[k], whole[k], chains[k % 2]);
    return chains[0] + chains[1];
  }

  // The Jacobian of step l.
  DEEPPCR_DEVICE void FirstTangents(int64_t l, float slope, float (&column)[kRows]) {
    const float* weights = args_.stack.weights + l * W * W;
    DEEPPCR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const int i = FirstRow() + r;
      const float s = context_.Shuffle(slope, i);
      const float identity = args_.stack.residual && i == row_ ? 1.0F : 0.0F;
      column[r] = fmaf(s, weights[i * W + row_], identity);
    }
  }
  // T <- J T.
  DEEPPCR_DEVICE void Tangents(int64_t l, float slope, float (&column)[kRows]) {
    float whole[W], weights[W];
    GatherColumn(column, whole);
    DEEPPCR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const int i = FirstRow() + r;
      context_.LoadConstants(args_.stack.weights + (l * W + i) * W, weights);
      const float product = RowTimes(weights, whole);
      const float s = context_.Shuffle(slope, i);
      column[r] = args_.stack.residual ? fmaf(s, product, column[r]) : s * product;
    }
  }

  // E <- J E + rounding of the step: of the new state, and of the terms of its dot products, which
  // cancel in the state but not in the rounding.
  DEEPPCR_DEVICE void Probes(const LayerPart<W>& layer, int64_t l, float slope, float before,
                             float after, float (&probes)[kNumProbes]) {
    LayerPart<W> squares;
    DEEPPCR_UNROLL
    for (int j = 0; j < LanePart<W>::kColumns; ++j)
      squares.weights[j] = layer.weights[j] * layer.weights[j];
    const float terms = Multiply<W>(context_, squares, before * before);
    const float size = sqrtf(fmaf(after, after, slope * slope * terms));
    DEEPPCR_UNROLL
    for (int v = 0; v < kNumProbes; ++v) {
      const float product = Multiply<W>(context_, layer, probes[v]);
      const float carried =
          args_.stack.residual ? fmaf(slope, product, probes[v]) : slope * product;
      probes[v] = carried + RoundingSource(size, v, row_, l);
    }
  }

  // A lane's part of a matrix in shared memory, for Multiply; null: nothing.
  DEEPPCR_DEVICE LayerPart<W> LoadMatrix(const float* matrix) const {
    LayerPart<W> part = {};
    if (matrix == nullptr) return part;
    const LanePart<W> at(context_.lane());
    DEEPPCR_UNROLL
    for (int j = 0; j < LanePart<W>::kColumns; ++j)
      part.weights[j] = matrix[at.row * W + at.first_column + j];
    return part;
  }

  // ---- (2) d_p = A_p d_{p-1} + r_p over the tree
  // out = A in + base for the vectors in use; A null: the identity; in may be another block's.
  DEEPPCR_DEVICE void Apply(PassKind kind, const float* matrix, const float* in, const float* base,
                            float* out) {
    const int lane = context_.lane();
    const LayerPart<W> part = LoadMatrix(matrix);
    for (int v = 0; v < Columns(kind); ++v) {
      const float x = in[v * W + row_];
      const float product = matrix == nullptr ? x : Multiply<W>(context_, part, x);
      if (lane < W) out[v * W + row_] = base[v * W + row_] + product;
    }
  }
  // A node's memory, whichever block holds it.
  DEEPPCR_DEVICE float* ResidualOf(int level, int32_t j) const {
    return Remote(memory_.Residual(tree_.index_of(level, j)), tree_.block_of(level, j));
  }
  DEEPPCR_DEVICE float* EnteringOf(int level, int32_t j) const {
    return Remote(memory_.Entering(tree_.index_of(level, j)), tree_.block_of(level, j));
  }
  DEEPPCR_DEVICE float* MatrixOf(int level, int32_t j) const {
    return Remote(memory_.Matrix(tree_.index_of(level, j)), tree_.block_of(level, j));
  }

  DEEPPCR_DEVICE void Reduce(PassKind kind) {
    for (int level = 1; level < tree_.levels; ++level) {
      ForNodes(level, [&](int32_t j) {
        if (j + 1 < tree_.nodes(level)) FormNode(level, j, kind);
      });
      ++stages_;
      level < tree_.local_levels ? context_.SyncBlock(kAfterLocalReduce)
                                 : context_.SyncCluster(kAfterReduce);
    }
  }
  DEEPPCR_DEVICE void FormNode(int level, int32_t j, PassKind kind) {
    const int32_t left = 2 * j, right = left + 1;
    const float* right_matrix = kind.stored() ? MatrixOf(level - 1, right) : nullptr;
    Apply(kind, right_matrix, ResidualOf(level - 1, left), ResidualOf(level - 1, right),
          memory_.Residual(tree_.index_of(level, j)));
    if (!kind.refresh || !tree_.needs_matrix(level, j)) return;
    MultiplyMatrices(right_matrix, MatrixOf(level - 1, left),
                     memory_.Matrix(tree_.index_of(level, j)));
  }
  // product = right left.
  DEEPPCR_DEVICE void MultiplyMatrices(const float* right, const float* left, float* product) {
    float whole[W], row[W], column[kRows];
    DEEPPCR_UNROLL
    for (int k = 0; k < W; ++k) whole[k] = left[k * W + row_];
    DEEPPCR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const float* from = right + (FirstRow() + r) * W;
      DEEPPCR_UNROLL
      for (int k = 0; k < W; ++k) row[k] = from[k];
      column[r] = RowTimes(row, whole);
    }
    StoreColumn(product, column);
  }

  DEEPPCR_DEVICE void Distribute(PassKind kind) {
    for (int level = tree_.levels - 1; level >= 0; --level) {
      ForNodes(level, [&](int32_t j) { EnterNode(level, j, kind); });
      ++stages_;
      level > tree_.local_levels ? context_.SyncCluster(kAfterDistribute)
                                 : context_.SyncBlock(kAfterLocalDistribute);
    }
  }
  // What enters a left node entered its parent; what enters a right one has gone through the left.
  DEEPPCR_DEVICE void EnterNode(int level, int32_t j, PassKind kind) {
    float* out = memory_.Entering(tree_.index_of(level, j));
    if (j == 0) return Copy(kind, nullptr, out);
    if (j == 1) return Copy(kind, ResidualOf(level, 0), out);
    const float* parent = EnteringOf(level + 1, j / 2);
    if (j % 2 == 0) return Copy(kind, parent, out);
    Apply(kind, kind.stored() ? MatrixOf(level, j - 1) : nullptr, parent, ResidualOf(level, j - 1),
          out);
  }
  // Null: zeros.
  DEEPPCR_DEVICE void Copy(PassKind kind, const float* from, float* to) const {
    if (context_.lane() >= W) return;
    for (int v = 0; v < Columns(kind); ++v)
      to[v * W + row_] = from == nullptr ? 0.0F : from[v * W + row_];
  }

  // ---- (3) y_p <- F_p + A_p d_{p-1}
  DEEPPCR_DEVICE WarpNorms Update(PassKind kind) {
    WarpNorms norms = {0, 0, 0, 1, 0};
    ForIntervals([&](int32_t i) { UpdateInterval(i, kind, &norms); });
    ++stages_;
    if (args_.cancel != nullptr && context_.block() == 0 && context_.thread() == 0)
      norms.told = context_.LoadVolatile(args_.cancel + context_.cluster());
    if (context_.lane() == 0) memory_.Norms()[context_.warp()] = norms;
    context_.SyncCluster(kAfterUpdate);
    TakeHalo(kind);
    norms = NormsOfCluster();
    context_.SyncWarp(kAfterHalo);  // the warp that has taken it works on the first interval
    return norms;
  }

  DEEPPCR_DEVICE void UpdateInterval(int32_t i, PassKind kind, WarpNorms* norms) {
    const int32_t p = first_ + i, leaf = tree_.index_of(0, p);
    const float* matrix = kind.stored() && p > 0 ? memory_.Matrix(leaf) : nullptr;
    const bool corrected = p > 0 && kind.matrices != PassMatrices::kZero;
    float* y = memory_.State(i + 1);
    float state = 0, update = 0, probe = 0;
    bool finite = true, probes_finite = true;
    const LayerPart<W> part = LoadMatrix(matrix);
    for (int v = 0; v < Columns(kind); ++v) {
      const float base = memory_.Propagated(i)[v * W + row_];
      const float entering = corrected ? memory_.Entering(leaf)[v * W + row_] : 0.0F;
      const float correction = matrix == nullptr ? entering : Multiply<W>(context_, part, entering);
      // F + 0 would turn -0 into +0: where nothing is added the bits stay.
      const float next = !corrected || correction == 0.0F ? base : base + correction;
      if (v == 0) {
        state = fabsf(next);
        update = context_.lane() < W ? fabsf(next - y[row_]) : 0.0F;
        finite = isfinite(next);
      } else {
        probe = fmaxf(probe, fabsf(next));
        probes_finite = probes_finite && isfinite(next);
      }
      if (context_.lane() < W) y[v * W + row_] = next;
    }
    Collect(LargestOfWarp(state), LargestOfWarp(update), LargestOfWarp(probe), AllOfWarp(finite),
            AllOfWarp(probes_finite), norms);
  }

  DEEPPCR_DEVICE float LargestOfWarp(float x) {
    DEEPPCR_UNROLL
    for (int mask = 1; mask < kWarpSize; mask *= 2) x = fmaxf(x, context_.ShuffleXor(x, mask));
    return x;
  }
  DEEPPCR_DEVICE bool AllOfWarp(bool x) { return LargestOfWarp(x ? 0.0F : 1.0F) == 0.0F; }

  static DEEPPCR_DEVICE double Larger(double a, double b) { return b > a ? b : a; }
  // A maximum may lose a NaN; a lost one would pass for a probe that has picked up nothing.
  DEEPPCR_DEVICE void Collect(double state, double d, double probe, bool finite, bool probes_finite,
                              WarpNorms* norms) const {
    const double scale = state + args_.policy.floor();
    const double e = probes_finite ? probe : static_cast<double>(INFINITY);
    norms->finite &= finite ? 1 : 0;
    if (d == 0.0 && e == 0.0) return;
    norms->update = Larger(norms->update, d / scale);
    norms->rounding = Larger(norms->rounding, e / scale);
    norms->combined = Larger(norms->combined, (2 * d + e) / scale);
  }

  // The last state of the block before.
  DEEPPCR_DEVICE void TakeHalo(PassKind kind) {
    if (context_.block() == 0 || context_.warp() != 0 || count_ == 0) return;
    Copy(kind, Remote(memory_.State(tree_.per_block), context_.block() - 1), memory_.State(0));
  }

  // A lane reads every 32nd; maxima do not depend on the order.
  DEEPPCR_DEVICE WarpNorms NormsOfCluster() {
    WarpNorms all = {0, 0, 0, 1, 0};
    for (int k = context_.lane(); k < tree_.num_blocks * warps_; k += kWarpSize) {
      const WarpNorms norms = Remote(memory_.Norms(), k / warps_)[k % warps_];
      all.update = Larger(all.update, norms.update);
      all.rounding = Larger(all.rounding, norms.rounding);
      all.combined = Larger(all.combined, norms.combined);
      all.finite &= norms.finite;
      if (k == 0) all.told = norms.told;
    }
    DEEPPCR_UNROLL
    for (int mask = 1; mask < kWarpSize; mask *= 2) {
      all.update = Larger(all.update, context_.ShuffleXor(all.update, mask));
      all.rounding = Larger(all.rounding, context_.ShuffleXor(all.rounding, mask));
      all.combined = Larger(all.combined, context_.ShuffleXor(all.combined, mask));
      all.finite &= context_.ShuffleXor(all.finite, mask);
    }
    all.told = context_.Shuffle(all.told, 0);
    return all;
  }

  // ---- The answer
  DEEPPCR_DEVICE void WriteAnswer(const Progress& progress) {
    const int64_t sample = context_.cluster();
    if (context_.block() == 0 && context_.thread() == 0) args_.outcomes[sample] = progress;
    WriteFinalState();
    if (args_.trajectories != nullptr) ForIntervals([&](int32_t i) { WriteTrajectory(i); });
  }
  DEEPPCR_DEVICE void WriteFinalState() {
    const int32_t last = tree_.num_intervals - 1 - first_;
    if (last < 0 || last >= count_ || context_.warp() != last % warps_ || context_.lane() >= W)
      return;
    args_.final_states[int64_t{context_.cluster()} * W + row_] = memory_.State(last + 1)[row_];
  }
  // The states within an interval, propagated from its entry, and the one at its end.
  DEEPPCR_DEVICE void WriteTrajectory(int32_t i) {
    const int64_t p = first_ + i, dim = args_.stack.state_dim;
    float* to = args_.trajectories + context_.cluster() * (args_.stack.num_steps + 1) * dim;
    float z = memory_.State(i)[row_];
    const bool writes = context_.lane() < dim;
    if (p == 0 && writes) to[row_] = z;
    for (int64_t l = BeginOf(p); l < EndOf(p); ++l) {
      const bool last = l + 1 == EndOf(p);
      z = last ? memory_.State(i + 1)[row_]
               : Step<W>(context_, args_.stack, LoadLayer<W>(context_, args_.stack, l), z);
      if (writes) to[(l + 1) * dim + row_] = z;
    }
  }

  Context& context_;
  const NewtonArgs& args_;
  const IntervalTree tree_;
  const BlockMemory<W> memory_;
  const int warps_;
  const int32_t first_;  // interval of the block
  const int32_t count_;  // intervals of the block, at the end of the cluster fewer or none
  const int row_;
  int64_t stages_ = 0;  // of the pass, counted as its loops run
};

// Body of a launch of one cluster per sample, with BlockMemory<W>::Bytes of shared memory a block
// or so much of a slab.
template <int W, bool kInSlab, class Context>
DEEPPCR_DEVICE void SolveNewton(Context& context, const NewtonArgs& args) {
  NewtonSolve<W, kInSlab, Context>(context, args).Run();
}

// Body of a launch of one cluster per sample for a part of a solve, in slabs.
template <int W, class Context>
DEEPPCR_DEVICE void SolveNewtonInParts(Context& context, const NewtonArgs& args) {
  NewtonSolve<W, true, Context> solve(context, args);
  args.part == NewtonPart::kStart ? solve.Start() : solve.Pass();
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_NEWTON_KERNEL_H_
