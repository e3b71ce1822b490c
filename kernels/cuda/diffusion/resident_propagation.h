// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_RESIDENT_PROPAGATION_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_RESIDENT_PROPAGATION_H_

// Propagation of shooting intervals of a residual denoiser whose blocks' layers a block of threads
// has shared memory for: they are copied there once for several intervals. The states of these
// intervals go first, all together (DenoiserStep), and leave on a tape the points at which the
// network is linearized; then a warp takes a tile of tangents (tangent_tiles.h) of one interval,
// its probes or columns of its matrix, through all layers.
//
// The operations on tangents are those of DenoiserStep; factors of products are TF32.

#include <math.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/diffusion/interval_step_kernel.h"
#include "kernels/cuda/diffusion/kernel.h"
#include "kernels/cuda/diffusion/tangent.h"
#include "kernels/cuda/diffusion/tape.h"
#include "kernels/cuda/loop/block_recurrence.h"
#include "kernels/cuda/math/activation.h"
#include "kernels/cuda/math/layer_norm.h"
#include "kernels/cuda/math/tangent_tiles.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

struct ResidentArgs {
  PropagationArgs<DiffusionView> propagation;
  int32_t together;   // intervals of a block, at most kResidentIntervals
  DenoiserTape tape;  // [n, P] rows
};

// The barrier calls of the kernel, beyond those of steps.
enum ResidentSite : int {
  kAfterResidentEntries = 72,
  kAfterResidentStates,
  kAfterResidentTangents,
  kBeforeElements,
  kAfterElements,
  kAfterLargest,
  kNumResidentSites,
};

// Numbers of the elements of a vector that the lanes of a warp make for one another. Behind every
// quarter there are two unused floats, so that the lanes of a row read different banks.
struct ElementNumbers {
  float* at;
  int quarter;  // elements of a quarter

  static constexpr int Floats(int cols) { return cols + 2 * kSegments; }
  DEEPPCR_DEVICE ElementNumbers(float* memory, int cols) : at(memory), quarter(cols / kSegments) {}
  DEEPPCR_DEVICE float& operator[](int i) const { return at[i + 2 * (i / quarter)]; }
};
// Vectors of such numbers that a warp has.
inline constexpr int kElementVectors = 3;

// Floats of shared memory of a block: the layers, and the steps of states, whose place the warps'
// numbers have while tangents go through the layers.
constexpr int64_t ResidentLayerFloats(const DenoiserView& d) {
  return (int64_t{d.num_blocks} * d.hidden_width + 2 * d.state_cols) * d.hidden_width;
}
constexpr int64_t ResidentFloats(const DenoiserView& d, int together, int warps) {
  const int64_t states = DenoiserFloats(d, together);
  const int64_t numbers = int64_t{warps} * kElementVectors * ElementNumbers::Floats(d.hidden_width);
  return ResidentLayerFloats(d) + (states > numbers ? states : numbers);
}

// A tile of tangents of one interval: the probes, or kTileTangents columns of its matrix from
// `first` on. A state has 8 kStateTiles elements with its padding, a layer of a block 8
// kHiddenTiles.
template <int kStateTiles, int kHiddenTiles, class Context>
class IntervalTile {
 public:
  // `d` has the layers of the blocks in shared memory.
  DEEPPCR_DEVICE IntervalTile(Context& context, const DenoiserView& d, const DenoiserTape& tape,
                              const BlockInterval& at, const StepView& step, float* numbers,
                              bool probes, int first)
      : context_(context),
        d_(d),
        tape_(tape),
        at_(at),
        step_(step),
        probes_(probes),
        first_(first),
        low_(numbers, kWidth),
        high_(numbers + ElementNumbers::Floats(kWidth), kWidth),
        size_(numbers + 2 * ElementNumbers::Floats(kWidth), kWidth) {}

  // Takes the tangents through a step of the interval, its first one or not.
  DEEPPCR_DEVICE void Run(bool begins, int width) {
    float h[kOfLane] = {};
    if (probes_) ReadLayer(tape_.Hidden(d_, 0, 0), h);
    begins ? Enter() : Load(width);
    TangentTiles<kHiddenTiles> hidden;
    MultiplyTiles(context_, d_.input, state_, hidden);
    if (probes_) PickUpInput(h, hidden);
    for (int b = 0; b < d_.num_blocks; ++b) Block(b, hidden);
    Reverse(hidden);
    Store(width);
  }

 private:
  static constexpr int kStateCols = 8 * kStateTiles, kWidth = 8 * kHiddenTiles;
  static constexpr int kOfLane = kWidth / kWarpSize;  // elements of a layer that a lane has

  DEEPPCR_DEVICE int Group() const { return context_.lane() / kSegments; }
  // The tangent of accumulator r: a probe, or a column from `first` on.
  DEEPPCR_DEVICE int TangentOf(int r) const { return Group() + 8 * (r / 2); }
  // Calls f(i, e, two) for the elements i = 2 p + e of a vector that the lane has, two[0] being
  // that of tangent TangentOf(0) and two[1] that of TangentOf(2).
  template <int kTiles, class F>
  DEEPPCR_DEVICE void ForElements(TangentTiles<kTiles>& x, const F& f) const {
    const TileElements elements(context_, 8 * kTiles);
    DEEPPCR_UNROLL
    for (int p = 0; p < kTiles; ++p) {
      DEEPPCR_UNROLL
      for (int e = 0; e < 2; ++e) f(elements.At(p, e), &x.at[p][e], &x.at[p][e + 2]);
    }
  }
  // Element k of those of a layer that the lanes make for one another.
  DEEPPCR_DEVICE int ElementOf(int k) const { return context_.lane() + k * kWarpSize; }
  // Reads the lane's elements of a vector of a layer; zero beyond H.
  DEEPPCR_DEVICE void ReadLayer(const float* from, float (&to)[kOfLane]) const {
    DEEPPCR_UNROLL
    for (int k = 0; k < kOfLane; ++k) {
      const float x = from[ElementOf(k)];
      to[k] = ElementOf(k) < d_.hidden_dim ? x : 0.0F;
    }
  }
  template <int N>
  DEEPPCR_DEVICE float LengthOf(const float (&x)[N]) const {
    float sum = 0.0F;
    DEEPPCR_UNROLL
    for (int k = 0; k < N; ++k) sum += x[k] * x[k];
    return sqrtf(SumOfWarp(context_, sum));
  }
  DEEPPCR_DEVICE float RoundingOf(int place, float size, int i) const {
    return RoundingAt(d_, step_.draw, place, size, Group(), i);
  }

  // Reads the lane's elements of a vector of the state; zero beyond D.
  DEEPPCR_DEVICE void ReadState(const float* from, float (&to)[kStateTiles][2]) const {
    const TileElements elements(context_, kStateCols);
    DEEPPCR_UNROLL
    for (int p = 0; p < kStateTiles; ++p) {
      DEEPPCR_UNROLL
      for (int e = 0; e < 2; ++e) {
        const float x = from[elements.At(p, e)];
        to[p][e] = elements.At(p, e) < d_.state_dim ? x : 0.0F;
      }
    }
  }

  // ---- The tangents that enter and leave
  DEEPPCR_DEVICE void Enter() {
    ForElements(state_, [&](int i, float* upper, float* lower) {
      const auto unit = [&](int r) {
        const int column = first_ + TangentOf(r);
        return !probes_ && i == column && column < d_.state_dim ? 1.0F : 0.0F;
      };
      *upper = unit(0);
      *lower = unit(2);
    });
  }
  // Between the steps of an interval, tangents lie where they leave it: probes behind the state,
  // columns in the matrix.
  DEEPPCR_DEVICE float* PlaceOf(int r, int i, int width) const {
    if (i >= width) return nullptr;
    const int tangent = TangentOf(r);
    if (probes_) {
      return tangent < kNumProbes ? at_.memory.Propagated(at_.local) + (1 + tangent) * width + i
                                  : nullptr;
    }
    const int column = first_ + tangent;
    return column < width ? at_.memory.Matrix(Leaf()) + i * width + column : nullptr;
  }
  DEEPPCR_DEVICE int32_t Leaf() const { return at_.memory.tree.index_of(0, at_.interval); }
  DEEPPCR_DEVICE void Load(int width) {
    ForElements(state_, [&](int i, float* upper, float* lower) {
      const float *const from = PlaceOf(0, i, width), *const below = PlaceOf(2, i, width);
      *upper = from == nullptr ? 0.0F : *from;
      *lower = below == nullptr ? 0.0F : *below;
    });
  }
  DEEPPCR_DEVICE void Store(int width) {
    const auto store = [&](int r, int i, float value) {
      float* const to = PlaceOf(r, i, width);
      if (to == nullptr) return;
      *to = value;
      if (probes_) at_.memory.Residual(Leaf())[(1 + TangentOf(r)) * width + i] = value;
    };
    ForElements(state_, [&](int i, const float* upper, const float* lower) {
      store(0, i, *upper);
      store(2, i, *lower);
    });
  }

  // ---- Layers
  // h: what the first layer of the network makes of the state.
  DEEPPCR_DEVICE void PickUpInput(const float (&h)[kOfLane], TangentTiles<kHiddenTiles>& hidden) {
    const int lane = context_.lane();
    const float z[1] = {lane < d_.state_dim ? tape_.State(d_, 0)[lane] : 0.0F};
    float spreads[kOfLane];
    ReadLayer(d_.input.spreads, spreads);
    const float length = LengthOf(z);
    context_.SyncWarp(kBeforeElements);
    DEEPPCR_UNROLL
    for (int k = 0; k < kOfLane; ++k) size_[ElementOf(k)] = SizeOfSum(spreads[k] * length, h[k]);
    context_.SyncWarp(kAfterElements);
    ForElements(hidden, [&](int i, float* probe, const float*) {
      if (i < d_.hidden_dim) *probe += RoundingOf(0, size_[i], i);
    });
    length_ = LengthOf(h);
  }

  // hidden <- hidden + slope (first hidden).
  DEEPPCR_DEVICE void Block(int block, TangentTiles<kHiddenTiles>& hidden) {
    // Read ahead of the product.
    float a[kOfLane], value[kOfLane], spreads[kOfLane];
    ReadLayer(tape_.PreActivation(d_, 0, block), a);
    if (probes_) {
      ReadLayer(tape_.Hidden(d_, 0, block + 1), value);
      ReadLayer(d_.first.Next(block).spreads, spreads);
    }
    TangentTiles<kHiddenTiles> product;
    MultiplyTiles(context_, d_.first.Next(block), hidden, product);
    if (!probes_) return TakeColumns(a, hidden, product);
    TakeProbes(block, a, value, spreads, hidden, product);
    length_ = LengthOf(value);
  }
  DEEPPCR_DEVICE void TakeColumns(const float (&a)[kOfLane], TangentTiles<kHiddenTiles>& hidden,
                                  const TangentTiles<kHiddenTiles>& product) const {
    float slopes[kOfLane];
    DEEPPCR_UNROLL
    for (int k = 0; k < kOfLane; ++k) slopes[k] = a[k];
    DifferentiateAll(d_.activation, slopes);
    context_.SyncWarp(kBeforeElements);
    DEEPPCR_UNROLL
    for (int k = 0; k < kOfLane; ++k)
      low_[ElementOf(k)] = ElementOf(k) < d_.hidden_dim ? slopes[k] : 0.0F;
    context_.SyncWarp(kAfterElements);
    const TileElements elements(context_, kWidth);
    DEEPPCR_UNROLL
    for (int p = 0; p < kHiddenTiles; ++p) {
      DEEPPCR_UNROLL
      for (int r = 0; r < 4; ++r)
        hidden.at[p][r] = fmaf(low_[elements.At(p, r % 2)], product.at[p][r], hidden.at[p][r]);
    }
  }
  // A tile has four probes, in lanes of which the others make slopes with them. a, value, spreads:
  // the pre-activations of the block, what leaves it, and the spreads of its weights.
  DEEPPCR_DEVICE void TakeProbes(int block, const float (&a)[kOfLane],
                                 const float (&value)[kOfLane], const float (&spreads)[kOfLane],
                                 TangentTiles<kHiddenTiles>& hidden,
                                 const TangentTiles<kHiddenTiles>& product) const {
    const TileElements elements(context_, kWidth);
    context_.SyncWarp(kBeforeElements);
    DEEPPCR_UNROLL
    for (int p = 0; p < kHiddenTiles; ++p) {
      DEEPPCR_UNROLL
      for (int e = 0; e < 2; ++e) {
        float largest = fabsf(product.at[p][e]);
        largest = fmaxf(largest, context_.ShuffleXor(largest, kSegments));
        largest = fmaxf(largest, context_.ShuffleXor(largest, 2 * kSegments));
        if (Group() == 0) size_[elements.At(p, e)] = largest;
      }
    }
    context_.SyncWarp(kAfterLargest);
    float reach[kOfLane];
    DEEPPCR_UNROLL
    for (int k = 0; k < kOfLane; ++k) reach[k] = ReachOf(spreads[k] * length_, size_[ElementOf(k)]);
    SlopeRange near[kOfLane];
    AllSlopesNear(d_.activation, a, reach, near);
    DEEPPCR_UNROLL
    for (int k = 0; k < kOfLane; ++k) {
      const int i = ElementOf(k);
      const bool real = i < d_.hidden_dim;
      low_[i] = real ? near[k].low : 0.0F;
      high_[i] = real ? near[k].high : 0.0F;
      const float size = SizeOfBranch(spreads[k] * length_, near[k].Largest(), a[k], value[k]);
      size_[i] = real ? size : 0.0F;
    }
    context_.SyncWarp(kAfterElements);
    DEEPPCR_UNROLL
    for (int p = 0; p < kHiddenTiles; ++p) {
      DEEPPCR_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int i = elements.At(p, e);
        const SlopeRange near_element = {low_[i], high_[i]};
        hidden.at[p][e] = near_element.Carry(product.at[p][e], hidden.at[p][e]) +
                          RoundingOf(2 * block + 1, size_[i], i);
        hidden.at[p][e + 2] = 0.0F;
      }
    }
  }

  // state <- the reverse step's tangents, from those of the network's output.
  DEEPPCR_DEVICE void Reverse(const TangentTiles<kHiddenTiles>& hidden) {
    // Read ahead of the product.
    float z[kStateTiles][2], m[kStateTiles][2];
    float next[kStateTiles][2] = {}, spreads[kStateTiles][2] = {};
    ReadState(tape_.State(d_, 0), z);
    ReadState(tape_.Prediction(d_, 0), m);
    if (probes_) {
      ReadState(at_.memory.Propagated(at_.local), next);
      ReadState(d_.output.spreads, spreads);
    }
    TangentTiles<kStateTiles> prediction;
    MultiplyTiles(context_, d_.output, hidden, prediction);
    const ReverseCoefficients& c = step_.coefficients;
    const TileElements elements(context_, kStateCols);
    DEEPPCR_UNROLL
    for (int p = 0; p < kStateTiles; ++p) {
      DEEPPCR_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int i = elements.At(p, e);
        const bool real = i < d_.state_dim;

        float &upper = state_.at[p][e], &lower = state_.at[p][e + 2];
        if (probes_) {
          const ReverseOfProbes probes(c, d_, m[p][e], z[p][e], next[p][e],
                                       spreads[p][e] * length_);
          upper = probes.Carry(c, prediction.at[p][e], upper) +
                  RoundingOf(2 * d_.num_blocks + 1, probes.size, i);
          if (!real) upper = 0.0F;
        } else {
          const ReverseTangent tangent(c, BeyondClip(c, d_.clip_range, m[p][e], z[p][e]) > 0.0F);
          upper = tangent.Of(prediction.at[p][e], upper);
          lower = tangent.Of(prediction.at[p][e + 2], lower);
        }
      }
    }
  }

  Context& context_;
  const DenoiserView& d_;
  const DenoiserTape tape_;
  const BlockInterval& at_;
  const StepView step_;
  const bool probes_;
  const int first_;
  const ElementNumbers low_, high_, size_;
  TangentTiles<kStateTiles> state_;
  float length_ = 0.0F;  // of probes: of what enters the next block, or leaves the last
};

template <int kStateTiles, int kHiddenTiles, class Context>
class ResidentPropagation {
 public:
  DEEPPCR_DEVICE ResidentPropagation(Context& context, const ResidentArgs& args)
      : context_(context),
        args_(args),
        view_(args.propagation.intervals),
        process_(args.propagation.process),
        width_(process_.width),
        groups_((view_.tree.num_intervals + args.together - 1) / args.together),
        sample_(view_.members.at[context.cluster() / groups_]),
        first_(context.cluster() % groups_ * args.together),
        count_(view_.tree.num_intervals - first_ < args.together ? view_.tree.num_intervals - first_
                                                                 : args.together),
        d_(process_.denoiser),
        layers_(SharedFloats(context)),
        states_(layers_ + ResidentLayerFloats(d_)),
        numbers_(states_ +
                 context.warp() * kElementVectors * ElementNumbers::Floats(d_.hidden_width)) {}

  DEEPPCR_DEVICE void Run() {
    kind_ = args_.propagation.kind;
    if (args_.propagation.progress != nullptr) {
      const Progress& progress = args_.propagation.progress[sample_];
      if (progress.next == NextPass::kStop) return;
      kind_ = KindOf(progress, args_.propagation.linearization);
    }
    CopyLayers();
    const SampleSteps steps(process_, sample_, kind_.draw);
    for (int32_t l = 0; l < view_.shooting_interval; ++l) {
      const int active = NumActive(l);
      if (active == 0) break;
      if (l > 0) context_.SyncBlock(kAfterResidentTangents);
      StepStates(steps, l, active);
      context_.SyncBlock(kAfterResidentStates);
      StepTangents(steps, l, active);
    }
    TakeResiduals();
  }

 private:
  DEEPPCR_DEVICE BlockInterval Interval(int r) const {
    return BlockInterval(view_, process_, sample_, first_ + r);
  }
  // Intervals that have step l of their own: the sample's last one may have fewer steps.
  DEEPPCR_DEVICE int NumActive(int32_t l) const {
    const int64_t last = int64_t{first_ + count_ - 1} * view_.shooting_interval + l;
    return count_ - (last >= process_.num_steps ? 1 : 0);
  }
  DEEPPCR_DEVICE DenoiserTape TapeOf(int r) const {
    return args_.tape.From(process_.denoiser, sample_ * view_.tree.num_intervals + first_ + r);
  }

  // Copies all layers. Nobody reads them before the entries of the first step are waited for.
  DEEPPCR_DEVICE void CopyLayers() {
    float* const input = Copy(d_.first, d_.num_blocks, layers_);
    float* const output = Copy(d_.input, 1, input);
    Copy(d_.output, 1, output);
    context_.CommitCopies();
    context_.template WaitForCopies<0>();
    d_.first.weights = layers_;
    d_.input.weights = input;
    d_.output.weights = output;
  }
  // Copies the weights of layers of one shape; returns the place behind them.
  DEEPPCR_DEVICE float* Copy(const PanelLayer& first, int count, float* to) {
    const int32_t floats = count * first.rows * first.cols;
    for (int32_t i = 4 * context_.thread(); i < floats; i += 4 * context_.num_threads())
      context_.template CopyAsync<4>(first.weights + i, to + i);
    return to + floats;
  }
  // Calls f(r) for intervals r < count, a warp each.
  template <class F>
  DEEPPCR_DEVICE void ForIntervals(int count, const F& f) const {
    for (int r = context_.warp(); r < count; r += context_.num_threads() / kWarpSize) f(r);
  }

  DEEPPCR_DEVICE void StepStates(const SampleSteps& steps, int32_t l, int active) {
    DenoiserStep<kResidentIntervals, BlockTeam<Context>, StepRowsAre::kStates, ResidentLayers> step(
        BlockTeam<Context>(context_), d_, states_, active, false);
    step.KeepTape(TapeOf(0));
    ForIntervals(active, [&](int r) {
      const BlockInterval at = Interval(r);
      const float* const propagated = at.memory.Propagated(at.local);
      for (int i = context_.lane(); i < step.cols(); i += kWarpSize) {
        const bool real = i < width_;
        const float entry = real && l == 0 ? at.EntryAt(kind_.confirmation, i, width_) : 0.0F;
        step.State(r, i) = real && l > 0 ? propagated[i] : entry;
      }
    });
    context_.SyncBlock(kAfterResidentEntries);
    step.Run(IntervalSteps(steps, int64_t{first_} * view_.shooting_interval + l,
                           view_.shooting_interval));
    ForIntervals(active, [&](int r) {
      const BlockInterval at = Interval(r);
      for (int i = context_.lane(); i < width_; i += kWarpSize)
        at.memory.Propagated(at.local)[i] = step.State(r, i);
    });
  }

  // Every tile of tangents, a warp each: the probes of all intervals, then columns.
  DEEPPCR_DEVICE void StepTangents(const SampleSteps& steps, int32_t l, int active) {
    const int probes = kind_.probes ? 1 : 0;
    const bool matrices = kind_.forms_matrices() && kind_.linearization == Linearization::kFull;
    const int tiles =
        probes + (matrices ? (process_.state_dim + kTileTangents - 1) / kTileTangents : 0);
    const int warps = context_.num_threads() / kWarpSize;
    for (int job = context_.warp(); job < tiles * active; job += warps) {
      const int r = job % active, tile = job / active;
      const bool is_probes = tile < probes;
      const BlockInterval at = Interval(r);
      // d_0 = 0: the first matrix is never used.
      if (!is_probes && at.interval == 0) continue;
      IntervalTile<kStateTiles, kHiddenTiles, Context>(context_, d_, TapeOf(r), at,
                                                       steps.At(at.begin + l), numbers_, is_probes,
                                                       (tile - probes) * kTileTangents)
          .Run(l == 0, width_);
    }
  }

  DEEPPCR_DEVICE void TakeResiduals() const {
    ForIntervals(count_, [&](int r) {
      const BlockInterval at = Interval(r);
      const float* const propagated = at.memory.Propagated(at.local);
      float* const residual = at.memory.Residual(view_.tree.index_of(0, at.interval));
      for (int i = context_.lane(); i < width_; i += kWarpSize)
        residual[i] = propagated[i] - at.EndAt(kind_.confirmation, i, width_);
    });
  }

  Context& context_;
  const ResidentArgs& args_;
  const IntervalsView& view_;
  const DiffusionView& process_;
  const int width_;
  const int32_t groups_;  // blocks of a sample
  const int64_t sample_;
  const int32_t first_;  // first interval of the block
  const int32_t count_;  // intervals of the block
  IterationKind kind_;
  DenoiserView d_;  // the blocks' layers in shared memory
  float* const layers_;
  float* const states_;
  float* const numbers_;
};

// Body of a launch of one block per sample and `together` intervals, with ResidentFloats of shared
// memory.
template <int kStateTiles, int kHiddenTiles, class Context>
DEEPPCR_DEVICE void PropagateResident(Context& context, const ResidentArgs& args) {
  ResidentPropagation<kStateTiles, kHiddenTiles, Context>(context, args).Run();
}

// Calls f(std::integral_constant<int, kStateTiles>, std::integral_constant<int, kHiddenTiles>) for
// the sizes of a denoiser.
template <class F>
auto WithResidentTiles(const DenoiserView& d, const F& f) {
  const auto with_hidden = [&](auto state) {
    if (d.hidden_width <= 32) return f(state, std::integral_constant<int, 4>{});
    if (d.hidden_width <= 64) return f(state, std::integral_constant<int, 8>{});
    return f(state, std::integral_constant<int, 16>{});
  };
  if (d.state_cols <= 16) return with_hidden(std::integral_constant<int, 2>{});
  return with_hidden(std::integral_constant<int, 4>{});
}
// Widths that there are tiles for: the least one for hidden layers of `dim` elements; 0: none.
constexpr int ResidentWidth(int64_t dim) {
  return dim <= 32 ? 32 : dim <= 64 ? 64 : dim <= 128 ? 128 : 0;
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_RESIDENT_PROPAGATION_H_
