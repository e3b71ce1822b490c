// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_PACKED_TAPE_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_PACKED_TAPE_H_

// A section of a step program as the backward pass runs it: forwards with all values kept, then
// backwards through the cotangents of every instruction.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/program/packed_program.h"

namespace deeppcr::cpu {

// What an instruction takes backwards.
struct BackwardInstruction {
  // kLinear and kProduct: the layers transposed, with the instruction's stride.
  const PanelView* transposed = nullptr;
  // By operand: a later instruction has written its cotangent, to which this one adds.
  std::vector<uint8_t> adds;
  // An operand's cotangent is wanted: it moves, or it depends on the condition.
  std::vector<uint8_t> wants;
  bool reached = false;  // its result has a cotangent
};

struct PackedTape {
  int64_t memory_bytes() const;

  PackedSection section;  // a place of its own for each value
  std::vector<BackwardInstruction> back;
  std::vector<PackedPanels> panels;
  // Inputs, whose cotangents start as zeros; width 0 where the section has none.
  Place state, condition, label;
  // Of the section of the state: its output, and the result of the instruction that adds the noise.
  Place output, noise;
};

// Bytes of the transposed layers of a section, at most.
int64_t TransposedBytes(const PackedSection& section, int64_t num_steps);

// `section` is one of a packed program, of the values of `depends` (kOnCondition,
// kOnTimeAndCondition or kOnState). Errors: kResourceExhausted.
absl::StatusOr<PackedTape> PackTape(const program::Program& program, const PackedSection& section,
                                    uint8_t depends, int64_t num_steps);

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_PACKED_TAPE_H_
