// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_BACKWARD_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_BACKWARD_KERNEL_H_

// The way back of a recurrence whose step is a program, through states that are known:
//
//   g_{l-1} = J_l^T g_l,   J_l = dz_l/dz at z_{l-1}
//
// A block takes up to S cotangents through a shooting interval: each step forwards, with all its
// values kept, and back. The parallel way forms the matrices A_p of all intervals by the cotangents
// of the unit vectors, takes every g_L through these, and then all intervals at once. Symbols as in
// kernels/backend/backward_space.h.

#include <cstdint>

#include "kernels/cuda/math/team.h"
#include "kernels/cuda/program/back_step.h"
#include "kernels/cuda/program/kernel.h"
#include "kernels/cuda/program/step.h"
#include "kernels/cuda/program/view.h"
#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// The tree of a scan over P intervals, whose leaf q is interval P - 1 - q: what comes first on the
// way back comes first. Node j of a level has nodes 2 j and 2 j + 1 of the level below, and the
// product of their matrices, in this order, as cotangents are rows. Where a level has no more nodes
// than kMostChained, every cotangent goes through these one after another. The shape depends on P
// alone.
inline constexpr int kMostChained = 16;
struct RetreatTree {
  int32_t num_intervals;

  constexpr int32_t nodes(int level) const { return ((num_intervals - 1) >> level) + 1; }
  constexpr int chain_level() const {
    int level = 0;
    while (nodes(level) > kMostChained) ++level;
    return level;
  }
  // Place of the matrix of node j of a level, level by level from that of the leaves on, and the
  // number of places. It grows with P.
  constexpr int64_t place(int level, int32_t j) const {
    int64_t at = j;
    for (int below = 0; below < level; ++below) at += nodes(below);
    return at;
  }
  constexpr int64_t places() const { return place(chain_level() + 1, 0); }
};

// Cotangents that a block takes together at most, where there are several.
inline constexpr int kBackColumns = 16;

// The barrier calls of these kernels.
enum ProgramBackwardSite : int {
  kAfterBackState = 80,
  kAfterChainVector,
  kAfterConditionValues,
  kNumProgramBackwardSites,
};

// What the way back of a model is. `process` has what n samples have for themselves.
struct ProgramBackView {
  ProgramView process;
  // Of the mixed section and the condition's only where the way back takes them, else empty.
  ProgramTape state, mixed, condition;
};

// Memory of a block for frames: its shared memory, or where that is too small its part of a
// workspace, with the sums of the mixed rows behind it.
struct BackMemory {
  std::byte* workspace;  // [blocks, bytes], or null: nothing is needed there
  int64_t bytes;         // of a block
  bool frames_in_workspace;

  template <class Context>
  DEEPPCR_DEVICE float* FrameOf(Context& context) const {
    return frames_in_workspace ? WorkspaceOf(context.cluster()) : SharedFloats(context);
  }
  // The memory behind `frame_floats` of frames.
  DEEPPCR_DEVICE float* SumsOf(int block, int64_t frame_floats) const {
    return WorkspaceOf(block) + (frames_in_workspace ? frame_floats : 0);
  }
  DEEPPCR_DEVICE float* WorkspaceOf(int block) const {
    return reinterpret_cast<float*>(workspace + block * bytes);
  }
};

// ---- Intervals
// Pointers are to device memory; results that are null are not wanted.
struct ProgramRetreatArgs {
  ProgramBackView model;
  BackMemory memory;
  int32_t num_samples;        // n
  int32_t num_columns;        // m; D where matrices are formed
  int64_t shooting_interval;  // C
  int32_t first_interval;     // the intervals before it are left out
  // Steps of every interval that launches before have gone back through, from its end on, and those
  // that this one takes.
  int64_t done, count;
  const float* states;  // z_0..z_L [n, L + 1, D]
  // Cotangents at the ends of intervals [n, P, m, W]; null: unit vectors.
  const float* entering;
  // Those that the launch leaves, which may be `entering`; where `done` is not 0, those that the
  // last one has left. Of unit vectors they are matrices [n, places of the RetreatTree, D, W].
  float* leaving;
  float* step_noise;        // [n, m, L, sample_dim]
  float* state_cotangents;  // g_1..g_L [n, L, D], with m = 1
  float* deltas;            // of the result of the step's only layer, of D elements; the same
  // Sums over the steps of an interval [n, P, m, floats of the condition's row].
  float* condition_sums;
  int64_t* num_dependent;  // steps made one after another

  constexpr int32_t num_intervals() const {
    return static_cast<int32_t>((model.process.num_steps - 1) / shooting_interval) + 1;
  }
  constexpr int32_t parts(int columns) const { return (num_columns - 1) / columns + 1; }
  constexpr int64_t jobs(int columns) const {
    return int64_t{num_samples} * (num_intervals() - first_interval) * parts(columns);
  }
};

constexpr int64_t RetreatFrameFloats(const ProgramBackView& model, bool condition, int columns) {
  return TapeFloats(model.state, columns) + (condition ? TapeFloats(model.mixed, columns) : 0);
}

// An interval's way back for some of the columns.
template <int S, class Context>
class IntervalRetreat {
 public:
  DEEPPCR_DEVICE IntervalRetreat(Context& context, const ProgramRetreatArgs& args, int64_t job)
      : context_(context),
        args_(args),
        process_(args.model.process),
        part_(static_cast<int32_t>(job % args.parts(S))),
        interval_(args.first_interval +
                  static_cast<int32_t>(job / args.parts(S) %
                                       (args.num_intervals() - args.first_interval))),
        sample_(job / args.parts(S) / (args.num_intervals() - args.first_interval)),
        first_(part_ * S),
        count_(args.num_columns - first_ < S ? args.num_columns - first_ : S),
        memory_(args.memory.FrameOf(context)),
        state_(context, args.model.state, Frame{memory_, TapeRows(S)}, process_.clip_range),
        mixed_(context, args.model.mixed,
               Frame{memory_ + TapeFloats(args.model.state, S), TapeRows(S)}, process_.clip_range),
        leads_(job == 0) {}

  DEEPPCR_DEVICE void Run() {
    PlaceEntering();
    BeginSums();
    const int64_t begin = interval_ * args_.shooting_interval;
    const int64_t most = begin + args_.shooting_interval;
    const int64_t end = (most < process_.num_steps ? most : process_.num_steps) - args_.done;
    const int64_t last = end - args_.count > begin ? end - args_.count : begin;
    const ProgramSteps steps = process_.StepsOf(sample_);
    int64_t made = 0;
    for (int64_t l = end; l > last; --l, ++made) GoBack(steps.At(l - 1));
    Leave();
    if (leads_ && context_.thread() == 0) *args_.num_dependent = made;
  }

 private:
  DEEPPCR_DEVICE bool WantsCondition() const { return args_.condition_sums != nullptr; }
  DEEPPCR_DEVICE bool HasMixed() const {
    return WantsCondition() && args_.model.mixed.section.count > 0;
  }
  // Cotangent `first_` of the interval in an array [n, P, m, floats].
  DEEPPCR_DEVICE int64_t Place(int64_t floats) const {
    return ((sample_ * args_.num_intervals() + interval_) * args_.num_columns + first_) * floats;
  }
  // Row `first_` of the interval's matrix.
  DEEPPCR_DEVICE int64_t PlaceOfMatrix() const {
    const RetreatTree tree = {args_.num_intervals()};
    const int64_t matrix =
        sample_ * tree.places() + tree.place(0, tree.num_intervals - 1 - interval_);
    return (matrix * args_.num_columns + first_) * process_.width;
  }

  // The state's cotangents are the output's of the step before.
  DEEPPCR_DEVICE void PlaceEntering() const {
    const bool unit = args_.entering == nullptr && args_.done == 0;
    const float* const from = args_.done == 0 ? args_.entering + Place(process_.width) : Leaving();
    state_.Place(args_.model.state.state, count_, [&](int r, int i) {
      if (unit) return i == first_ + r - 1 ? 1.0F : 0.0F;
      return from[(r - 1) * process_.width + i];
    });
  }
  DEEPPCR_DEVICE float* Leaving() const {
    return args_.leaving + (args_.entering == nullptr ? PlaceOfMatrix() : Place(process_.width));
  }
  // The next job's cotangents may be placed at once: a thread reads here what it will write there.
  DEEPPCR_DEVICE void Leave() const {
    const FrameVectors g = state_.At(args_.model.state.state);
    float* const to = Leaving();
    state_.ForElements(process_.width, [&](int i) {
      for (int r = 1; r <= count_; ++r)
        to[(r - 1) * process_.width + i] = i < process_.state_dim ? g(r, i) : 0.0F;
    });
  }

  DEEPPCR_DEVICE void GoBack(const ProgramStepView& step) const {
    const ProgramTape& tape = args_.model.state;
    RunForwards(step);
    const FrameVectors g = state_.At(tape.state), of_output = state_.At(tape.output);
    GiveOfStep(step, g, args_.state_cotangents);
    // Where a step leaves the state as it is, both are one value.
    const bool apart = tape.output.offset != tape.state.offset;
    state_.ForElements(apart ? g.shape.cols : 0, [&](int i) {
      for (int r = 1; r <= count_; ++r) {
        of_output(r, i) = g(r, i);
        g(r, i) = 0.0F;
      }
    });
    BeginMixedSums();
    const RowCotangents rows = {ConditionSums(), MixedSums()};
    state_.Run(step, rows, count_);
    GiveStepNoise(step);
    GiveOfStep(step, state_.At(tape.layer), args_.deltas);
    if (HasMixed()) BackMixed(step, rows);
  }
  // Computes the values of a step, and of the mixed rows where their cotangents are wanted.
  DEEPPCR_DEVICE void RunForwards(const ProgramStepView& step) const {
    const FrameVectors state = state_.At(args_.model.state.state);
    const float* const z =
        args_.states + (sample_ * (process_.num_steps + 1) + step.step) * process_.state_dim;
    state_.ForElements(state.shape.cols,
                       [&](int i) { state(0, i) = i < process_.state_dim ? z[i] : 0.0F; });
    context_.SyncBlock(kAfterBackState);
    const auto run = [&](const ProgramTape& tape, const SectionBack<S, Context>& section) {
      SectionRunner<1, BlockTeam<Context>, Interpreted>(BlockTeam<Context>(context_), tape.section,
                                                        section.frame(), process_.clip_range)
          .Run(step);
    };
    if (HasMixed()) run(args_.model.mixed, mixed_);
    run(args_.model.state, state_);
  }

  // Gives the first cotangent of a vector of D elements to the step's part of an array [n, L, D].
  DEEPPCR_DEVICE void GiveOfStep(const ProgramStepView& step, const FrameVectors& g,
                                 float* all) const {
    if (all == nullptr) return;
    float* const to = all + (sample_ * process_.num_steps + step.step) * process_.state_dim;
    state_.ForElements(process_.state_dim, [&](int i) { to[i] = g(1, i); });
  }
  // The noise comes with its factor in one instruction, whose cotangent is there; steps without it
  // have no noise.
  DEEPPCR_DEVICE void GiveStepNoise(const ProgramStepView& step) const {
    if (args_.step_noise == nullptr) return;
    const ProgramTape& tape = args_.model.state;
    const int dim = process_.sample_dim;
    const int part = process_.parts > 1 ? static_cast<int>(tape.noise_part) : 0;
    const float sigma = tape.noise.size > 0 ? step.coefficients[part].sigma : 0.0F;
    const FrameVectors g = state_.At(tape.noise);
    state_.ForElements(dim, [&](int i) {
      for (int r = 1; r <= count_; ++r) {
        const int64_t row = (sample_ * args_.num_columns + first_ + r - 1) * process_.num_steps;
        args_.step_noise[(row + step.step) * dim + i] = sigma != 0.0F ? sigma * g(r, i) : 0.0F;
      }
    });
  }

  // ---- Cotangents of the condition's rows
  DEEPPCR_DEVICE RowSums ConditionSums() const {
    if (!WantsCondition()) return {};
    const int64_t floats = process_.condition_floats;
    return {args_.condition_sums + Place(floats), floats};
  }
  DEEPPCR_DEVICE RowSums MixedSums() const {
    if (!HasMixed()) return {};
    return {args_.memory.SumsOf(context_.cluster(), RetreatFrameFloats(args_.model, true, S)),
            process_.mixed_floats};
  }
  DEEPPCR_DEVICE void BeginSums() const {
    if (WantsCondition() && args_.done == 0) Clear(ConditionSums());
  }
  DEEPPCR_DEVICE void BeginMixedSums() const {
    if (HasMixed()) Clear(MixedSums());
  }
  DEEPPCR_DEVICE void Clear(const RowSums& sums) const {
    state_.ForElements(static_cast<int>(count_ * sums.stride), [&](int i) { sums.at[i] = 0.0F; });
  }
  // Takes what a step has given to its mixed row back to the condition's.
  DEEPPCR_DEVICE void BackMixed(const ProgramStepView& step, const RowCotangents& rows) const {
    const ProgramTape& tape = args_.model.mixed;
    for (int e = 0; e < tape.num_exports; ++e) {
      const ProgramExport& value = tape.exports[e];
      mixed_.Place(value.from, count_, [&](int r, int i) {
        return rows.mixed.at[(r - 1) * rows.mixed.stride + value.to + i];
      });
    }
    mixed_.Run(step, {rows.condition, {}}, count_);
  }

  Context& context_;
  const ProgramRetreatArgs& args_;
  const ProgramView& process_;
  const int32_t part_, interval_;
  const int64_t sample_;
  const int first_, count_;  // of the columns
  float* const memory_;
  const SectionBack<S, Context> state_, mixed_;
  const bool leads_;
};

// Body of a launch of any number of blocks, with RetreatFrameFloats of memory each and the sums of
// S mixed rows.
template <int S, class Context>
DEEPPCR_DEVICE void RetreatIntervals(Context& context, const ProgramRetreatArgs& args) {
  for (int64_t job = context.cluster(); job < args.jobs(S); job += context.num_clusters())
    IntervalRetreat<S, Context>(context, args, job).Run();
}

// ---- The scan over the intervals
struct ProgramScanArgs {
  RetreatTree tree;
  int32_t num_samples, num_columns;  // n, m
  int32_t state_dim, width;          // D, W
  float* matrices;                   // of all nodes [n, places of the tree, D, W], row-major
  const float* final_gradients;      // g_L [n, m, W]
  float* entering;                   // cotangents at the ends of intervals [n, P, m, W]
  int64_t* num_dependent;            // matrices that the chain goes through

  DEEPPCR_DEVICE float* Matrix(int64_t sample, int level, int32_t j) const {
    return matrices + (sample * tree.places() + tree.place(level, j)) * state_dim * width;
  }
  // What enters node j of a level, of one column.
  DEEPPCR_DEVICE float* Entering(int64_t sample, int level, int32_t j, int64_t column) const {
    const int64_t p = tree.num_intervals - 1 - (j << level);
    return entering + ((sample * tree.num_intervals + p) * num_columns + column) * width;
  }
};
// Part of a scan on one level.
enum class ScanPart : uint8_t { kMultiply, kWalk, kDescend };
struct ProgramLevelArgs {
  ProgramScanArgs scan;
  ScanPart part;
  int level;
};

// Rows of a product that a block makes.
inline constexpr int kProductRows = 16;
constexpr int64_t ProductBlocks(const ProgramLevelArgs& args) {
  const int32_t nodes = args.scan.tree.nodes(args.level) - 1;  // nothing goes through the last one
  return int64_t{args.scan.num_samples} * nodes * ((args.scan.state_dim - 1) / kProductRows + 1);
}

// Body of a launch of ProductBlocks: the matrices of a level from those of the level below.
template <class Context>
DEEPPCR_DEVICE void MultiplyLevel(Context& context, const ProgramLevelArgs& args) {
  const ProgramScanArgs& scan = args.scan;
  const int parts = (scan.state_dim - 1) / kProductRows + 1, width = scan.width;
  const int first = context.cluster() % parts * kProductRows;
  const int32_t nodes = scan.tree.nodes(args.level) - 1, node = context.cluster() / parts % nodes;
  const int64_t sample = context.cluster() / parts / nodes;
  const float* const left = scan.Matrix(sample, args.level - 1, 2 * node);
  const float* const right = scan.Matrix(sample, args.level - 1, 2 * node + 1);
  float* const product = scan.Matrix(sample, args.level, node);
  const int rows = scan.state_dim - first < kProductRows ? scan.state_dim - first : kProductRows;
  for (int at = context.thread(); at < rows * width; at += context.num_threads()) {
    const int i = first + at / width, j = at % width;
    float sum = 0.0F;
    for (int k = 0; k < scan.state_dim; ++k)
      sum = fmaf(left[int64_t{i} * width + k], right[int64_t{k} * width + j], sum);
    product[int64_t{i} * width + j] = sum;
  }
}

// to[j] = sum over i of g[i] matrix[i, j], by the threads of a block.
template <class Context>
DEEPPCR_DEVICE void TakeThrough(Context& context, const ProgramScanArgs& scan, const float* matrix,
                                const float* g, float* to, float* copy) {
  for (int j = context.thread(); j < scan.width; j += context.num_threads()) {
    float sum = 0.0F;
    for (int i = 0; i < scan.state_dim; ++i)
      sum = fmaf(g[i], matrix[int64_t{i} * scan.width + j], sum);
    to[j] = copy[j] = sum;
  }
}

// Body of a launch of one block per sample and column, with two vectors of W floats in shared
// memory: the cotangents that enter the nodes of the chain.
template <class Context>
DEEPPCR_DEVICE void WalkBack(Context& context, const ProgramLevelArgs& args) {
  const ProgramScanArgs& scan = args.scan;
  const int64_t row = context.cluster(), sample = row / scan.num_columns,
                column = row % scan.num_columns;
  float* g = SharedFloats(context);
  float* next = g + scan.width;
  float* const first = scan.Entering(sample, args.level, 0, column);
  for (int i = context.thread(); i < scan.width; i += context.num_threads())
    g[i] = first[i] = scan.final_gradients[row * scan.width + i];
  int64_t made = 0;
  for (int32_t j = 0; j + 1 < scan.tree.nodes(args.level); ++j, ++made) {
    context.SyncBlock(kAfterChainVector);
    TakeThrough(context, scan, scan.Matrix(sample, args.level, j), g, next,
                scan.Entering(sample, args.level, j + 1, column));
    float* const last = g;
    g = next;
    next = last;
  }
  if (row == 0 && context.thread() == 0) *scan.num_dependent = made;
}
constexpr int64_t WalkFloats(const ProgramLevelArgs& args) { return 2 * int64_t{args.scan.width}; }

// A block for each sample, column and node of the level that is the second of two.
constexpr int64_t DescentBlocks(const ProgramLevelArgs& args) {
  return int64_t{args.scan.num_samples} * args.scan.num_columns *
         (args.scan.tree.nodes(args.level) / 2);
}
// Body of a launch of DescentBlocks: what enters the second nodes of a level has gone through the
// first ones, which are entered by what enters their parents.
template <class Context>
DEEPPCR_DEVICE void DescendLevel(Context& context, const ProgramLevelArgs& args) {
  const ProgramScanArgs& scan = args.scan;
  const int32_t pairs = scan.tree.nodes(args.level) / 2;
  const int64_t row = context.cluster() / pairs, column = row % scan.num_columns,
                sample = row / scan.num_columns;
  const int32_t j = static_cast<int32_t>(context.cluster() % pairs);
  float* const to = scan.Entering(sample, args.level, 2 * j + 1, column);
  TakeThrough(context, scan, scan.Matrix(sample, args.level, 2 * j),
              scan.Entering(sample, args.level, 2 * j, column), to, to);
}

// Blocks of a launch, its shared memory, and its body.
constexpr int64_t BlocksOf(const ProgramLevelArgs& args) {
  return args.part == ScanPart::kMultiply  ? ProductBlocks(args)
         : args.part == ScanPart::kDescend ? DescentBlocks(args)
                                           : int64_t{args.scan.num_samples} * args.scan.num_columns;
}
constexpr int64_t ScanFloats(const ProgramLevelArgs& args) {
  return args.part == ScanPart::kWalk ? WalkFloats(args) : 0;
}
template <class Context>
DEEPPCR_DEVICE void ScanLevel(Context& context, const ProgramLevelArgs& args) {
  if (args.part == ScanPart::kMultiply) return MultiplyLevel(context, args);
  if (args.part == ScanPart::kDescend) return DescendLevel(context, args);
  WalkBack(context, args);
}

// ---- The condition
// Pointers are to device memory.
struct ConditionBackArgs {
  ProgramBackView model;
  BackMemory memory;
  int32_t num_samples, num_columns, num_intervals;  // n, m, P
  const float* sums;    // of the cotangents of the condition's row [n, P, m, floats of the row]
  const float* inputs;  // [n, input_stride]
  int64_t input_stride;
  const float* labels;  // [n]
  float* of_inputs;     // [n, m, size of the condition]

  constexpr int64_t jobs(int columns) const {
    return int64_t{num_samples} * ((num_columns - 1) / columns + 1);
  }
};

// The way back through the condition's section for some columns of a sample.
template <int S, class Context>
DEEPPCR_DEVICE void BackCondition(Context& context, const ConditionBackArgs& args, int64_t job) {
  const ProgramView& process = args.model.process;
  const ProgramTape& tape = args.model.condition;
  const int64_t parts = (args.num_columns - 1) / S + 1, sample = job / parts;
  const int first = static_cast<int>(job % parts) * S;
  const int count = args.num_columns - first < S ? args.num_columns - first : S;
  const SectionBack<S, Context> section(
      context, tape, Frame{args.memory.FrameOf(context), TapeRows(S)}, process.clip_range);
  const auto value = [&](const ProgramValue& to, const float* from) {
    if (to.size == 0) return;
    const FrameVectors at = section.At(to);
    section.ForElements(PanelWidth(to.size),
                        [&](int i) { at(0, i) = i < to.size ? from[i] : 0.0F; });
  };
  value(tape.condition, args.inputs + sample * args.input_stride);
  value(tape.label, args.labels + sample);
  context.SyncBlock(kAfterConditionValues);
  const ProgramStepView step = process.StepsOf(sample).At(0);
  SectionRunner<1, BlockTeam<Context>, Interpreted>(BlockTeam<Context>(context), tape.section,
                                                    section.frame(), process.clip_range)
      .Run(step);
  for (const ProgramValue& input : {tape.condition, tape.label})
    section.Place(input, count, [](int, int) { return 0.0F; });
  // The sums of the intervals are added up from the first one on.
  const int64_t floats = process.condition_floats;
  for (int e = 0; e < tape.num_exports; ++e) {
    const ProgramExport& given = tape.exports[e];
    section.Place(given.from, count, [&](int r, int i) {
      float sum = 0.0F;
      for (int32_t p = 0; p < args.num_intervals; ++p) {
        const int64_t row = (sample * args.num_intervals + p) * args.num_columns + first + r - 1;
        sum += args.sums[row * floats + given.to + i];
      }
      return sum;
    });
  }
  section.Run(step, {}, count);
  // A thread reads here what it will write for the next job.
  const FrameVectors g = section.At(tape.condition);
  const int size = tape.condition.size;
  section.ForElements(size, [&](int i) {
    for (int r = 1; r <= count; ++r)
      args.of_inputs[(sample * args.num_columns + first + r - 1) * size + i] = g(r, i);
  });
}

// Body of a launch of any number of blocks, with TapeFloats of the condition's tape each.
template <int S, class Context>
DEEPPCR_DEVICE void BackConditions(Context& context, const ConditionBackArgs& args) {
  for (int64_t job = context.cluster(); job < args.jobs(S); job += context.num_clusters())
    BackCondition<S>(context, args, job);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_BACKWARD_KERNEL_H_
