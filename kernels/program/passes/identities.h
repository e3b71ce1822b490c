// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_PASSES_IDENTITIES_H_
#define DEEPPCR_KERNELS_PROGRAM_PASSES_IDENTITIES_H_

#include <span>

#include "absl/status/statusor.h"
#include "kernels/program/passes/program_writer.h"

namespace deeppcr::program {

// Writes an elementwise instruction of values of the new program, or what gives the same with less:
//   a + 0, a - 0, a 1, a / 1, a^1, -(-a)   a
//   0 - a, a (-1)                          -a
//   a + (-b), a - (-b)                     a - b, a + b
//   a a, a^2                               square a
//   a^(1/2), a^(-1), 1 / a                 sqrt a, 1 / a
//   a / 2^k                                a 2^-k
//   max(a, 0)                              relu a
// Exact but for a^(1/2) at the sign of a zero and at -infinity, for powers by their rounding, and
// for the slope of max(a, 0) at 0, a half before and 0 after.
absl::StatusOr<ValueId> WriteElementwise(ProgramWriter& writer, Op op,
                                         std::span<const ValueId> operands);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_PASSES_IDENTITIES_H_
