// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_VIEW_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_VIEW_H_

// A step program in the device's memory: its instructions, which a block of threads runs one after
// another on a frame in its shared memory. kernels/program/op.h defines the operations,
// kernels/program/placement.h where values are.

#include <cstdint>

#include "kernels/cuda/math/panel_layer.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/problem/reverse_step.h"
#include "kernels/program/home.h"
#include "kernels/program/op.h"

namespace deeppcr::cuda {

struct ProgramValue {
  program::Home home;
  int32_t offset;  // floats from the start of the row; in a frame, columns before its block
  int32_t block;   // in a frame: blocks before its own
  int32_t size;    // elements

  constexpr bool moves() const { return home == program::Home::kFrame; }
};

// An element of an operand.
struct ProgramElement {
  int32_t operand, index;
};

// What threads have to wait for before an instruction: operations on elements, which have a thread
// each, need not wait for one another.
enum class ProgramWait : uint8_t { kNone, kBlock, kTeam };

inline constexpr int kMostProgramOperands = 3;

// Pointers are to device memory.
struct ProgramInstruction {
  program::Op op;
  program::OpKind kind;
  StepPart part;  // kReverseStep
  ProgramWait wait;
  uint8_t num_operands;  // of `operands`
  // kLinear, kProduct: vectors are copied to where a product reads them, from a row that holds
  // several of them, or from outside of the frame.
  bool gathers;
  float ulps;     // rounding of a result: see OpRow
  float epsilon;  // norms
  ProgramValue operands[kMostProgramOperands];
  ProgramValue result;
  // kLinear and kProduct: the layer of step l is layer.Next(l * layer_stride), for each of `repeat`
  // vectors of a row, with its size before it is padded; and the rounding of a sum of so many terms
  // (RoundingOfLongSum, RoundingOfDrift).
  PanelLayer layer;
  int32_t layer_stride, repeat, inputs, outputs;
  float long_sum, drift;
  ProgramValue gathered[2];        // places for such vectors, which take turns
  int32_t outer, length, inner;    // along an axis: the view [outer, length, inner] of the operand
  const ProgramElement* elements;  // kArrange: [size of the result]
  const ProgramValue* arranged;    // kArrange: its operands
  const float* table;              // kLookup: [rows, size of the result]
  int32_t rows;

  // True for what makes element i of its result from element i of its operands.
  constexpr bool of_elements() const {
    return kind == program::OpKind::kElementwise || kind == program::OpKind::kReverseStep;
  }
};

// A value that later sections read: its place in the frame, and in their row.
struct ProgramExport {
  ProgramValue from;
  int32_t to;
};

// The instructions of a section.
struct ProgramSection {
  const ProgramInstruction* instructions;
  int32_t count;
  int32_t frame_cols, frame_blocks;  // of all values that live at a time
  int32_t widest;     // rows of panels to share among warps: a multiple of kPanelCols
  ProgramWait after;  // before anything reads what the last instruction makes
};

// Floats behind a block of a frame: see VectorShape::floats.
inline constexpr int kBlockGap = VectorShape{0, 0}.floats();

// Rows of a frame for steps of `rows` rows: with tangents there is one more, for the sizes of
// roundings.
constexpr int FrameRows(int rows) { return VectorShape::For(0, rows == 1 ? 1 : rows + 1).rows; }
constexpr int64_t FrameFloats(const ProgramSection& section, int rows) {
  return int64_t{section.frame_cols} * FrameRows(rows) + int64_t{section.frame_blocks} * kBlockGap;
}

// What the instructions of a step read beside their frame.
struct ProgramStepView {
  const float *constants, *time, *condition, *mixed;  // rows, by Home
  const ReverseCoefficients* coefficients;            // of kReverseStep, by StepPart
  const float* noise;                                 // [size of z], where sigma is not 0
  int64_t step;                                       // counted from 0
  int64_t draw;                                       // see DrawOfSigns

  DEEPPCR_DEVICE const float* RowOf(program::Home home) const {
    return home == program::Home::kConstant    ? constants
           : home == program::Home::kTime      ? time
           : home == program::Home::kCondition ? condition
                                               : mixed;
  }
};

// ---- The way back
// What an operand of an arrangement gets: for each of its elements the elements of the result that
// come from it, sources[starts[i]], ..., sources[starts[i + 1] - 1]. Pointers are to device memory.
struct ProgramScatter {
  ProgramValue operand;
  bool adds;
  const int32_t* starts;  // [operand.size + 1]
  const int32_t* sources;
};

// What an instruction takes on the way back, beside itself.
struct ProgramBack {
  bool reached;  // its result has a cotangent; else there is nothing to do
  // Threads wait for one another before it, on the way back.
  bool waits;
  // By operand, but for arrangements: its cotangent is wanted, and is added to what is there.
  bool wants[kMostProgramOperands], adds[kMostProgramOperands];
  // kLinear and kProduct: the layer transposed, with the instruction's stride, and places for
  // cotangents of the results of several vectors, which take turns.
  PanelLayer transposed;
  ProgramValue gathered[2];
  // kArrange: the operands whose cotangents are wanted.
  const ProgramScatter* scatters;
  int32_t num_scatters;
};

// A section as the way back runs it: forwards with all values kept, then backwards. Every value has
// a place of its own (kernels/program/tape.h).
struct ProgramTape {
  ProgramSection section;
  const ProgramBack* back;               // [section.count]
  ProgramValue state, condition, label;  // inputs; of size 0: not there
  ProgramValue output, noise;            // the same; of the section of the state
  ProgramValue layer;                    // the result of its only layer, if it has one only
  StepPart noise_part;                   // whose sigma the noise has
  const ProgramExport* exports;          // what the section gives to its row
  int32_t num_exports;
};

// Rows of a tape's frame: values, and `columns` cotangents of each.
constexpr int TapeRows(int columns) { return VectorShape::For(0, 1 + columns).rows; }
constexpr int64_t TapeFloats(const ProgramTape& tape, int columns) {
  return int64_t{tape.section.frame_cols} * TapeRows(columns) +
         int64_t{tape.section.frame_blocks} * kBlockGap;
}

// Kernels that are compiled for a program, as handles of CUDA's runtime: null for what it never
// launches.
struct ProgramKernels {
  const void *sequential, *cluster_sequential, *grid_sequential;
  const void *propagation, *expansion, *coarse, *cluster_coarse;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_VIEW_H_
