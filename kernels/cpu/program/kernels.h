// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_KERNELS_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_KERNELS_H_

// The CPU kernels of step programs as a table of functions, one table per instruction set. Plain
// structs only, for the reason given in kernels/cpu/kernels.h.
//
// A row is one vector, padded with zeros as in kernels/cpu/program/kernels.h. `n` counts the
// floats of a row with its padding, a multiple of 16; `size` those without.

#include <cstdint>

#include "kernels/cpu/kernels.h"
#include "kernels/problem/reverse_step.h"
#include "kernels/program/op.h"

namespace deeppcr::cpu {

inline constexpr int kMostOperands = 3;

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
  // Long panels are taken by as many inputs at a time as the first-level cache keeps while rows
  // pass by: the weights come from beyond the second. Decides no bits.
  bool in_parts = false;
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

// An elementwise operation on n floats. What it makes of padding is the caller's to clear.
struct ElementwiseKernels {
  void (*value)(const float* const* a, float* y, int64_t n);
  // Partial derivatives s[k] by the operands; s[k] null where it is not wanted.
  void (*slopes)(const float* const* a, float* const* s, int64_t n);
};

// Instructions in one pass over y [rows, n], with the bits that they have one after another. By
// their first one, or the activation where that is an addition:
//   a b + c
//   act(a + b) + c; b and c may be null, which adds nothing
// Strides are between the rows of an operand: 0 where all rows have the same.
struct BranchArgs {
  const float* a;
  const float* b;
  const float* c;
  int64_t a_stride, b_stride, c_stride;
  float* y;
  int64_t rows, n;
};
using BranchKernel = void (*)(const BranchArgs& args);

// A product of one row, of all panels, and then out <- act(g.out + b) + c as a BranchKernel does:
// panel by panel, so that the activations of one are made while the weights of the next one arrive.
// Any two of out, g.out, b and c may be one place, and out the row's, unless the product has more
// than kMostPanelsInPlace panels; else no two overlap.
using LayerBranchKernel = void (*)(const GemmArgs& g, const float* b, const float* c, float* out);
inline constexpr int64_t kMostPanelsInPlace = 4;

// The sine and the cosine of n floats, with the bits that each has alone.
using SineCosineKernel = void (*)(const float* a, float* sine, float* cosine, int64_t n);

// out [rows, n]: a row's number times its factors.
struct ScaleArgs {
  const float* numbers;
  int64_t numbers_stride;
  const float* factors;
  int64_t factors_stride;  // 0: all rows have the same
  float* out;
  int64_t rows, n;
};

// Tangents of `columns` rows: out_j = sum_k slopes[k] tangents[k]_j over the operands whose
// tangents are not null. A slope that is null counts as one; where a slope or a tangent is zero
// nothing is carried, whatever the other one is.
struct CarryArgs {
  const float* slopes[kMostOperands];
  const float* tangents[kMostOperands];
  float* out;
  int64_t columns, n;  // the columns of tangents and of out follow one another
};

// Cotangents of `columns` rows: to = slope g, or to += slope g. A slope that is null counts as one.
// Where g is zero, as for the side that a select has not chosen, or the slope is, nothing is given,
// whatever the other one is.
struct GiveArgs {
  const float* slope;  // [n]
  const float* g;      // [columns, n]
  float* to;           // [columns, n]
  bool adds;
  int64_t columns, n;
};

// Two rows of positions around a at which an operation's slope is taken for probes (SlopesNear in
// kernels/cpu/simd/slope_near.h): `size` is the rounding of a, `probes` are its tangents.
struct NearArgs {
  const float* a;
  const float* size;
  const float* probes;  // [count, n]
  int64_t count, n;
  float *below, *above;  // [n]
};

// Probes through an operation whose slope is anywhere between those of three rows.
struct SpreadArgs {
  const float* slopes[3];  // [n]
  const float* probes;     // [count, n]
  float* out;              // [count, n]
  int64_t count, n;
};

// Probes of the larger or smaller of two values: where the two may change places within their
// rounding, a probe goes beyond either one's, to a side of its own. One of the two would cancel in
// a later difference with that operand, as in x - min(x, 1), and hide that the other may be met.
struct EitherArgs {
  const float* a[2];
  const float* sizes[2];   // null: exact
  const float* probes[2];  // [count, n]; null: none
  const float* slopes[2];
  const uint32_t* seeds;  // [count, n]
  float* out;             // [count, n]
  int64_t count, n;
  int64_t salt;
};

// probes_v += the rounding of `size` with signs by (v, lane, salt).
struct SourceArgs {
  const float* size;      // [n]
  const uint32_t* seeds;  // [count, n]
  float* probes;          // [count, n]
  int64_t count, n;
  int64_t salt;
  bool alike;  // all lanes get the sign of the first
};

// An operation along an axis that is contiguous: `lines` lines of `length` floats of each of some
// rows, which follow one another.
struct AlongArgs {
  program::Op op;
  int64_t lines, length;
  float epsilon;
  const float* in;
  float* out;      // per row: [lines, length], or [lines] of a reduction
  float* moments;  // per row: [lines, 2]: mean, and 1 / deviation; of the norms only
  int64_t rows = 1, in_n = 0, out_n = 0, moments_n = 0;
};
struct AlongTangentArgs {
  program::Op op;
  int64_t lines, length;
  const float *in, *out, *moments;  // of the primal
  const float* tangents;            // [columns, in_n]
  float* results;                   // [columns, out_n]
  int64_t columns, in_n, out_n;
};

// z' of one row, in place of z, and what its tangents need.
struct ReverseArgs {
  const ReverseCoefficients* coefficients;
  float clip_range;
  const float *state, *prediction;
  const float* noise;  // null where sigma is 0
  float* next;
  int64_t n;
};
struct ReverseTangentArgs {
  const ReverseCoefficients* coefficients;
  float clip_range;
  const float *state, *prediction, *next;
  const float* prediction_size;  // rounding of m; null without probes
  const float* of_state;         // [columns, n]
  const float* of_prediction;    // [columns, n]
  float* results;                // [columns, n]
  float* size;                   // [n]: receives the rounding of z'; null without probes
  int64_t probes, columns, n;
};

// Partial derivatives of z' by the state and by the prediction, element by element.
struct ReverseSlopeArgs {
  const ReverseCoefficients* coefficients;
  float clip_range;
  const float *state, *prediction;
  float *by_state, *by_prediction;
  int64_t n;
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

struct ProgramKernels {
  ElementwiseKernels elementwise[program::kNumOps];  // null where the operation is another kind
  BranchKernel branch[program::kNumOps];             // of activations and of kMultiply, else null
  LayerBranchKernel layer_branch[program::kNumOps];  // of activations, else null
  SineCosineKernel sine_cosine;
  void (*scale)(const ScaleArgs& args);
  // gemm by one thread or by those that share; sharing null: one.
  void (*gemm)(const Sharing* sharing, const GemmArgs& args);
  // size[i]: the rounding of a product.
  void (*product_size)(const PanelView& layer, const float* in, int64_t in_n, const float* out,
                       float* size);
  void (*scaled_size)(float factor, const float* y, float* size, int64_t n);  // factor |y|
  void (*larger_size)(const float* from, float* size, int64_t n);             // max(from, size)
  void (*carry)(const CarryArgs& args);
  void (*give)(const GiveArgs& args);
  void (*near)(const NearArgs& args);
  void (*spread)(const SpreadArgs& args);
  void (*either)(const EitherArgs& args);
  void (*source)(const SourceArgs& args);
  void (*along)(const AlongArgs& args);
  void (*along_tangent)(const AlongTangentArgs& args);
  void (*reverse)(const ReverseArgs& args);
  void (*reverse_tangent)(const ReverseTangentArgs& args);
  void (*reverse_slopes)(const ReverseSlopeArgs& args);
  // Draws normals; false where some normals may not have the bits of philox.h.
  bool (*normals)(const NormalsArgs& args);
};

ProgramKernels ProgramKernelsBaseline();
ProgramKernels ProgramKernelsAvx2();
ProgramKernels ProgramKernelsAvx512();

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_KERNELS_H_
