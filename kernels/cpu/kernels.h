// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_KERNELS_H_
#define DEEPPCR_KERNELS_CPU_KERNELS_H_

// The CPU kernels as a table of functions, one table per instruction set and padded width. Plain
// structs only: this header is included by translation units that are compiled for a newer machine
// than the one they may run on.
//
// Layout. Vectors are padded with zeros to W floats. Matrices are column-major: column k is the
// image of unit vector k, W floats, so that  M v = sum_k column_k v_k  serves layers (weights),
// tangents and tree products alike.

#include <cstdint>

#include "kernels/problem/activation.h"

namespace deeppcr::cpu {

// Vectors that travel through an interval together: the state, then the probes.
inline constexpr int kColumns = 5;
// Column that keeps a state while a tried state is in its place (beside kUpdateColumn, kBallColumn
// and kRoundingColumn).
inline constexpr int kKeptColumn = 3;
// Samples that the sequential kernel of stacks advances together.
inline constexpr int kSequentialGroup = 8;

// A packed system.
struct LayersView {
  int64_t num_steps;            // L
  int64_t state_dim;            // D
  int64_t width;                // W >= D
  const float* weights;         // [L, W (column), W]
  const float* biases;          // [L, W]
  const float* lane_mask;       // [W]: all ones in the first D lanes, else zero bits
  const uint32_t* probe_seeds;  // [4, W]
  float scale;                  // scale of the residual branch
  bool residual;
  Activation activation;
};

// Activations whose slopes are known from the sides of their kinks on which the units are.
constexpr bool SideGivesSlope(Activation activation) {
  return activation == Activation::kRelu || activation == Activation::kLeakyRelu;
}
// Bytes of the sides of a layer: bit i is set where the pre-activation of unit i is above zero.
__attribute__((always_inline)) constexpr int64_t SideBytes(int64_t width) {
  return width < 8 ? 1 : width / 8;
}

// What steps leave behind, by sample. Either may be null.
struct Traces {
  float* const* states = nullptr;   // z_l at l D; those of a sample may be null
  uint8_t* const* sides = nullptr;  // of layer l, counted from 0, at l SideBytes(W)
};

// Propagation of one sample through intervals.
struct PropagateArgs {
  LayersView layers;
  int64_t interval;        // C
  int64_t first_interval;  // first interval to propagate, in [0, end_interval)
  int64_t end_interval;    // one behind the last interval, in [1, P]
  const float* states;     // [P + 1, kColumns, W]: y_p, and columns that are not read here
  float* propagated;       // [P, kColumns, W]: F_p and its probes, which start as zeros
  float* jacobians;  // [P, W (column), W], or [P, W] if diagonal, or null to leave them as they are
  float* scratch;    // [2 (W + kColumns) + 4, W]
  bool diagonal;
  bool probes;
  int64_t draw;  // see DrawOfSigns
};

// out_j = M in_j, plus base_j where base is not null; j = 0..count-1; all [.., W] with the given
// strides.
struct ApplyArgs {
  int64_t width;
  int64_t inner;        // columns of M that are not padding: D
  const float* matrix;  // [W (column), W], or [W] if diagonal, or null for the identity
  const float* in;
  const float* base;  // may be null
  float* out;
  int64_t in_stride, base_stride, out_stride;
  int64_t count;
  bool diagonal;
};

struct IntervalNorms {
  double update, rounding, combined, share;
  bool finite;
};

// y <- F + A d for all intervals of one sample (see IterationPasses::Update).
struct UpdateArgs {
  int64_t width;  // W
  int64_t inner;  // D
  int64_t num_intervals;
  float* states;           // [P + 1, kColumns, W], in and out; kKeptColumn: see `confirms`
  float* propagated;       // [P, kColumns, W], overwritten by F + A d
  const float* jacobians;  // as in PropagateArgs, or null for identity
  const float* prefix;     // [P, kColumns, W]: d_{p-1}, or null for none (Jacobi)
  double floor;
  bool diagonal;
  bool probes;
  bool more_probes;  // take those of kRoundingColumn in, too
  bool confirms;     // put back the states of kKeptColumn instead
};

// Cotangents of samples of one stack through steps end, end - 1, .., begin + 1, at known states.
struct RetreatArgs {
  LayersView layers;
  const float* transposed;  // [L, W (column), W]: column k of a layer is row k of its weights
  const float* zeros;       // [W]
  int64_t begin, end;
  int64_t samples, columns;
  const float* const* states;   // by sample: z_0.. [L + 1, D]
  const uint8_t* const* sides;  // by sample, as in Traces, in place of states; may be null
  float* g;                     // [samples, columns, W], in and out
  float* const* deltas;         // by sample [L, D], or null, where columns == 1; may be null
  float* scratch;               // RetreatScratchFloats
};
// Layers whose states are taken together, and whose slopes are computed together, as they do not
// depend on the cotangents; of one cotangent in registers the slopes are computed beside it.
inline constexpr int64_t kSlopesAhead = 8;
constexpr int64_t RetreatScratchFloats(int64_t width, int64_t samples, int64_t columns) {
  return (2 * kSlopesAhead * samples + samples * columns) * width;
}

// Outer products of vectors of several samples, summed one sample after another:
//   matrix [rows, cols], row-major, += x_b y_b^T,  bias [rows] += x_b,  b = 0..samples-1,
// x_b at x[b] + x_offset, y_b at y[b] + y_offset, of any rows, cols >= 1 and samples >= 0. matrix
// and bias may be null; they overlap neither one another nor any x or y.
struct OuterArgs {
  int64_t samples, rows, cols;
  const float* const* x;
  const float* const* y;
  int64_t x_offset, y_offset;
  float* matrix;
  float* bias;
};

// out [width] = bias + W in, summed in double; in [cols], weights [cols, width].
struct OuterLayerArgs {
  int64_t width, cols;
  const float* weights;
  const float* bias;
  const float* in;
  float* out;
};

struct Kernels {
  // Takes states [n, W] through steps (begin, end]. scratch [kSequentialGroup, W]. Returns the
  // steps.
  int64_t (*advance)(const LayersView& layers, float* states, float* scratch, int32_t n,
                     int64_t begin, int64_t end, Traces traces);
  // Returns the largest number of dependent steps.
  int64_t (*propagate)(const PropagateArgs& args);
  void (*apply)(const ApplyArgs& args);
  IntervalNorms (*update)(const UpdateArgs& args);
  // x[i] <- act(x[i]); count is a multiple of 4.
  void (*activate)(Activation activation, float* x, int64_t count);
  // Returns the number of dependent steps.
  int64_t (*retreat)(const RetreatArgs& args);
  // x[i] <- act'(x[i]); count is a multiple of 4.
  void (*differentiate)(Activation activation, float* x, int64_t count);
  void (*add_outers)(const OuterArgs& args);
  void (*sum_columns)(const OuterLayerArgs& args);
  // out[k] = column k of a matrix [count (column), width] times x [width].
  void (*dots)(const float* matrix, int64_t width, int64_t count, const float* x, float* out);
  // Samples advance in about the time of the next multiple of so many, where they are more.
  int32_t padded_samples;
  // Samples of one call of `advance` from which more gain nothing.
  int32_t most_together;
};

// Tables for `width`, which must be 4, 8, 16, 32, 64 or a multiple of 32 beyond (two of the widest
// vectors).
Kernels KernelsBaseline(int64_t width);
Kernels KernelsAvx2(int64_t width);
Kernels KernelsAvx512(int64_t width);

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_KERNELS_H_
