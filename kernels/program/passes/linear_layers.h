// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_PASSES_LINEAR_LAYERS_H_
#define DEEPPCR_KERNELS_PROGRAM_PASSES_LINEAR_LAYERS_H_

#include <optional>

#include "kernels/program/passes/rewrite.h"

namespace deeppcr::program {

// A linear layer over an arrangement of values of different classes, as a layer for each class:
//   W [x, e(t), c, k] + b -> W_x x + ((W_t e(t) + b + W_k k) + W_c c)
// with the bias in the layer of the lowest class, and a constant for the columns of constants,
// which RegroupSum puts into a bias. Changes the order of rounding. For layers of one row of
// operands (repeat 1).
std::optional<Rewrite> SplitByClass(Search& search, const Instruction& instruction);

// Two linear layers in a row, W (V x + a) + b -> (W V) x + (W a + b), where nothing else reads the
// inner one and one layer has fewer weights than both. Weights and bias are rounded to float32 once
// more. Layers on the time alone stay, as their results are made in double and once.
std::optional<Rewrite> MergeLayers(Search& search, const Instruction& instruction);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_PASSES_LINEAR_LAYERS_H_
