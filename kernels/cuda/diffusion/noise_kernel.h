// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_NOISE_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_NOISE_KERNEL_H_

// Preparation of a diffusion solve: the noise of kernels/problem/philox.h, a thread for every four
// normals, and the modulation rows of the steps.

#include <cstdint>

#include "kernels/cuda/diffusion/reverse_step.h"
#include "kernels/cuda/math/activation.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/problem/philox.h"

namespace deeppcr::cuda {

// Source of one sample's noise, written by the host.
struct NoiseSource {
  uint64_t seed, sample;
  int32_t table;             // table of the sample's modulation rows
  bool given_initial_noise;  // the initial noise is in NoiseArgs::initial_noise
  bool given_step_noise;     // the step noise is in NoiseArgs::noise already
};

// Pointers are to device memory.
struct NoiseArgs {
  int32_t num_samples, state_dim, width;  // n, D, W
  int64_t num_steps;                      // L
  float initial_scale;                    // of z_0
  const NoiseSource* sources;             // [n]
  const float* initial_noise;             // [n, D], set where it is given
  float* initial_states;                  // z_0 [n, W], zero beyond D
  float* noise;                           // [n, L, D]
  int32_t* table_of;                      // [n], or null
};

// Body of a launch of enough threads for NoiseThreads(args), or fewer.
constexpr int64_t NoiseThreads(const NoiseArgs& args) {
  return int64_t{args.num_samples} * (args.num_steps + 1) * ((args.state_dim + 3) / 4);
}

// Draws elements 4 quad, ... of z_0.
DEEPPCR_DEVICE void DrawInitialState(const NoiseArgs& args, const NoiseSource& source, int sample,
                                     int quad) {
  const auto normals =
      NormalQuad(source.seed, source.sample, kInitialNoiseStep, static_cast<uint32_t>(quad));
  float* const z = args.initial_states + int64_t{sample} * args.width;
  const float* given = args.initial_noise + int64_t{sample} * args.state_dim;
  for (int i = 4 * quad; i < 4 * quad + 4 && i < args.state_dim; ++i)
    z[i] = args.initial_scale * (source.given_initial_noise ? given[i] : normals[i - 4 * quad]);
  if (quad > 0) return;
  for (int i = args.state_dim; i < args.width; ++i) z[i] = 0.0F;
  if (args.table_of != nullptr) args.table_of[sample] = source.table;
}

template <class Context>
DEEPPCR_DEVICE void DrawNoise(Context& context, const NoiseArgs& args) {
  const int quads = (args.state_dim + 3) / 4;
  const int64_t stride = int64_t{context.num_clusters()} * context.num_threads();
  int64_t at = int64_t{context.cluster()} * context.num_threads() + context.thread();
  for (; at < NoiseThreads(args); at += stride) {
    const int quad = static_cast<int>(at % quads);
    const int64_t row = at / quads, step = row % (args.num_steps + 1) - 1;
    const int sample = static_cast<int>(row / (args.num_steps + 1));
    const NoiseSource source = args.sources[sample];
    if (step < 0) {
      DrawInitialState(args, source, sample, quad);
      continue;
    }
    if (source.given_step_noise) continue;
    const auto normals = NormalQuad(source.seed, source.sample, static_cast<uint32_t>(step),
                                    static_cast<uint32_t>(quad));
    float* const to = args.noise + (sample * args.num_steps + step) * args.state_dim;
    for (int i = 4 * quad; i < 4 * quad + 4 && i < args.state_dim; ++i)
      to[i] = normals[i - 4 * quad];
  }
}

// Modulation rows of y = time embedding + condition: mu = modulation(silu(y)), folded as
// DenoiserView says.
struct ModulationArgs {
  bool ada_ln;
  int32_t hidden_dim, hidden_width, num_blocks;  // H, H', N
  int64_t num_steps;                             // L
  const float* time_embedding;                   // [L, H]
  const float* conditions;                       // [n, H], or null for none
  const float* weights;                          // [parts H, H], row-major
  const float* biases;                           // [parts H]
  const float* norm_weight;                      // [N, H], adaLN only
  const float* norm_bias;                        // [N, H], adaLN only
  float* tables;                                 // [n, L, parts H']

  constexpr int32_t parts() const { return ada_ln ? 3 * num_blocks + 2 : num_blocks; }
};

enum ModulationSite : int { kAfterEmbedding, kAfterRows, kNumModulationSites };

// Turns (shift, scale) of a layer norm with weight and bias, or without, into (gain, shift), in
// place.
DEEPPCR_DEVICE void FoldNorm(const ModulationArgs& args, int block, int i, float* mu) {
  const bool last = block == args.num_blocks;
  float* const first = mu + int64_t{3} * block * args.hidden_width + i;
  const float shift = first[0], scale = 1.0F + first[args.hidden_width];
  const int64_t at = int64_t{block} * args.hidden_dim + i;
  first[0] = last ? scale : args.norm_weight[at] * scale;
  first[args.hidden_width] = last ? shift : fmaf(args.norm_bias[at], scale, shift);
}

// Body of a launch of one block per step and sample, with H floats of shared memory.
template <class Context>
DEEPPCR_DEVICE void ModulateSteps(Context& context, const ModulationArgs& args) {
  const int64_t row = context.cluster(), step = row % args.num_steps, sample = row / args.num_steps;
  const int hidden = args.hidden_dim, warps = context.num_threads() / kWarpSize;
  float* const y = reinterpret_cast<float*>(context.shared());
  for (int i = context.thread(); i < hidden; i += context.num_threads()) {
    const float condition =
        args.conditions == nullptr ? 0.0F : args.conditions[sample * hidden + i];
    y[i] = Activate(Activation::kSilu, args.time_embedding[step * hidden + i] + condition);
  }
  context.SyncBlock(kAfterEmbedding);
  float* const mu = args.tables + row * args.parts() * args.hidden_width;
  for (int r = context.warp(); r < args.parts() * args.hidden_width; r += warps) {
    const int part = r / args.hidden_width, i = r % args.hidden_width;
    const int64_t from = int64_t{part} * hidden + i;
    float sum = 0.0F;
    for (int k = context.lane(); k < hidden && i < hidden; k += kWarpSize)
      sum = fmaf(args.weights[from * hidden + k], y[k], sum);
    for (int mask = kWarpSize / 2; mask > 0; mask /= 2) sum += context.ShuffleXor(sum, mask);
    if (context.lane() == 0) mu[r] = i < hidden ? sum + args.biases[from] : 0.0F;
  }
  context.SyncBlock(kAfterRows);
  for (int i = context.thread(); args.ada_ln && i < hidden; i += context.num_threads())
    for (int block = 0; block <= args.num_blocks; ++block) FoldNorm(args, block, i, mu);
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_NOISE_KERNEL_H_
