// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_SOURCE_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_SOURCE_H_

// A program as source code for compiled_section.h. The text names no weights, no addresses and no
// number of steps: models of one architecture have the same text.

#include <span>
#include <string>
#include <string_view>

#include "kernels/cuda/program/view.h"

namespace deeppcr::cuda {

// A struct `name` with kCount and kInstructions, without their pointers.
std::string ListingOf(std::string_view name, std::span<const ProgramInstruction> instructions);

// Kernels of a program. Those of clusters exist only where devices have clusters.
struct KernelsWanted {
  int rows = 0;           // that a block takes through a step together: StepRows
  bool clusters = false;  // kernels of teams of several blocks
  bool grid = false;      // the kernel of all blocks
  bool guesses = false;   // those of the coarse guess
};

// The source of the kernels of a program, named as in ProgramKernels, each extern "C".
std::string SourceOf(std::span<const ProgramInstruction> instructions, const KernelsWanted& wanted);

// Instructions on elements, each of which the compiler sees for itself.
int64_t NumOfElements(std::span<const ProgramInstruction> instructions);

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_SOURCE_H_
