// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_PASSES_POLYNOMIAL_H_
#define DEEPPCR_KERNELS_PROGRAM_PASSES_POLYNOMIAL_H_

#include <array>
#include <optional>

#include "kernels/program/passes/program_index.h"

namespace deeppcr::program {

// A value as a polynomial of another, element by element: sum over k of by_power[k] of^k.
struct Cubic {
  ValueId of = kNoValue;  // none if the value is a number
  std::array<double, 4> by_power = {};

  // Whether the coefficients are these, to the precision to which exporters write constants.
  bool Is(const std::array<double, 4>& coefficients) const;
};

// The polynomial that a value is, however the sums and products that make it are arranged: looks
// through those that nothing else reads and that have numbers for constants, a few levels deep. A
// value that is none of these is the polynomial of itself. Nothing where there are two unknowns, or
// a higher power.
std::optional<Cubic> CubicOf(const ProgramIndex& index, ValueId id);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_PASSES_POLYNOMIAL_H_
