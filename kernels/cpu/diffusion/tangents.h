// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_DIFFUSION_TANGENTS_H_
#define DEEPPCR_KERNELS_CPU_DIFFUSION_TANGENTS_H_

// Forward mode through one reverse step, apart from the primal pass, so that the primal pass is the
// same with and without tangents.

#include "kernels/cpu/diffusion/hidden_vectors.h"
#include "kernels/cpu/diffusion/panel_gemm.h"
#include "kernels/cpu/diffusion/tape.h"
#include "kernels/cpu/simd/rounding_source.h"
#include "kernels/cpu/simd/slope_near.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// A tile of tangent vectors, rows [first, first + count) of args.tangents.
struct TangentPass {
  const TangentArgs& args;
  const DenoiserView& d;
  int64_t width;  // H'
  int64_t first_row, count;
  float* states;                    // [count, X]
  float *hidden, *product, *inner;  // [count, H'] each
  float* predictions;               // [count, X]

  DEEPPCR_INLINE TangentPass(const TangentArgs& a, int64_t first, int64_t rows)
      : args(a),
        d(*a.denoiser),
        width(a.denoiser->hidden_width),
        first_row(first),
        count(rows),
        states(a.tangents + first * a.denoiser->state_width),
        hidden(a.scratch),
        product(hidden + kTangentTile * width),
        inner(product + kTangentTile * width),
        predictions(inner + kTangentTile * width) {}

  DEEPPCR_INLINE void Run() const {
    Product(*d.input, states, d.state_width, hidden, width);
    ForProbes(
        [&](const Row& row) { AddSource(row, 0, row.tape.InputSize(), hidden + row.at * width); });
    for (int64_t i = 0; i < d.num_blocks; ++i) d.ada_ln ? AdaLnBlock(i) : ResidualBlock(i);
    const float* features = hidden;
    if (d.ada_ln) {
      ForRows([&](const Row& row) { Modulate(row, d.num_blocks); });
      features = inner;
    }
    Product(*d.output, features, width, predictions, d.state_width);
    ForRows([&](const Row& row) { Finish(row); });
  }

 private:
  using Slopes = SlopeRange<kNativeLanes>;
  struct Row {
    int64_t at;     // row in the tile
    int64_t probe;  // -1 for none
    const StepRow& step;
    Tape tape;
  };

  template <class F>
  DEEPPCR_INLINE void ForRows(const F& f) const {
    for (int64_t r = 0; r < count; ++r) {
      const int64_t state = (first_row + r) / args.columns;
      const int64_t column = (first_row + r) % args.columns;
      f(Row{r, column < args.probes ? column : -1, args.rows[state],
            Tape(d, const_cast<float*>(args.tapes) + state * d.tape_floats)});
    }
  }
  template <class F>
  DEEPPCR_INLINE void ForProbes(const F& f) const {
    if (args.probes == 0) return;
    ForRows([&](const Row& row) {
      if (row.probe >= 0) f(row);
    });
  }
  DEEPPCR_INLINE void Product(const PanelView& layer, const float* in, int64_t in_stride,
                              float* out, int64_t out_stride) const {
    SharedGemm(args.sharing, {.layer = &layer,
                              .bias = nullptr,
                              .in = in,
                              .out = out,
                              .in_stride = in_stride,
                              .out_stride = out_stride,
                              .count = count});
  }

  // Rounding that a probe picks up at a place of the network. A step has 3 N + 3 places, whose
  // signs differ.
  DEEPPCR_INLINE Wide Source(const Row& row, int64_t place, Wide size,
                             const uint32_t* seeds) const {
    return RoundingSource(size, seeds, row.step.step * (3 * d.num_blocks + 3) + place);
  }
  DEEPPCR_INLINE void AddSource(const Row& row, int64_t place, const float* sizes, float* x) const {
    const uint32_t* seeds = d.hidden_seeds + row.probe * width;
    ForVectors(width, [&](int64_t at) {
      Store(x + at, LoadWide(x + at) + Source(row, place, LoadWide(sizes + at), seeds + at));
    });
  }

  // Calls f(row, at, slopes, rounding) for the vectors at the activation of block i. Probes, which
  // stand together in the tile, may meet all slopes near the state's slope (SlopeReach).
  template <class F>
  DEEPPCR_INLINE void ThroughActivation(int64_t i, const F& f) const {
    ForRows([&](const Row& row) {
      const float* slope = row.tape.Slope(i);
      if (row.probe < 0)
        return ForVectors(width, [&](int64_t at) {
          const Wide s = LoadWide(slope + at);
          f(row, at, Slopes{s, s}, All(0.0F));
        });
      if (row.probe > 0) return;
      ForVectors(width, [&](int64_t at) {
        const Slopes near = SlopesOfProbes(row, i, at);
        const Wide size = SizeOfActivated(row.tape, i, at, near.Largest());
        for (int64_t v = 0; v < args.probes; ++v) {
          const Row probe = {row.at + v, v, row.step, row.tape};
          f(probe, at, near, Source(probe, 2 * i + 1, size, d.hidden_seeds + v * width + at));
        }
      });
    });
  }
  DEEPPCR_INLINE Slopes SlopesOfProbes(const Row& first, int64_t i, int64_t at) const {
    Wide probe = All(0.0F);
    for (int64_t v = 0; v < args.probes; ++v)
      probe = Max(Abs(LoadWide(product + (first.at + v) * width + at)), probe);
    const Tape& tape = first.tape;
    return SlopesNear(d.activation, All(1.0F), LoadWide(tape.PreActivation(i) + at),
                      LoadWide(tape.Slope(i) + at), ReachOf(LoadWide(tape.Terms(i) + at), probe));
  }
  // Size of the rounding of an activation. The terms count twice in adaLN, where the inputs of the
  // product have been rounded too.
  DEEPPCR_INLINE Wide SizeOfActivated(const Tape& tape, int64_t i, int64_t at, Wide slope) const {
    const Wide a = LoadWide(tape.PreActivation(i) + at), terms = LoadWide(tape.Terms(i) + at);
    const Wide after = LoadWide(tape.Activated(i) + at);
    const Wide before = slope * slope * Fma(terms, d.ada_ln ? terms + terms : terms, a * a);
    return Sqrt(Fma(after, after, before));
  }

  DEEPPCR_INLINE void ResidualBlock(int64_t i) const {
    Product(d.first[i], hidden, width, product, width);
    ThroughActivation(i, [&](const Row& row, int64_t at, const Slopes& slopes, Wide rounding) {
      float* const t = hidden + row.at * width + at;
      Store(t, slopes.Carry(LoadWide(product + row.at * width + at), LoadWide(t)) + rounding);
    });
  }

  DEEPPCR_INLINE void AdaLnBlock(int64_t i) const {
    ForRows([&](const Row& row) { Modulate(row, i); });
    Product(d.first[i], inner, width, product, width);
    ThroughActivation(i, [&](const Row& row, int64_t at, const Slopes& slopes, Wide rounding) {
      float* const p = product + row.at * width + at;
      Store(p, slopes.Carry(LoadWide(p), All(0.0F)) + rounding);
    });
    Product(d.second[i], product, width, inner, width);
    ForRows([&](const Row& row) {
      float* t = hidden + row.at * width;
      const float* p = inner + row.at * width;
      const float* gate = row.step.modulation + (3 * i + 2) * width;
      ForVectors(width, [&](int64_t at) {
        Store(t + at, Fma(LoadWide(gate + at), LoadWide(p + at), LoadWide(t + at)));
      });
      if (row.probe >= 0) AddSource(row, 2 * i + 2, row.tape.OuterSize(i), t);
    });
  }

  // inner <- gain * (the norm's image of the tangent).
  DEEPPCR_INLINE void Modulate(const Row& row, int64_t i) const {
    float* u = inner + row.at * width;
    NormalizeTangent(hidden + row.at * width, row.tape.Normed(i), d.hidden_mask, d.hidden_dim,
                     width, row.tape.InverseDeviation(i), u);
    const float* gain = row.step.modulation + 3 * i * width;
    // The rounding of the mean, which moves all elements alike.
    Wide mean = All(0.0F);
    if (row.probe >= 0)
      mean = All(Source(row, 2 * d.num_blocks + 2 + i, All(row.tape.RelativeMean(i)),
                        d.hidden_seeds + row.probe * width)
                     .v[0]);
    ForVectors(width,
               [&](int64_t at) { Store(u + at, (LoadWide(u + at) + mean) * LoadWide(gain + at)); });
  }

  DEEPPCR_INLINE void Finish(const Row& row) const {
    const ReverseCoefficients& c = *row.step.coefficients;
    float* t = states + row.at * d.state_width;
    const float* prediction = predictions + row.at * d.state_width;
    const ReverseSlopes slopes(c);
    ForVectors(d.state_width, [&](int64_t at) {
      const Wide z = LoadWide(t + at), m = LoadWide(prediction + at);
      const Wide by_z = LoadWide(row.tape.ByState() + at);
      const Wide by_m = LoadWide(row.tape.ByPrediction() + at);
      Wide next = Fma(by_m, m, by_z * z);
      if (row.probe >= 0) {
        // Within `reach` of the clip, a probe may meet both sides.
        const Wide reach = ReachOf(All(0.0F), Abs(Fma(All(c.x0_m), m, All(c.x0_z) * z)));
        const Wide either =
            LargerOf(Fma(slopes.in_m, m, slopes.in_z * z), Fma(slopes.out_m, m, slopes.out_z * z));
        next = SelectGreater(LoadWide(row.tape.FromClip() + at), reach, next, either);
        next = next + Source(row, 2 * d.num_blocks + 1, LoadWide(row.tape.StateSize() + at),
                             d.state_seeds + row.probe * d.state_width + at);
      }
      Store(t + at, And(next, LoadWide(d.state_mask + at)));
    });
  }
};

inline void Tangents(const TangentArgs& args) {
  for (int64_t r = 0; r < args.count; r += kTangentTile) {
    const int64_t left = args.count - r;
    TangentPass(args, r, left < kTangentTile ? left : kTangentTile).Run();
  }
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_DIFFUSION_TANGENTS_H_
