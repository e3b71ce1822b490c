// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_DIFFUSION_KERNELS_H_
#define DEEPPCR_KERNELS_CPU_DIFFUSION_KERNELS_H_

// The CPU kernels of the diffusion family as a table of functions, one table per instruction set.
// Plain structs only, for the reason given in kernels/cpu/kernels.h.
//
// Layout. A row is one vector, padded with zeros to 16, 32, 64 or a multiple of 64 floats
// (PanelRowWidth in kernels/cpu/diffusion/packed_panels.h): X floats for a state, H' for a hidden
// vector. The padding may be wider than the PaddedWidth of the rest of the backend, so that every
// kernel works on full vectors of the machine and none is needed per width.

#include <cstdint>

#include "kernels/cpu/kernels.h"
#include "kernels/problem/activation.h"
#include "kernels/problem/reverse_step.h"

namespace deeppcr::cpu {

// A matrix cut into panels of as many outputs as accumulators hold. Inputs are padded with zero
// weights to a multiple of 4: `cols` floats of an input row are read, and must be finite.
struct PanelView {
  int64_t rows;          // outputs
  int64_t cols;          // inputs, padded
  int64_t panel;         // 16, 32 or 64
  int64_t width;         // floats of an output row
  const float* weights;  // [width / panel, cols, panel]
  const float* bias;     // [width]
  const float* spreads;  // [width]: size of the rounding of a product, of an input of length 1
};

// Threads that share products (kernels/base/team.h), as plain functions: does piece(context, i, n)
// for the shares i = 0..n-1 of a product, whichever n <= most it takes.
struct Sharing {
  void (*share)(void* team, void (*piece)(void* context, int64_t share, int64_t shares),
                void* context, int64_t most);
  void* team;
};

// Multiply-adds from which a product is worth sharing: some 5 us, where handing it over and waiting
// for the last share take half of one (measured on Zen 4, two cores).
inline constexpr int64_t kSharedProduct = int64_t{1} << 18;

// out_r = bias + W in_r, r = 0..count-1. The bits of a row depend neither on `count` nor on r.
struct GemmArgs {
  const PanelView* layer;
  const float* bias;  // [width], or null for none
  const float* in;
  float* out;
  int64_t in_stride, out_stride;
  int64_t count;
  // Panels [begin, end) of the outputs; all of them where end is 0.
  int64_t begin_panel = 0, end_panel = 0;
};

// A denoiser: DenoiserSpec in kernels/problem/spec.h.
//
// A modulation row holds, for one step (and condition), H' floats each:
//   residual MLP  per block: the bias of its layer plus its part of mu
//   adaLN MLP     per block: gain  = norm weight (1 + scale)
//                            shift = norm bias (1 + scale) + shift
//                            gate
//                 at the end: gain = 1 + scale, shift
struct DenoiserView {
  bool ada_ln;  // else residual MLP
  Activation activation;
  int64_t state_width;   // X
  int64_t hidden_dim;    // H
  int64_t hidden_width;  // H'
  int64_t num_blocks;    // N
  int64_t modulation_floats;
  int64_t tape_floats;           // floats of a row's Tape in kernels/cpu/diffusion/tape.h
  const PanelView* input;        // [1]
  const PanelView* output;       // [1]
  const PanelView* first;        // [N]; the bias of a residual MLP is in the modulation
  const PanelView* second;       // [N], adaLN only
  const PanelView* modulation;   // [modulation parts] of H rows each
  const float* norm_weight;      // [N, H'], adaLN only
  const float* norm_bias;        // [N, H'], adaLN only
  const float* state_mask;       // [X]: all ones in the first D lanes, else zero bits
  const float* hidden_mask;      // [H']: all ones in the first H lanes, else zero bits
  const uint32_t* state_seeds;   // [4, X]: seeds of the probes
  const uint32_t* hidden_seeds;  // [4, H']
  float clip_range;              // may be infinite
  float norm_epsilon;
};

// Rows of a tape per block (Tape in kernels/cpu/diffusion/tape.h), and rows for its states.
inline constexpr int kResidualTapeRows = 4;
inline constexpr int kAdaLnTapeRows = 6;
inline constexpr int kStateTapeRows = 4;

// Data that one row of a reverse step needs beside its state.
struct StepRow {
  const ReverseCoefficients* coefficients;
  const float* modulation;
  const float* noise;  // [X], or null where sigma is 0
  int64_t step;        // 0-based; gives the signs of the rounding probes
};

struct StepArgs {
  const DenoiserView* denoiser;
  const StepRow* rows;  // [count]
  int64_t count;
  float* states;       // [count, X]: z, then z'
  float* predictions;  // [count, X]: receives the denoiser's output m
  float* scratch;      // [3, count, H']
  float* tapes;        // [count, tape_floats]: receives the Tape for tangents, or null
  bool sizes;          // tapes include the sizes of the rounding errors
  const Sharing* sharing = nullptr;  // null: one thread
};

// Tangent vectors through the step that wrote the tapes: row r of `tangents` belongs to row
// r / columns of the step; the first `probes` of its columns pick up the rounding of the step.
struct TangentArgs {
  const DenoiserView* denoiser;
  const StepRow* rows;  // [count / columns]
  const float* tapes;
  int64_t count;
  int64_t columns;
  int64_t probes;                    // 0 or kColumns - 1
  float* tangents;                   // [count, X], in and out
  float* scratch;                    // [kTangentTile, 3 H' + X]
  const Sharing* sharing = nullptr;  // null: one thread
};

// Tangent vectors that pass through the network together, so that memory is bounded for any D.
inline constexpr int kTangentTile = 96;

// Modulation rows of `count` vectors y.
struct ModulationArgs {
  const DenoiserView* denoiser;
  float* y;  // [count, H']: time embedding + condition; overwritten
  int64_t count;
  float* out;  // [count, modulation_floats]
};

// Normals of kernels/problem/philox.h of one sample: elements 0 to 4 quads - 1 of step
// first_step + i go to out + i stride. At most 2^32 steps, counted from 0.
struct NormalsArgs {
  uint64_t seed, sample;
  uint32_t first_step;
  int64_t num_steps;
  int64_t quads;
  float* out;
  int64_t stride;  // at least 4 quads
};

struct DenoiserKernels {
  void (*gemm)(const GemmArgs& args);
  void (*step)(const StepArgs& args);
  void (*tangents)(const TangentArgs& args);
  void (*modulate)(const ModulationArgs& args);
  // x[i] <- act'(x[i]); count is a multiple of 4.
  void (*differentiate)(Activation activation, float* x, int64_t count);
  // Draws normals; false where some normals may not have the bits of philox.h.
  bool (*normals)(const NormalsArgs& args);
};

DenoiserKernels DenoiserKernelsBaseline();
DenoiserKernels DenoiserKernelsAvx2();
DenoiserKernels DenoiserKernelsAvx512();

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_DIFFUSION_KERNELS_H_
