// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_JOINS_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_JOINS_H_

#include <cstdint>

#include "kernels/cpu/program/packed_program.h"
#include "kernels/program/program.h"

namespace deeppcr::cpu {

// Marks the instructions of a section that one pass over their elements does, where no tangents go
// along (PackedInstruction::together):
// - a product or an activation whose result only the addition behind it reads;
// - an addition whose result only the activation behind it reads, and that only the addition behind
//   it, if there is one;
// - a number that is repeated, whose only reader is the product behind it;
// - a sine and a cosine of one value, in either order.
// And layers whose result only such a pass with an activation reads (PackedInstruction::activated).
// Passes have the bits that the instructions have one after another. The section has the
// instructions of the program whose results are of it, in their order.
void JoinInstructions(const program::Program& program, int section, PackedSection* packed);

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_JOINS_H_
