// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_TANGENT_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_TANGENT_KERNEL_H_

// Tangents of a step of many shooting intervals, for wide denoisers: probes that pick up the
// rounding, and columns of the Jacobian. The products of tangents with the layers are a
// LayerGemmArgs each; this file has the work between two products. The states have gone ahead
// (interval_step_kernel.h) and left on a tape the points at which the network is linearized; a
// block of threads works on a group of the tangents of one interval.
//
// The operations are those of DenoiserStep, for more tangents at a time.

#include <cstdint>

#include "kernels/cuda/diffusion/interval_step_kernel.h"
#include "kernels/cuda/diffusion/tangent.h"
#include "kernels/cuda/math/activation.h"
#include "kernels/cuda/math/layer_norm.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

enum class TangentStage : uint8_t {
  kPlace,     // the tangents that enter an interval: zeros for the probes, and unit vectors
  kInput,     // hidden = the input layer's products
  kResidual,  // hidden += slope products
  kInner,     // inner = slope products
  kGated,     // hidden += gate products
  kReverse,   // state = the reverse step's tangents, from the output layer's products
  kTake,      // copies the vectors that leave an interval to the memory of the pass
};

// Tangents of an interval: first the probes, if they are carried, then columns of its matrix.
struct TangentRows {
  int32_t probes;   // 0 or kNumProbes
  int32_t columns;  // 0 or D
  int32_t draw;     // of the signs of the probes, as in the IterationKind
  constexpr int32_t count() const { return probes + columns; }
  // Groups of up to kTangentGroup tangents; one where there are no tangents, for the state's part.
  constexpr int32_t groups() const;
};

constexpr int32_t TangentRows::groups() const {
  return count() == 0 ? 1 : (count() + kTangentGroup - 1) / kTangentGroup;
}

struct TangentArgs {
  DiffusionView process;
  IntervalsView intervals;
  IntervalRange range;
  TangentRows rows;
  TangentStage stage;
  int32_t block;  // block of the network
  DenoiserTape tape;
  // [range.count, rows.count(), ...]
  float* states;    // [state_cols], zero beyond D
  float* hidden;    // [H'], zero beyond H, as are the next ones
  float* inner;     // [H']: adaLN, the input of a layer of a block
  float* products;  // [H'], or [state_cols] of the output layer
};

// The barrier call between elements, which threads have, and norms, which warps have. Its number is
// beyond those of pass_kernel.h.
enum TangentSite : int { kBeforeNormTangents = 28, kNumTangentSites };

template <class Context>
class IntervalTangents {
 public:
  DEEPPCR_DEVICE IntervalTangents(Context& context, const TangentArgs& args)
      : context_(context),
        args_(args),
        d_(args.process.denoiser),
        row_(context.cluster() / args.rows.groups()),
        first_(int64_t{row_} * args.rows.count()),
        begin_(context.cluster() % args.rows.groups() * kTangentGroup),
        end_(begin_ + kTangentGroup < args.rows.count() ? begin_ + kTangentGroup
                                                        : args.rows.count()),
        at_(args.intervals, args.process, args.range.sample, args.range.first + row_),
        step_(SampleSteps(args.process, args.range.sample, args.rows.draw)
                  .At(at_.begin + args.range.step)) {}

  DEEPPCR_DEVICE void Run() {
    switch (args_.stage) {
      case TangentStage::kPlace:
        return Place();
      case TangentStage::kInput:
        Input();
        return EnterBlock(0);
      case TangentStage::kResidual:
        return Residual();
      case TangentStage::kInner:
        return Inner();
      case TangentStage::kGated:
        Gated();
        return EnterBlock(args_.block + 1);
      case TangentStage::kReverse:
        return Reverse();
      case TangentStage::kTake:
        return Take();
    }
  }

 private:
  DEEPPCR_DEVICE float& State(int r, int i) const {
    return args_.states[(first_ + r) * d_.state_cols + i];
  }
  DEEPPCR_DEVICE float& At(float* vectors, int r, int i) const {
    return vectors[(first_ + r) * d_.hidden_width + i];
  }
  DEEPPCR_DEVICE const float* Hidden(int block) const { return args_.tape.Hidden(d_, row_, block); }
  DEEPPCR_DEVICE const float* PreActivation() const {
    return args_.tape.PreActivation(d_, row_, args_.block);
  }
  DEEPPCR_DEVICE const float* Modulation(int vector) const {
    return step_.modulation + int64_t{vector} * d_.hidden_width;
  }

  // ---- Rounding that probes pick up
  // Length of a vector f(0), ..., f(dim - 1), where there are probes in the group; else 0.
  template <class F>
  DEEPPCR_DEVICE float LengthFor(int dim, const F& f) const {
    if (begin_ >= args_.rows.probes) return 0.0F;
    return sqrtf(SumByWarp(context_, dim, [&](int i) { return f(i) * f(i); }));
  }
  // Rounding that tangent r picks up in element i at a place of the network; 0 for a column.
  DEEPPCR_DEVICE float Rounding(int place, float size, int r, int i) const {
    return r < args_.rows.probes ? RoundingAt(d_, step_.draw, place, size, r, i) : 0.0F;
  }

  // Calls f(i) for the elements of a vector, by one thread each.
  template <class F>
  DEEPPCR_DEVICE void ForElements(int count, const F& f) const {
    for (int i = context_.thread(); i < count; i += context_.num_threads()) f(i);
  }
  // Calls f(r) for every tangent of the group; ForProbes: for every probe of the group.
  template <class F>
  DEEPPCR_DEVICE void ForTangents(const F& f) const {
    for (int r = begin_; r < end_; ++r) f(r);
  }
  template <class F>
  DEEPPCR_DEVICE void ForProbes(const F& f) const {
    for (int r = begin_; r < end_ && r < args_.rows.probes; ++r) f(r);
  }

  DEEPPCR_DEVICE void Place() const {
    const int probes = args_.rows.probes;
    ForElements(d_.state_cols, [&](int i) {
      ForTangents([&](int r) { State(r, i) = i == r - probes ? 1.0F : 0.0F; });
    });
  }

  DEEPPCR_DEVICE void Input() const {
    const float* const z = args_.tape.State(d_, row_);
    const float length = LengthFor(d_.state_dim, [&](int i) { return z[i]; });
    const float* const value = Hidden(0);
    ForElements(begin_ < args_.rows.probes ? d_.hidden_dim : 0, [&](int i) {
      const float size = SizeOfSum(d_.input.spreads[i] * length, value[i]);
      ForProbes([&](int r) { At(args_.hidden, r, i) += Rounding(0, size, r, i); });
    });
  }

  DEEPPCR_DEVICE void Residual() const {
    const float *const h = Hidden(args_.block), *const value = Hidden(args_.block + 1);
    const float length = LengthFor(d_.hidden_dim, [&](int i) { return h[i]; });
    const float* const spreads = d_.first.Next(args_.block).spreads;
    const float* const a = PreActivation();
    ForElements(d_.hidden_dim, [&](int i) {
      const float terms = spreads[i] * length, slope = Differentiate(d_.activation, a[i]);
      const SlopeRange near = SlopesOfProbes(i, a[i], terms, slope);
      AddBranch(i, slope, near, 2 * args_.block + 1,
                SizeOfBranch(terms, near.Largest(), a[i], value[i]));
    });
  }
  // Slopes of element i near the pre-activation a, where the slope is `slope`.
  DEEPPCR_DEVICE SlopeRange SlopesOfProbes(int i, float a, float terms, float slope) const {
    if (begin_ >= args_.rows.probes) return {slope, slope};
    float probe = 0.0F;
    ForProbes([&](int r) { probe = fmaxf(probe, fabsf(At(args_.products, r, i))); });
    return SlopesNear(d_.activation, 1.0F, a, ReachOf(terms, probe), slope);
  }
  // hidden += factor products, of element i.
  DEEPPCR_DEVICE void AddBranch(int i, float of_columns, const SlopeRange& of_probes, int place,
                                float size) const {
    ForTangents([&](int r) {
      float& h = At(args_.hidden, r, i);
      const float product = At(args_.products, r, i);
      h = r < args_.rows.probes ? of_probes.Carry(product, h) + Rounding(place, size, r, i)
                                : fmaf(of_columns, product, h);
    });
  }

  DEEPPCR_DEVICE void Inner() const {
    const float* const a = PreActivation();
    const float* const spreads = d_.first.Next(args_.block).spreads;
    const float length = LengthOfModulated(args_.block);
    ForElements(d_.hidden_dim, [&](int i) {
      const float terms = spreads[i] * length, slope = Differentiate(d_.activation, a[i]);
      const SlopeRange near = SlopesOfProbes(i, a[i], terms, slope);
      const float size =
          SizeOfActivation(terms, near.Largest(), a[i], Activate(d_.activation, a[i]));
      ForTangents([&](int r) {
        const float product = At(args_.products, r, i);
        At(args_.inner, r, i) =
            r < args_.rows.probes
                ? near.Carry(product, 0.0F) + Rounding(2 * args_.block + 1, size, r, i)
                : slope * product;
      });
    });
  }

  DEEPPCR_DEVICE void Gated() const {
    const float* const a = PreActivation();
    const float* const gated = args_.tape.Gated(d_, row_, args_.block);
    const float* const gates = Modulation(3 * args_.block + 2);
    const float* const value = Hidden(args_.block + 1);
    const float* const spreads = d_.second.Next(args_.block).spreads;
    const float length =
        LengthFor(d_.hidden_dim, [&](int i) { return Activate(d_.activation, a[i]); });
    ForElements(d_.hidden_dim, [&](int i) {
      AddBranch(i, gates[i], {gates[i], gates[i]}, 2 * args_.block + 2,
                SizeOfBranch(spreads[i] * length, gates[i], gated[i], value[i]));
    });
  }

  DEEPPCR_DEVICE LayerNorm NormBefore(int block) const {
    const float* const h = Hidden(block);
    return NormOf(context_, d_.hidden_dim, d_.norm_epsilon, [&](int i) { return h[i]; });
  }
  // adaLN: u = norm(h) gain + shift before a block, as a function of i.
  DEEPPCR_DEVICE auto Modulated(int block) const {
    const LayerNorm norm = NormBefore(block);
    const float *const h = Hidden(block), *const gain = Modulation(3 * block);
    const float* const shift = Modulation(3 * block + 1);
    return [=](int i) { return fmaf(norm.Of(h[i]), gain[i], shift[i]); };
  }
  DEEPPCR_DEVICE float LengthOfModulated(int block) const {
    return begin_ >= args_.rows.probes ? 0.0F : LengthFor(d_.hidden_dim, Modulated(block));
  }
  // adaLN: inner = the tangents of u, a warp each.
  DEEPPCR_DEVICE void EnterBlock(int block) const {
    if (!d_.ada_ln) return;
    context_.SyncBlock(kBeforeNormTangents);
    const LayerNorm norm = NormBefore(block);
    const float* const h = Hidden(block);
    for (int r = begin_ + context_.warp(); r < end_; r += context_.num_threads() / kWarpSize)
      NormTangent(
          context_, d_.hidden_dim, d_.hidden_width, norm, Modulation(3 * block),
          Rounding(2 * d_.num_blocks + 2 + block, norm.SizeOfMean(), r, 0),
          [&](int i) { return h[i]; }, [&](int i) { return At(args_.hidden, r, i); },
          [&](int i, float value) { At(args_.inner, r, i) = value; });
  }

  DEEPPCR_DEVICE void Reverse() const {
    const ReverseCoefficients& c = step_.coefficients;
    const float *const z = args_.tape.State(d_, row_), *const m = args_.tape.Prediction(d_, row_);
    const float* const next = at_.memory.Propagated(at_.local);
    const float length = LengthOfFeatures();
    ForElements(d_.state_dim, [&](int i) {
      const ReverseTangent tangent(c, BeyondClip(c, d_.clip_range, m[i], z[i]) > 0.0F);
      const ReverseOfProbes probes(c, d_, m[i], z[i], next[i], d_.output.spreads[i] * length);
      ForTangents([&](int r) {
        const float product = args_.products[(first_ + r) * d_.state_cols + i], t = State(r, i);
        State(r, i) = r < args_.rows.probes ? probes.Carry(c, product, t) +
                                                  Rounding(2 * d_.num_blocks + 1, probes.size, r, i)
                                            : fmaf(tangent.by_m, product, tangent.by_z * t);
      });
    });
  }
  // Length of the features, the input of the output layer.
  DEEPPCR_DEVICE float LengthOfFeatures() const {
    if (d_.ada_ln) return LengthOfModulated(d_.num_blocks);
    const float* const h = Hidden(d_.num_blocks);
    return LengthFor(d_.hidden_dim, [&](int i) { return h[i]; });
  }

  DEEPPCR_DEVICE void Take() const {
    const int width = args_.process.width, probes = args_.rows.probes;
    const int32_t leaf = args_.intervals.tree.index_of(0, at_.interval);
    float* const propagated = at_.memory.Propagated(at_.local);
    float* const residual = at_.memory.Residual(leaf);
    ForElements(width, [&](int i) {
      if (begin_ == 0) residual[i] = propagated[i] - at_.EndAt(args_.range.confirmation, i, width);
      ForProbes([&](int r) {
        const int at = (1 + r) * width + i;
        propagated[at] = State(r, i);
        residual[at] = propagated[at];
      });
      float* const row = at_.memory.Matrix(leaf) + int64_t{i} * width;
      for (int r = begin_ < probes ? probes : begin_; r < end_; ++r) row[r - probes] = State(r, i);
      if (args_.rows.columns == 0 || end_ < args_.rows.count()) return;
      for (int j = args_.rows.columns; j < width; ++j) row[j] = 0.0F;
    });
  }

  Context& context_;
  const TangentArgs& args_;
  const DenoiserView& d_;
  const int32_t row_;      // row of the range and of the tape
  const int64_t first_;    // first tangent of the interval
  const int begin_, end_;  // the group, among the interval's tangents
  const BlockInterval at_;
  const StepView step_;
};

// Body of a launch of one block of threads per interval of the range and group of its tangents.
template <class Context>
DEEPPCR_DEVICE void StepTangents(Context& context, const TangentArgs& args) {
  IntervalTangents<Context>(context, args).Run();
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_TANGENT_KERNEL_H_
