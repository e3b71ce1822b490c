// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_PASSES_SUMS_H_
#define DEEPPCR_KERNELS_PROGRAM_PASSES_SUMS_H_

#include <optional>

#include "kernels/program/passes/rewrite.h"

namespace deeppcr::program {

// A chain of sums in another order, (W x + e(t)) + c -> W x + (e(t) + c), where that leaves fewer
// additions to the step, or to the classes below it. Constants go into the bias of a linear layer
// of the lowest class that has one which nothing else reads. Changes the order of rounding, and
// rounds such a bias to float32 once more.
std::optional<Rewrite> RegroupSum(Search& search, const Instruction& end);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_PASSES_SUMS_H_
