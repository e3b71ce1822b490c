// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_DESCRIBE_H_
#define DEEPPCR_KERNELS_PROGRAM_DESCRIBE_H_

#include <string>

#include "kernels/program/program.h"

namespace deeppcr::program {

// A listing for people: a line for each value, with its name (%n where it has none of its own), how
// it is made, its size, what it depends on and its multiply-adds, and then what all of it costs and
// holds. The same text for the same program. Names, which come from files, are escaped.
//
//   h1 = linear(z) 64 x 16  [64]  state  1024
//
//   written  the program before it was optimised, whose costs the end compares; may be null
std::string Describe(const Program& program, const Program* written = nullptr);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_DESCRIBE_H_
