// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_PASSES_CHAIN_H_
#define DEEPPCR_KERNELS_PROGRAM_PASSES_CHAIN_H_

// Chains: sums (or products) of sums of which nothing else reads the inner ones.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/program/dependence.h"
#include "kernels/program/passes/program_index.h"
#include "kernels/program/passes/program_writer.h"

namespace deeppcr::program {

struct Term {
  ValueId value = kNoValue;
  bool negative = false;  // of sums only
};

// A number for each class of dependence.
using ByClass = std::array<int64_t, kNumClasses>;

struct Chain {
  std::vector<Term> terms;  // in the order in which they stand
  ByClass joins = {};       // instructions, by the class of their results
};

// Whether an instruction is the last of a chain, of sums (`kind` kAdd: kAdd and kSubtract) or
// products (kMultiply).
bool EndsChain(const ProgramIndex& index, const Instruction& instruction, Op kind);
Chain ChainThatEndsIn(const ProgramIndex& index, const Instruction& end, Op kind);

// Terms of each class.
ByClass CountOf(const ProgramIndex& index, const Chain& chain);
// Instructions that WriteChain writes for so many terms of each class; constants are folded.
ByClass LeastJoins(const ByClass& terms);
// Whether a costs less than b: in the step, then for each condition and step, then the rest.
bool IsLess(const ByClass& a, const ByClass& b);

// Writes the sum or product of values of the new program: those of each class among themselves,
// then what the lower classes make with the next. Changes the order of rounding.
//   terms  not empty
absl::StatusOr<ValueId> WriteChain(ProgramWriter& writer, Op kind, std::span<const Term> terms);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_PASSES_CHAIN_H_
