// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/chain.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/program/passes/identities.h"

namespace deeppcr::program {
namespace {

bool IsOf(Op kind, Op op) { return op == kind || (kind == Op::kAdd && op == Op::kSubtract); }

// The instruction that makes a value, if that is an inner one of a chain.
const Instruction* InnerOfChain(const ProgramIndex& index, ValueId id, Op kind) {
  const Instruction* maker = index.Producer(id);
  return maker != nullptr && IsOf(kind, maker->op) && index.ReadOnce(id) ? maker : nullptr;
}

// a and b, either of which may be missing.
absl::StatusOr<std::optional<Term>> Join(ProgramWriter& writer, Op kind,
                                         const std::optional<Term>& a,
                                         const std::optional<Term>& b) {
  if (!a.has_value()) return b;
  if (!b.has_value()) return a;
  const bool differ = a->negative != b->negative;
  const Term& first = differ && a->negative ? *b : *a;
  const Term& second = differ && a->negative ? *a : *b;
  const std::array operands = {first.value, second.value};
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId joined,
                           WriteElementwise(writer, differ ? Op::kSubtract : kind, operands));
  return Term{joined, !differ && a->negative};
}

}  // namespace

bool EndsChain(const ProgramIndex& index, const Instruction& instruction, Op kind) {
  if (!IsOf(kind, instruction.op)) return false;
  const Instruction* reader = index.OnlyReader(instruction.result);
  return reader == nullptr || !IsOf(kind, reader->op);
}

Chain ChainThatEndsIn(const ProgramIndex& index, const Instruction& end, Op kind) {
  Chain chain;
  std::vector<Term> stack;
  // Instructions are opened as they come off the stack, so that terms keep their order.
  const auto open_instruction = [&](const Instruction& instruction, bool negative) {
    ++chain.joins[static_cast<size_t>(ClassOf(index.at(instruction.result)))];
    stack.push_back({instruction.operands[1], negative != (instruction.op == Op::kSubtract)});
    stack.push_back({instruction.operands[0], negative});
  };
  open_instruction(end, false);
  while (!stack.empty()) {
    const Term term = stack.back();
    stack.pop_back();
    if (const Instruction* inner = InnerOfChain(index, term.value, kind); inner != nullptr) {
      open_instruction(*inner, term.negative);
    } else {
      chain.terms.push_back(term);
    }
  }
  return chain;
}

ByClass CountOf(const ProgramIndex& index, const Chain& chain) {
  ByClass count = {};
  for (const Term& term : chain.terms) ++count[static_cast<size_t>(ClassOf(index.at(term.value)))];
  return count;
}

ByClass LeastJoins(const ByClass& terms) {
  ByClass joins = {};
  int lower = kOnNothing;
  bool any = false;
  for (int k = 0; k < kNumClasses; ++k) {
    const auto at = static_cast<size_t>(k);
    if (terms[at] == 0) continue;
    joins[at] += terms[at] - 1;
    lower = ClassOf(static_cast<uint8_t>(lower | k));
    if (std::exchange(any, true)) ++joins[static_cast<size_t>(lower)];
  }
  joins[kOnNothing] = 0;
  return joins;
}

bool IsLess(const ByClass& a, const ByClass& b) {
  return std::lexicographical_compare(a.rbegin(), a.rend(), b.rbegin(), b.rend());
}

absl::StatusOr<ValueId> WriteChain(ProgramWriter& writer, Op kind, std::span<const Term> terms) {
  std::array<std::optional<Term>, kNumClasses> classes;
  for (const Term& term : terms) {
    std::optional<Term>& sum = classes[static_cast<size_t>(ClassOf(writer.at(term.value)))];
    DEEPPCR_ASSIGN_OR_RETURN(sum, Join(writer, kind, sum, term));
  }
  std::optional<Term> total;
  for (const std::optional<Term>& sum : classes) {
    DEEPPCR_ASSIGN_OR_RETURN(total, Join(writer, kind, sum, total));
  }
  if (!total->negative) return total->value;
  return WriteElementwise(writer, Op::kNegate, std::array{total->value});
}

}  // namespace deeppcr::program
