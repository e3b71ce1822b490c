// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_DIFFUSION_KERNELS_IMPL_H_
#define DEEPPCR_KERNELS_CPU_DIFFUSION_KERNELS_IMPL_H_

#include "kernels/cpu/diffusion/reverse_step.h"
#include "kernels/cpu/diffusion/tangents.h"
#include "kernels/cpu/simd/normals.h"

namespace deeppcr::cpu::DEEPPCR_CPU_ISA {

// Turns (shift, scale) of a layer norm with weight and bias, or without, into (gain, shift), in
// place.
DEEPPCR_INLINE void FoldNorm(float* mu, int64_t width, const float* weight, const float* bias) {
  ForVectors(width, [&](int64_t at) {
    const Wide shift = LoadWide(mu + at);
    const Wide scale = All(1.0F) + LoadWide(mu + width + at);
    if (weight == nullptr) {
      Store(mu + at, scale);
      Store(mu + width + at, shift);
    } else {
      Store(mu + at, LoadWide(weight + at) * scale);
      Store(mu + width + at, Fma(LoadWide(bias + at), scale, shift));
    }
  });
}

// The parts of mu have the order of DenoiserSpec; the biases of the modulation layer of a residual
// MLP already include the biases of its blocks.
inline void ModulationRows(const ModulationArgs& args) {
  const DenoiserView& d = *args.denoiser;
  const int64_t width = d.hidden_width;
  const int64_t parts = d.modulation_floats / width;
  ForChunks(args.count * width, [&]<int M>(int64_t at) {
    Chunk<M> y = Chunk<M>::Of(args.y + at);
    Activate(Activation::kSilu, y.v);
    y.To(args.y + at);
  });
  for (int64_t part = 0; part < parts; ++part)
    Gemm({.layer = &d.modulation[part],
          .bias = d.modulation[part].bias,
          .in = args.y,
          .out = args.out + part * width,
          .in_stride = width,
          .out_stride = d.modulation_floats,
          .count = args.count});
  for (int64_t r = 0; d.ada_ln && r < args.count; ++r) {
    float* mu = args.out + r * d.modulation_floats;
    for (int64_t i = 0; i < d.num_blocks; ++i)
      FoldNorm(mu + 3 * i * width, width, d.norm_weight + i * width, d.norm_bias + i * width);
    FoldNorm(mu + 3 * d.num_blocks * width, width, nullptr, nullptr);
  }
}

inline void DifferentiateArray(Activation activation, float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += 4) {
    Vec<4> v[1] = {Load<4>(x + i)};
    Differentiate(activation, v);
    Store(x + i, v[0]);
  }
}

inline DenoiserKernels DenoiserTable() {
  return {&Gemm, &Step, &Tangents, &ModulationRows, &DifferentiateArray, &Normals};
}

}  // namespace deeppcr::cpu::DEEPPCR_CPU_ISA

#endif  // DEEPPCR_KERNELS_CPU_DIFFUSION_KERNELS_IMPL_H_
