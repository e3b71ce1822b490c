// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_PARTITION_H_
#define DEEPPCR_KERNELS_PROGRAM_PARTITION_H_

#include <cstdint>
#include <vector>

#include "kernels/program/program.h"

namespace deeppcr::program {

// The instructions of one class of dependence, and those of its values, inputs among them, that
// later sections read: what a table of the class has to hold.
struct Section {
  std::vector<int32_t> instructions;   // indices, in the program's order
  std::vector<ValueId> read_by_mixed;  // by instructions on time and condition; ascending
  std::vector<ValueId> read_by_step;   // by instructions on the state, or as prediction; ascending
};

// A program by what each part of it is made for. A section reads itself, constants and the sections
// before it; but the condition's does not read the time's.
struct Sections {
  Section time;       // once for each step
  Section condition;  // once for each request
  Section mixed;      // once for each step of a request
  Section state;      // inside the recurrence
};

// Thread-safe.
Sections Partition(const Program& program);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_PARTITION_H_
