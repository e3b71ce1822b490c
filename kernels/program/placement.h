// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_PLACEMENT_H_
#define DEEPPCR_KERNELS_PROGRAM_PLACEMENT_H_

// Where the values of a program are while a backend runs it in float32: section by section, each
// in a frame of its own, with rows of what other sections read. How wide a value is with its
// padding is the backend's to say.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/program/home.h"
#include "kernels/program/program.h"

namespace deeppcr::program {

struct Place {
  Home home = Home::kFrame;
  // Floats from the start of the row; in a frame, from the start of each of its blocks, in units of
  // the block's rows.
  int64_t offset = 0;
  int64_t size = 0, width = 0;  // elements, and floats with the padding
};

// A value that later sections read: its place here, and in their row.
struct Export {
  Place from;
  int64_t to;
};

struct PlacedInstruction {
  const Instruction* instruction;  // the program's
  std::vector<Place> operands;     // of ReadInRows
  Place result;
};

// What depends on the same things, in order.
struct PlacedSection {
  std::vector<PlacedInstruction> instructions;
  std::vector<Export> exports;
  int64_t row_floats = 0;    // of the exports together
  int64_t frame_floats = 0;  // of all values of one row that live at a time
};

struct Placement {
  PlacedSection condition, mixed, state;
  // By value: floats from the start of the row of its class, or -1 where no other section reads it.
  std::vector<int64_t> in_rows;
  int64_t constant_floats = 0, time_floats = 0;  // of these rows
  // Inputs and results; width 0 where the program has none.
  Place state_input, condition_input, label_input, prediction, output;
};

// Operands that are read from rows of values; the matrix and the bias of a product are packed.
std::span<const ValueId> ReadInRows(const Instruction& instruction);

// Places all values, each as wide as width_of(its size) says. The result points into the program.
// Thread-safe.
Placement PlaceValues(const Program& program, int64_t (*width_of)(int64_t size));

// Takes a problem, and says whether to go on in spite of it.
using NoteProblem = absl::FunctionRef<absl::Status(const absl::Status&)>;

// Checks what no backend can run: a prediction that does not depend on the state, a jump inside the
// step, rows of a condition that take more than `most_condition_bytes`.
absl::Status CheckPlaced(const Program& program, const Placement& placement, int64_t num_steps,
                         int64_t most_condition_bytes, NoteProblem note);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_PLACEMENT_H_
