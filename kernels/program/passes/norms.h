// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_PASSES_NORMS_H_
#define DEEPPCR_KERNELS_PROGRAM_PASSES_NORMS_H_

// Layer and RMS norms that exporters take apart. Both change rounding, and refuse where an inner
// value is read elsewhere too, where a mean goes over another axis, and where epsilon is not above
// zero. Weight and bias stay the products and sums that they are.

#include <optional>

#include "kernels/program/passes/rewrite.h"

namespace deeppcr::program {

// A norm of a value.
struct Norm {
  Op op = Op::kScaleToUnit;
  ValueId operand = kNoValue;  // of the norm
  ValueId scaled = kNoValue;   // what the program scales: the operand, less its mean or as it is
  Axis axis;
  double epsilon = 0;
};

// The norm that comes of scaling `scaled` by a factor 1 / sqrt(mean(scaled^2) + epsilon):
// kStandardize where `scaled` is a value less its mean, else kScaleToUnit.
std::optional<Norm> NormByFactor(Search& search, ValueId factor);
// The same of a divisor sqrt(mean(scaled^2) + epsilon).
std::optional<Norm> NormByDivisor(Search& search, ValueId divisor);

absl::StatusOr<ValueId> WriteNorm(ProgramWriter& writer, const Norm& norm);

// scaled / sqrt(mean(scaled^2) + epsilon) -> the norm.
std::optional<Rewrite> RecogniseQuotientNorm(Search& search, const Instruction& instruction);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_PASSES_NORMS_H_
