// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_PASSES_ACTIVATIONS_H_
#define DEEPPCR_KERNELS_PROGRAM_PASSES_ACTIVATIONS_H_

// Activations that exporters take apart. All change rounding, those with constants by the
// constants' own (1e-6), and all refuse where an inner value is read elsewhere too.

#include <optional>

#include "kernels/program/passes/rewrite.h"

namespace deeppcr::program {

// A product of an activation's operand and one factor, put together: scale activation(operand).
struct Gated {
  Op activation = Op::kSilu;
  ValueId operand = kNoValue;
  double scale = 1;
};

// What a factor makes of the product with the operand that it names:
//   sigmoid(a)                                          silu
//   tanh(softplus(a))                                   mish
//   1 + erf(a / sqrt 2)                                 2 gelu
//   1 + tanh(sqrt(2 / pi) (a + 0.044715 a^3))           2 gelu_tanh
//   sigmoid(2 sqrt(2 / pi) (a + 0.044715 a^3))          gelu_tanh
// and all of these times a number, with constants and sums arranged in any way.
std::optional<Gated> GateOf(const ProgramIndex& index, ValueId factor);

// ln(1 + e^a) -> softplus, 1 / (1 + e^-a) -> sigmoid, a / (1 + e^-a) -> silu.
std::optional<Rewrite> RecogniseExponentials(Search& search, const Instruction& instruction);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_PASSES_ACTIVATIONS_H_
