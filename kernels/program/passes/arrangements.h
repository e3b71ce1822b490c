// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_PASSES_ARRANGEMENTS_H_
#define DEEPPCR_KERNELS_PROGRAM_PASSES_ARRANGEMENTS_H_

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/program/passes/program_writer.h"

namespace deeppcr::program {

// Writes an arrangement of values of the new program: one that reads what its operands arrange
// rather than them, each value once and none of which it takes no element; or its only operand
// where all elements stay where they are. Exact.
absl::StatusOr<ValueId> WriteArrange(ProgramWriter& writer, std::span<const ValueId> operands,
                                     std::vector<Element> elements);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_PASSES_ARRANGEMENTS_H_
