// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_OPTIMIZE_H_
#define DEEPPCR_KERNELS_PROGRAM_OPTIMIZE_H_

#include "absl/status/statusor.h"
#include "kernels/program/builder.h"
#include "kernels/program/program.h"

namespace deeppcr::program {

// The program with less to do, above all in the step: activations and norms that an exporter took
// apart as one instruction, sums, products and linear layers regrouped by what they depend on, and
// without what changes nothing. It means the same up to rounding, of which each pass says what it
// changes (passes/), and no value depends on more than it did. Inputs that nothing reads any more
// are left out.
//
// Takes time in proportion to the program's size. A program that would leave the limits on the way
// stays as it was before. Errors: those of ProgramBuilder, for a program that it did not make.
// Thread-safe.
absl::StatusOr<Program> Optimize(const Program& program, const ProgramLimits& limits = {});

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_OPTIMIZE_H_
