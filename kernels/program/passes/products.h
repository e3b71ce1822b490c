// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_PASSES_PRODUCTS_H_
#define DEEPPCR_KERNELS_PROGRAM_PASSES_PRODUCTS_H_

#include <optional>

#include "kernels/program/passes/rewrite.h"

namespace deeppcr::program {

// A chain of products as something cheaper:
// - two of its factors together as an activation or a norm (activations.h, norms.h);
// - in another order, (x s(t)) g(c) -> x (s(t) g(c)), where that leaves fewer products to the step,
//   or to the classes below it. Changes the order of rounding, and which products may overflow;
// - its constants in the weights and the bias of a linear layer, where they are powers of two and
//   the products are exact.
std::optional<Rewrite> RewriteProduct(Search& search, const Instruction& end);

// A product over a sum, (x a(t) + b(t)) g(c) -> x (a(t) g(c)) + b(t) g(c), which leaves one product
// fewer to the step: a norm's weight and bias go into what modulates it. Changes the order of
// rounding, and which products may overflow.
std::optional<Rewrite> DistributeProduct(Search& search, const Instruction& end);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_PASSES_PRODUCTS_H_
