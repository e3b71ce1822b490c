// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_PACKED_PROGRAM_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_PACKED_PROGRAM_H_

// A step program in the form that the executor runs: weights in panels, values with a place each,
// and the instructions in sections by what they depend on.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/program/kernels.h"
#include "kernels/cpu/program/packed_panels.h"
#include "kernels/program/placement.h"
#include "kernels/program/program.h"

namespace deeppcr::cpu {

// Budget for what conditions give, one row for all steps and one for each, of the samples that are
// advanced together. A model of which one sample takes more is refused.
inline constexpr int64_t kMostConditionBytes = int64_t{512} << 20;

using program::Export;
using program::Home;
using program::kNumHomes;
using program::Place;

// Elements [from, ...) of an operand that go to [to, to + count): one after another, or the same
// one again and again.
struct ElementRun {
  int32_t operand;
  int64_t from, to, count;
  bool repeated;
};

struct PackedInstruction {
  program::Op op;
  program::OpKind kind;
  StepPart part = StepPart::kState;  // kReverseStep
  float ulps;
  std::vector<Place> operands;
  std::vector<uint8_t> moves;  // by operand: it is made by the section, so that it has tangents
  Place result;
  // kLinear and kProduct: the layer of step l is layers[l layer_stride], the same for all where the
  // stride is 0.
  const PanelView* layers = nullptr;
  int64_t layer_stride = 0;
  int64_t repeat = 1;
  const float* table = nullptr;  // kLookup: [rows, width]
  int64_t rows = 0;              // kLookup
  program::Axis axis;
  float epsilon = 0;
  std::vector<ElementRun> runs;     // kArrange
  const uint32_t* seeds = nullptr;  // [kNumProbes, result.width]
  // Instructions from this one on that one kernel does where no tangents go along: a b and a b + c;
  // or act(a) and act(a) + c; or a + b, act(a + b), act(a + b) + c; or sin a and cos a; or
  // (a, .. a) and (a, .. a) b. 1: none.
  int32_t together = 1;
  // Of the last one of them, if it has two operands: that which none of them makes.
  int32_t other = 0;
  // A layer: what the next ones do together is act(a + b) + c of its result, which nothing else
  // reads. One kernel does all of it for one row. `other` is the operand of a + b that is not its
  // result then.
  bool activated = false;
  int64_t moments = -1;  // norms: offset into a frame's moments, in units of its rows
};

// What depends on the same things, in order, and the frame in which it runs.
struct PackedSection {
  std::vector<PackedInstruction> instructions;
  std::vector<Export> exports;
  int64_t row_floats = 0;     // of the exports together
  int64_t frame_floats = 0;   // of all values of one row that live at a time
  int64_t moment_floats = 0;  // of one row
  int64_t widest = 0;         // floats of the widest value
  // Inputs and outputs, with their padding, of the largest layer that several vectors of a row
  // pass.
  int64_t gathered_floats = 0;
};

struct PackedProgram {
  int64_t memory_bytes() const;
  // Frees what makes the rows of conditions, when all that there are have been made.
  void ForgetConditions();

  PackedSection condition, mixed, state;
  int64_t time_floats = 0;           // of a row of the time tables
  AlignedBuffer<float> constants;    // [constant floats]
  AlignedBuffer<float> time_tables;  // [L, time_floats]
  std::vector<PackedPanels> panels;
  std::vector<AlignedBuffer<float>> tables;
  std::vector<AlignedBuffer<uint32_t>> seeds;
  // Inputs and results; width 0 where the program has none.
  Place state_input, condition_input, label_input, prediction, output;
};

// Packs a program for its steps, and the timesteps of the reverse steps [num_steps], if it is the
// step of a reverse process (else empty). Errors: kUnimplemented where an operation cannot be
// inside a step; kResourceExhausted.
absl::StatusOr<PackedProgram> PackProgram(const program::Program& program, int64_t num_steps,
                                          std::span<const ReverseStep> steps,
                                          const PackingLimits& limits);

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_PACKED_PROGRAM_H_
