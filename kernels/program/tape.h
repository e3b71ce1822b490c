// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_TAPE_H_
#define DEEPPCR_KERNELS_PROGRAM_TAPE_H_

// How the way back goes through a section of a program: forwards with all values kept, then
// backwards through the cotangents of every instruction.

#include <cstdint>
#include <vector>

#include "kernels/problem/reverse_step.h"
#include "kernels/program/program.h"

namespace deeppcr::program {

// An instruction of a section.
struct TapedInstruction {
  const Instruction* instruction;  // the program's
  int64_t result;                  // where its result begins
  // By operand of ReadInRows: where it begins, or -1 where it stands in the row of another section.
  std::vector<int64_t> operands;
  // By operand: a later instruction has written its cotangent, to which this one adds. Rows of
  // other sections hold the sums of several steps.
  std::vector<uint8_t> adds;
  // An operand's cotangent is wanted: it moves, or it depends on the condition.
  std::vector<uint8_t> wants;
  bool reached = false;  // its result has a cotangent
};

struct Tape {
  std::vector<TapedInstruction> instructions;  // of the section, in order
  std::vector<int64_t> exports;                // where they begin, in the order of their values
  // Where inputs begin, whose cotangents start as zeros; -1 where the section has none.
  int64_t state = -1, condition = -1, label = -1;
  // Of the section of the state: where its output begins, and the result of the instruction that
  // adds the noise, which is this part of the reverse step.
  int64_t output = -1, noise = -1;
  StepPart noise_part = StepPart::kState;
  int64_t floats = 0;  // of all values, each in a place of its own
};

// The tape of what depends on `depends` (kOnCondition, kOnTimeAndCondition or kOnState), each value
// as wide as width_of(its size) says. The result points into the program. Thread-safe.
Tape MakeTape(const Program& program, uint8_t depends, int64_t (*width_of)(int64_t size));

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_TAPE_H_
