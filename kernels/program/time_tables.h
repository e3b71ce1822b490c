// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_TIME_TABLES_H_
#define DEEPPCR_KERNELS_PROGRAM_TIME_TABLES_H_

// What depends on nothing or on the time alone, evaluated in double and rounded once.

#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/base/cancel_token.h"
#include "kernels/problem/reverse_step.h"
#include "kernels/program/placement.h"
#include "kernels/program/program.h"

namespace deeppcr::program {

// True for a product whose matrix is packed for each step: one that is not evaluated ahead as a
// whole.
bool IsPackedProduct(const Program& program, const Instruction& instruction);

// Fills the row of constants [constant_floats].
void FillConstants(const Program& program, const Placement& placement, float* row);

// The matrix and the bias of a product at one step.
struct StepMatrix {
  const Instruction* product;  // the program's
  int64_t step;
  std::span<const float> weight, bias;  // [rows, cols], and [rows] or empty for zero
};

// Fills `rows` [num_steps, time_floats] of zeros, and hands over the matrix and the bias of every
// packed product at every step. `steps`: the reverse steps [num_steps] if the program is the step
// of a reverse process, else empty.
// Errors: kInvalidArgument for a value that is not finite; kCancelled soon after the token has
// fired.
absl::Status MakeTimeTables(const Program& program, const Placement& placement, int64_t num_steps,
                            std::span<const ReverseStep> steps, const CancelToken* token,
                            NoteProblem note, float* rows,
                            absl::FunctionRef<void(const StepMatrix&)> take);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_TIME_TABLES_H_
