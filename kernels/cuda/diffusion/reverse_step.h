// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_REVERSE_STEP_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_REVERSE_STEP_H_

// THE reverse step of a diffusion model on a GPU, by a team of threads (team.h): every solver takes
// its states through this step, so that states agree bit for bit. The state may bring tangent
// vectors along, probes that pick up the rounding and columns of the Jacobian; the tangents pass
// through each layer together with the state and change nothing about its bits.
//
// view.h defines the network, kernels/problem/reverse_step.h the reverse step.

#include <math.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cuda/diffusion/held_layers.h"
#include "kernels/cuda/diffusion/step_shape.h"
#include "kernels/cuda/diffusion/tangent.h"
#include "kernels/cuda/diffusion/tape.h"
#include "kernels/cuda/diffusion/view.h"
#include "kernels/cuda/math/activation.h"
#include "kernels/cuda/math/layer_norm.h"
#include "kernels/cuda/math/panel_layer.h"
#include "kernels/cuda/math/team.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"
#include "kernels/iteration/pass.h"
#include "kernels/problem/reverse_step.h"

namespace deeppcr::cuda {

template <int S, class Team, StepRowsAre kRows = StepRowsAre::kStateAndTangents,
          class Held = NoHeldLayers>
class DenoiserStep {
 public:
  // `memory`: DenoiserFloats(d, rows) floats of a block's shared memory, aligned to 16 bytes.
  DEEPPCR_DEVICE DenoiserStep(const Team& team, const DenoiserView& d, float* memory, int rows,
                              bool probes)
      : team_(team),
        context_(team.context()),
        d_(d),
        rows_(S == 1 ? 1 : rows),
        probes_(probes ? kNumProbes : 0),
        state_shape_(VectorShape::For(d.state_cols, rows_)),
        shape_(VectorShape::For(d.hidden_width, rows_)),
        sole_(d.hidden_width),
        state_(memory),
        next_(state_ + state_shape_.floats()),
        hidden_(next_ + state_shape_.floats()),
        inner_(hidden_ + shape_.floats()),
        outer_(inner_ + shape_.floats()) {}

  // Takes hold of what lies elsewhere than in global memory: see HeldLayers.
  template <class... Shape>
  DEEPPCR_DEVICE void Hold(float* memory, Shape... shape) {
    held_.Hold(team_, d_, memory, shape...);
  }

  // Makes steps of states write their linearization points for tangents to `tape` from now on.
  DEEPPCR_DEVICE void KeepTape(const DenoiserTape& tape) { tape_ = tape; }

  DEEPPCR_DEVICE int cols() const { return d_.state_cols; }
  // Element i < cols() of row r of the state. Elements beyond D are to be zero.
  DEEPPCR_DEVICE float& State(int r, int i) const { return state_[state_shape_.Place(r, i)]; }

  // Makes one step of all rows. The caller has synchronised the team after writing the state in
  // every block; Run has synchronised it when it returns.
  template <class Steps>
  DEEPPCR_DEVICE void Run(const Steps& steps) {
    Finish(steps, Features(steps));
  }

  // For GuessSample: threads that copy what it reads behind an evaluation, before it begins.
  static constexpr bool kCopiesAhead = false;
  template <class Context>
  DEEPPCR_DEVICE Context& CopyingThreads(Context& context) const {
    return context;
  }
  // Evaluates the denoiser alone: its output for row 0 is Prediction(i), until the next step.
  DEEPPCR_DEVICE void Predict(const StepView& step) {
    const PanelVectors features = {Features(step), shape_, 1};
    ForRows<S, OutputTile, kSquares, Held::template OuterPanels>(
        OutputTeam(), held_.Output(d_), features, LoadOf(d_.output),
        [&](int i, const OfRow& of_row, const auto& p) {
          ForMine(p, [&](int r, float) {
            if (r == 0) team_.Put(&Next(0, i), p.first + of_row.bias);
          });
        });
    CompleteState(kAfterPrediction);
  }
  DEEPPCR_DEVICE float Prediction(int i) const { return Next(0, i); }

  DEEPPCR_DEVICE float Clip(float x0) const { return ClipTo(d_.clip_range, x0); }

 private:
  static constexpr bool kStates = kRows == StepRowsAre::kStates;
  static constexpr Squares kSquares = kStates || S == 1 ? Squares::kNone : Squares::kOfVector;
  // A state alone, its layers in memory: what is held in registers leaves none for places.
  static constexpr bool kSole = kStates && S == 1 && Held::kCount == 0;
  // True if all rows have the same step.
  static constexpr bool kOneStep = !kStates || S == 1;
  // Shares of a product. With columns there is enough to read of the vectors that two panels should
  // share it, and all probes are in the first part. The output layer has few panels: its parts are
  // small enough for all warps to have one.
  static constexpr bool kColumns = !kStates && S > 1 + kNumProbes;
  using AllVectors = PanelTile<Held::kStatePanels, 1, kStates && (S > 1)>;
  using Tile = std::conditional_t<kColumns, PanelTile<2, S <= 21 ? 2 : 6>, AllVectors>;
  using OutputTile =
      std::conditional_t<S == 1, AllVectors, PanelTile<1, kColumns ? 8 : 4, kStates>>;

  // Features, the input of the output layer.
  template <class Steps>
  DEEPPCR_DEVICE const float* Features(const Steps& steps) {
    InputLayer(steps);
    HeldBlocks(steps, std::make_integer_sequence<int, Held::kCount>());
    if constexpr (Held::kAdaLn) {
      if (d_.ada_ln) return AdaLnFeatures(steps);
    }
    StreamedBlocks(steps);
    return hidden_;
  }

  // Team of the output layer, of fewer rows than the others.
  DEEPPCR_DEVICE Team OutputTeam() const {
    if constexpr (kSole) {
      return team_.FromLast(d_.output.rows / kPanelRows);
    } else {
      return team_;
    }
  }
  // Waits until a hidden vector, or the next state, is in all blocks. Where there are several rows
  // a team needs no places to know what that is, and no reference to them: it would cost the
  // resident kernels registers.
  DEEPPCR_DEVICE void CompleteHidden(int site, float* vectors) const {
    if constexpr (kSole) {
      team_.Complete(site, vectors, sole_);
    } else {
      team_.Sync(site);
    }
  }
  DEEPPCR_DEVICE void CompleteState(int site) const {
    if constexpr (kSole) {
      team_.Complete(site, next_, state_shape_);
    } else {
      team_.Sync(site);
    }
  }
  // Mean and inverse deviation of a state alone.
  DEEPPCR_DEVICE float* Norm() const { return outer_ + shape_.floats(); }
  template <class Steps>
  DEEPPCR_DEVICE const float* AdaLnFeatures(const Steps& steps) {
    for (int i = 0; i < d_.num_blocks; ++i) AdaLnBlock(steps, i);
    Modulate(steps, d_.num_blocks);
    return inner_;
  }
  DEEPPCR_DEVICE float& Next(int r, int i) const { return next_[state_shape_.Place(r, i)]; }
  DEEPPCR_DEVICE float& At(float* vectors, int r, int i) const {
    if constexpr (kSole) {
      return vectors[sole_.Place(r, i)];
    } else {
      return vectors[shape_.Place(r, i)];
    }
  }
  DEEPPCR_DEVICE bool IsProbe(int r) const { return r >= 1 && r <= probes_; }
  // What a layer has for each row of its matrix.
  struct OfRow {
    float bias, spread;
  };
  // The same of a layer of a residual block, where all rows have one step.
  struct OfBlockRow {
    float modulation, spread;
  };
  struct OfGatedRow {
    float bias, spread, gate;
  };
  static DEEPPCR_DEVICE auto LoadOf(const PanelLayer& layer) {
    return [&layer](int i) { return OfRow{layer.bias[i], layer.spreads[i]}; };
  }
  DEEPPCR_DEVICE PanelVectors HiddenVectors(const float* at) const { return {at, shape_, rows_}; }
  // Calls f(r, sum) for the rows that this lane has of a product.
  template <int N, class F>
  DEEPPCR_DEVICE void ForMine(const PanelSums<N>& p, const F& f) const {
    p.ForMine(context_.lane(), rows_, f);
  }
  // Writes to the tape where rows are states.
  DEEPPCR_DEVICE float KeepHidden(int r, int block, int i, float value) const {
    if (kStates && tape_.keeps()) tape_.Hidden(d_, r, block)[i] = value;
    return value;
  }
  DEEPPCR_DEVICE float KeepPreActivation(int r, int block, int i, float value) const {
    if (kStates && tape_.keeps()) tape_.PreActivation(d_, r, block)[i] = value;
    return value;
  }
  DEEPPCR_DEVICE float KeepGated(int r, int block, int i, float value) const {
    if (kStates && tape_.keeps()) tape_.Gated(d_, r, block)[i] = value;
    return value;
  }
  DEEPPCR_DEVICE void KeepReverse(int r, int i, float m) const {
    if (!tape_.keeps()) return;
    tape_.State(d_, r)[i] = State(r, i);
    tape_.Prediction(d_, r)[i] = m;
  }
  // Writes element i of a layer's output where all rows are states: f(r, sum).
  template <int N, class F>
  DEEPPCR_DEVICE void WriteStates(int i, float* to, const PanelSums<N>& p, const F& f) const {
    const bool real = i < d_.hidden_dim;
    ForMine(p, [&](int r, float sum) { team_.Put(&At(to, r, i), real ? f(r, sum) : 0.0F); });
  }
  // Writes element i of a layer's output for a state and its tangents: `first` for the state,
  // f(r, sum) for the tangents; adds the rounding to the probes.
  template <int N, class F>
  DEEPPCR_DEVICE void WriteRows(const StepView& step, int place, float size, int i, float* to,
                                const PanelSums<N>& p, float first, const F& f) const {
    const bool real = i < d_.hidden_dim;
    ForMine(p, [&](int r, float sum) {
      float value = r == 0 ? first : f(r, sum);
      if (IsProbe(r)) value += RoundingAt(d_, step.draw, place, size, r - 1, i);
      team_.Put(&At(to, r, i), real ? value : 0.0F);
    });
  }

  // Slope of the activation at a, and the range of slopes near a, which probes may meet.
  struct Slopes {
    float of_columns = 0.0F;
    SlopeRange of_probes;

    template <int N>
    DEEPPCR_DEVICE Slopes(const DenoiserStep& step, float a, float terms, const PanelSums<N>& p) {
      const Activation activation = step.d_.activation;
      if constexpr (N > kNumProbes) {
        if (step.probes_ > 0 && p.skipped == 0) {
          const float reach = ReachOf(terms, LargestProbe(step.context_, p, step.probes_));
          const SlopesOfRow slopes(step.context_, activation, 1.0F, a, reach);
          of_columns = slopes.slope;
          of_probes = slopes.near;
          return;
        }
      }
      if (step.rows_ > 1) of_columns = Differentiate(activation, a);
    }
    DEEPPCR_DEVICE float Carry(bool probe, float product, float beside) const {
      return probe ? of_probes.Carry(product, beside) : fmaf(of_columns, product, beside);
    }
  };

  template <class Steps>
  DEEPPCR_DEVICE void InputLayer(const Steps& steps) {
    const PanelVectors vectors = {state_, state_shape_, rows_};
    ForRows<S, Tile, kSquares, Held::template OuterPanels>(
        team_, held_.Input(d_), vectors, LoadOf(d_.input),
        [&](int i, const OfRow& of_row, const auto& p) {
          const auto state = [&](int r, float sum) {
            return KeepHidden(r, 0, i, sum + of_row.bias);
          };
          if constexpr (kStates) return WriteStates(i, hidden_, p, state);
          const float value = state(0, p.first);
          const float size = SizeOfSum(of_row.spread * sqrtf(p.squares), value);
          WriteRows(steps.Row(0), 0, size, i, hidden_, p, value,
                    [](int, float sum) { return sum; });
        });
    CompleteHidden(kAfterInputLayer, hidden_);
  }

  // Residual blocks that hold their layers; the other blocks follow.
  template <class Steps, int... kBlocks>
  DEEPPCR_DEVICE void HeldBlocks(const Steps& steps, std::integer_sequence<int, kBlocks...>) {
    (HeldBlock<kBlocks>(steps), ...);
  }
  template <int kBlock, class Steps>
  DEEPPCR_DEVICE void HeldBlock(const Steps& steps) {
    if (kBlock >= d_.num_blocks) return;
    ResidualBlock(steps, kBlock, d_.first.Next(kBlock), [&](const auto& load, const auto& f) {
      if (team_.warp() >= d_.hidden_width / kPanelRows) return;
      const int row = team_.warp() * kPanelRows + context_.lane() / kSegments;
      const auto loaded = load(row);
      f(row, loaded, MultiplyHeld(context_, held_.layers[kBlock], HiddenVectors(hidden_)));
    });
  }
  template <class Steps>
  DEEPPCR_DEVICE void StreamedBlocks(const Steps& steps) {
    if constexpr (kOneStep) {
      for (int b = Held::kCount; b < d_.num_blocks; ++b) {
        const PanelLayer layer = held_.First(d_, b);
        ResidualBlock(steps, b, layer, [&](const auto& load, const auto& f) {
          ForRows<S, Tile, kSquares, Held::template Panels>(team_, layer, HiddenVectors(hidden_),
                                                            load, f);
        });
      }
    } else {
      OfStates<const float*> modulations = {};
      ForStates([&](int q, int r) { modulations.at[q] = steps.Row(r).modulation; });
      for (int b = 0; b < d_.num_blocks; ++b) BlockOfStates(b, modulations);
    }
  }
  // What a lane has for each state of which it has sums.
  static constexpr int kQuads = (S + kSegments - 1) / kSegments;
  template <class T>
  struct OfStates {
    T at[kQuads];
  };
  // Calls f(q, r) for these states: r is the q-th.
  template <class F>
  DEEPPCR_DEVICE void ForStates(const F& f) const {
    DEEPPCR_UNROLL
    for (int q = 0; q < kQuads; ++q) {
      const int r = kSegments * q + context_.lane() % kSegments;
      if (r < rows_) f(q, r);
    }
  }
  // ResidualBlock where each row is a state with a step of its own. A lane makes its activations
  // together.
  DEEPPCR_DEVICE void BlockOfStates(int block, const OfStates<const float*>& modulations) {
    constexpr int P = Tile::kPanels;
    const PanelLayer layer = d_.first.Next(block);
    const auto load = [&](int i) {
      OfStates<float> of_row = {};
      ForStates([&](int q, int) { of_row.at[q] = modulations.at[q][block * d_.hidden_width + i]; });
      return of_row;
    };
    ForTiles<S, Tile, kSquares, Held::template Panels>(
        team_, layer, HiddenVectors(hidden_), load,
        [&](int row, const auto& modulation, const auto& sums) {
          float a[P * kQuads], branches[P * kQuads];
          DEEPPCR_UNROLL
          for (int p = 0; p < P; ++p) {
            const auto of_row = sums(p);
            DEEPPCR_UNROLL
            for (int q = 0; q < kQuads; ++q)
              branches[p * kQuads + q] = a[p * kQuads + q] = of_row.mine[q] + modulation[p].at[q];
          }
          ActivateAll(d_.activation, branches);
          ForStates([&](int q, int r) {
            DEEPPCR_UNROLL
            for (int p = 0; p < P; ++p) {
              const int i = row + p * kPanelRows;
              KeepPreActivation(r, block, i, a[p * kQuads + q]);
              const float value =
                  KeepHidden(r, block + 1, i, At(hidden_, r, i) + branches[p * kQuads + q]);
              team_.Put(&At(inner_, r, i), i < d_.hidden_dim ? value : 0.0F);
            }
          });
        });
    CompleteHidden(kAfterResidualBlock, inner_);
    SwapHidden();
  }
  // What a block has written to inner_ is the hidden vectors of the next block.
  DEEPPCR_DEVICE void SwapHidden() {
    float* const read = hidden_;
    hidden_ = inner_;
    inner_ = read;
  }
  // h <- h + act(first h + mu), where for_rows(f) gives the sums of first h.
  template <class Steps, class ForLayerRows>
  DEEPPCR_DEVICE void ResidualBlock(const Steps& steps, int block, const PanelLayer& layer,
                                    const ForLayerRows& for_rows) {
    const auto load = [&](int i) {
      return OfBlockRow{steps.Row(0).modulation[block * d_.hidden_width + i], layer.spreads[i]};
    };
    for_rows(load, [&](int i, const OfBlockRow& of_row, const auto& p) {
      const auto state = [&](int r, float sum) {
        const float a = KeepPreActivation(r, block, i, sum + of_row.modulation);
        return KeepHidden(r, block + 1, i, At(hidden_, r, i) + Activate(d_.activation, a));
      };
      if constexpr (kStates) return WriteStates(i, inner_, p, state);
      const float a = p.first + of_row.modulation, value = state(0, p.first);
      const float terms = of_row.spread * sqrtf(p.squares);
      const Slopes slopes(*this, a, terms, p);
      const float size = SizeOfBranch(terms, slopes.of_probes.Largest(), a, value);
      WriteRows(steps.Row(0), 2 * block + 1, size, i, inner_, p, value, [&](int r, float product) {
        return slopes.Carry(IsProbe(r), product, At(hidden_, r, i));
      });
    });
    CompleteHidden(kAfterResidualBlock, inner_);
    SwapHidden();
  }

  // h <- h + gate (second act(first u)), u = norm(h) gain + shift.
  template <class Steps>
  DEEPPCR_DEVICE void AdaLnBlock(const Steps& steps, int block) {
    Modulate(steps, block);
    InnerLayer(steps, block);
    OuterLayer(steps, block);
  }
  template <class Steps>
  DEEPPCR_DEVICE void InnerLayer(const Steps& steps, int block) {
    const PanelLayer layer = held_.First(d_, block);
    ForRows<S, Tile, kSquares, Held::template AdaLnPanels>(
        team_, layer, HiddenVectors(inner_), LoadOf(layer),
        [&](int i, const OfRow& of_row, const auto& p) {
          const auto state = [&](int r, float sum) {
            return Activate(d_.activation, KeepPreActivation(r, block, i, sum + of_row.bias));
          };
          if constexpr (kStates) return WriteStates(i, outer_, p, state);
          const float a = p.first + of_row.bias, value = state(0, p.first);
          const float terms = of_row.spread * sqrtf(p.squares);
          const Slopes slopes(*this, a, terms, p);
          const float size = SizeOfActivation(terms, slopes.of_probes.Largest(), a, value);
          WriteRows(steps.Row(0), 2 * block + 1, size, i, outer_, p, value,
                    [&](int r, float product) { return slopes.Carry(IsProbe(r), product, 0.0F); });
        });
    CompleteHidden(kAfterInnerLayer, outer_);
  }
  template <class Steps>
  DEEPPCR_DEVICE void OuterLayer(const Steps& steps, int block) {
    const PanelLayer layer = held_.Second(d_, block);
    const int gates = (3 * block + 2) * d_.hidden_width;  // place in the modulation
    // To where the modulated vectors were: of row 0 every part reads what is not yet replaced.
    const auto load = [&](int i) {
      const float gate = kOneStep ? steps.Row(0).modulation[gates + i] : 0.0F;
      return OfGatedRow{layer.bias[i], layer.spreads[i], gate};
    };
    ForRows<S, Tile, kSquares, Held::template AdaLnPanels>(
        team_, layer, HiddenVectors(outer_), load,
        [&](int i, const OfGatedRow& of_row, const auto& p) {
          const auto gate_of = [&](int r) {
            return kOneStep ? of_row.gate : steps.Row(r).modulation[gates + i];
          };
          const auto state = [&](int r, float sum) {
            const float gated = KeepGated(r, block, i, sum + of_row.bias);
            return KeepHidden(r, block + 1, i, fmaf(gate_of(r), gated, At(hidden_, r, i)));
          };
          if constexpr (kStates) return WriteStates(i, inner_, p, state);
          const float gate = gate_of(0), branch_sum = p.first + of_row.bias;
          const float value = state(0, p.first);
          const float size =
              SizeOfBranch(of_row.spread * sqrtf(p.squares), gate, branch_sum, value);
          WriteRows(steps.Row(0), 2 * block + 2, size, i, inner_, p, value,
                    [&](int r, float product) { return fmaf(gate, product, At(hidden_, r, i)); });
        });
    CompleteHidden(kAfterOuterLayer, inner_);
    SwapHidden();
  }

  DEEPPCR_DEVICE LayerNorm NormOfSoleRow() const {
    return NormOfLanes(context_, d_.hidden_dim, d_.norm_epsilon, [&](const auto& f) {
      sole_.ForLanes(context_.lane(), d_.hidden_dim, hidden_, f);
    });
  }
  DEEPPCR_DEVICE LayerNorm NormOfRow(int r) const {
    return NormOf(context_, d_.hidden_dim, d_.norm_epsilon,
                  [&](int i) { return At(hidden_, r, i); });
  }
  // Calls f(r) for every row, a warp each.
  template <class F>
  DEEPPCR_DEVICE void ForWarpRows(const F& f) const {
    for (int r = context_.warp(); r < rows_; r += context_.num_threads() / kWarpSize) f(r);
  }

  // inner <- norm(hidden) gain + shift, and its tangents, in each block on its own. For tangents
  // every warp forms the norm of the state on its own.
  template <class Steps>
  DEEPPCR_DEVICE void Modulate(const Steps& steps, int block) {
    const int gains = 3 * block * d_.hidden_width, shifts = gains + d_.hidden_width;
    const auto write_state = [&](int r, const LayerNorm& norm) {
      const float* const modulation = steps.Row(r).modulation;
      for (int i = context_.lane(); i < d_.hidden_width; i += kWarpSize) {
        const float n = norm.Of(At(hidden_, r, i));
        const float value = fmaf(n, modulation[gains + i], modulation[shifts + i]);
        At(inner_, r, i) = i < d_.hidden_dim ? value : 0.0F;
      }
    };
    if constexpr (kSole) {
      constexpr int kLineFloats = 32;
      for (int i = context_.thread() * kLineFloats; i < 2 * d_.hidden_width;
           i += context_.num_threads() * kLineFloats)
        context_.Prefetch(steps.Row(0).modulation + gains + i);
      if (context_.warp() == 0) {
        const LayerNorm norm = NormOfSoleRow();
        Norm()[0] = norm.mean;
        Norm()[1] = norm.inverse;
      }
      context_.SyncBlock(kAfterNorm);
      WriteModulated({Norm()[0], Norm()[1]}, steps.Row(0).modulation + gains);
    } else if constexpr (kStates) {
      ForWarpRows([&](int r) { write_state(r, NormOfRow(r)); });
    } else {
      const LayerNorm norm = NormOfRow(0);
      const float* const gain = steps.Row(0).modulation + gains;
      ForWarpRows([&](int r) {
        if (r == 0) return write_state(0, norm);
        NormTangent(
            context_, d_.hidden_dim, d_.hidden_width, norm, gain,
            IsProbe(r) ? RoundingAt(d_, steps.Row(0).draw, 2 * d_.num_blocks + 2 + block,
                                    norm.SizeOfMean(), r - 1, 0)
                       : 0.0F,
            [&](int i) { return At(hidden_, 0, i); }, [&](int i) { return At(hidden_, r, i); },
            [&](int i, float value) { At(inner_, r, i) = value; });
      });
    }
    context_.SyncBlock(kAfterModulation);
  }

  // inner <- norm(hidden) gain + shift of a state alone, four elements a thread; shifts are behind
  // gains.
  DEEPPCR_DEVICE void WriteModulated(const LayerNorm& norm, const float* gains) const {
    for (int i = 4 * context_.thread(); i < d_.hidden_width; i += 4 * context_.num_threads()) {
      float h[4], gain[4], shift[4];
      context_.LoadFour(&At(hidden_, 0, i), h);
      context_.LoadConstants(gains + i, gain);
      context_.LoadConstants(gains + d_.hidden_width + i, shift);
      DEEPPCR_UNROLL
      for (int k = 0; k < 4; ++k)
        h[k] = i + k < d_.hidden_dim ? fmaf(norm.Of(h[k]), gain[k], shift[k]) : 0.0F;
      context_.StoreFour(h, &At(inner_, 0, i));
    }
  }

  // z_z z + z_m m + z_x0 clip(x0_z z + x0_m m) + sigma noise, of element i.
  DEEPPCR_DEVICE float Reverse(const StepView& step, int i, float m, float old) const {
    const ReverseCoefficients& c = step.coefficients;
    const float x0 = Clip(fmaf(c.x0_m, m, c.x0_z * old));
    const float next = fmaf(c.z_x0, x0, fmaf(c.z_m, m, c.z_z * old));
    return step.noise != nullptr && i < d_.state_dim ? fmaf(c.sigma, step.noise[i], next) : next;
  }

  // Makes the reverse step of every row.
  template <class Steps>
  DEEPPCR_DEVICE void Finish(const Steps& steps, const float* features) {
    ForRows<S, OutputTile, kSquares, Held::template OuterPanels>(
        OutputTeam(), held_.Output(d_), HiddenVectors(features), LoadOf(d_.output),
        [&](int i, const OfRow& of_row, const auto& p) {
          if constexpr (kStates)
            return ForMine(p, [&](int r, float sum) {
              const float m = sum + of_row.bias;
              const float next = Reverse(steps.Row(r), i, m, State(r, i));
              KeepReverse(r, i, m);
              team_.Put(&Next(r, i), i < d_.state_dim ? next : 0.0F);
            });
          FinishTangents(steps.Row(0), i, of_row, p);
        });
    CompleteState(kAfterReverseStep);
    float* const read = state_;
    state_ = next_;
    next_ = read;
  }
  // Makes the reverse step of a state and its tangents.
  template <int N>
  DEEPPCR_DEVICE void FinishTangents(const StepView& step, int i, const OfRow& of_row,
                                     const PanelSums<N>& p) const {
    const ReverseCoefficients& c = step.coefficients;
    const float m = p.first + of_row.bias, old = State(0, i);
    const float next = Reverse(step, i, m, old);
    const ReverseTangent tangent(c, BeyondClip(c, d_.clip_range, m, old) > 0.0F);
    const ReverseOfProbes probes(c, d_, m, old, next, of_row.spread * sqrtf(p.squares));
    ForMine(p, [&](int r, float product) {
      const float t = State(r, i);
      float value = r == 0 ? next : fmaf(tangent.by_m, product, tangent.by_z * t);
      if (IsProbe(r))
        value = probes.Carry(c, product, t) +
                RoundingAt(d_, step.draw, 2 * d_.num_blocks + 1, probes.size, r - 1, i);
      team_.Put(&Next(r, i), i < d_.state_dim ? value : 0.0F);
    });
  }
  const Team team_;
  typename Team::Context& context_;
  const DenoiserView& d_;
  const int rows_;
  const int probes_;
  const VectorShape state_shape_, shape_;
  struct NoPlaces {
    explicit constexpr NoPlaces(int) {}
  };
  const std::conditional_t<kSole, SolePlaces, NoPlaces> sole_;
  float *state_, *next_;             // of state_shape_
  float *hidden_, *inner_, *outer_;  // of shape_
  DenoiserTape tape_;
  Held held_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_REVERSE_STEP_H_
