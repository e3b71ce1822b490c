// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/optimize.h"

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/program/passes/activations.h"
#include "kernels/program/passes/arrangements.h"
#include "kernels/program/passes/identities.h"
#include "kernels/program/passes/linear_layers.h"
#include "kernels/program/passes/norms.h"
#include "kernels/program/passes/products.h"
#include "kernels/program/passes/rewrite.h"
#include "kernels/program/passes/sums.h"

namespace deeppcr::program {
namespace {

// Rounds beyond what any exporter's nesting of patterns takes: each round reads through whole
// chains, and what it finds is found.
constexpr int kMaxRounds = 16;

// Rewrites of an instruction, tried in this order.
using Rule = std::optional<Rewrite> (*)(Search&, const Instruction&);
constexpr std::array<Rule, 7> kRules = {RecogniseExponentials,
                                        RecogniseQuotientNorm,
                                        RewriteProduct,
                                        DistributeProduct,
                                        RegroupSum,
                                        SplitByClass,
                                        MergeLayers};

// What a round writes: the values that are needed, and how instructions are rewritten.
struct Choice {
  std::vector<bool> needed;                      // of values
  std::vector<std::optional<Rewrite>> rewrites;  // of instructions
  bool any = false;
};

// Goes from the last instruction to the first, so that a pattern is found from its end and what it
// swallows is not needed any more when its turn comes.
Choice Choose(const ProgramIndex& index) {
  const Program& program = index.program();
  Search search(index);
  Choice choice = {std::vector<bool>(program.values.size()), {}, false};
  choice.rewrites.resize(program.instructions.size());
  const auto need = [&](ValueId id) {
    if (id != kNoValue) choice.needed[static_cast<size_t>(id)] = true;
  };
  need(program.output);
  need(program.prediction);
  for (size_t i = program.instructions.size(); i-- > 0;) {
    const Instruction& instruction = program.instructions[i];
    if (!choice.needed[static_cast<size_t>(instruction.result)]) continue;
    std::optional<Rewrite>& rewrite = choice.rewrites[i];
    for (size_t rule = 0; rule < kRules.size() && !rewrite.has_value(); ++rule) {
      rewrite = kRules[rule](search, instruction);
    }
    choice.any |= rewrite.has_value();
    for (const ValueId id : rewrite.has_value() ? rewrite->reads : instruction.operands) need(id);
  }
  return choice;
}

// Writes an instruction as it is, of what its operands have become.
absl::StatusOr<ValueId> Write(ProgramWriter& writer, const Instruction& instruction) {
  const std::vector<ValueId> operands = writer.Now(instruction.operands);
  ProgramBuilder& builder = writer.builder();
  switch (RowOf(instruction.op).kind) {
    case OpKind::kElementwise:
      return WriteElementwise(writer, instruction.op, operands);
    case OpKind::kReduction:
    case OpKind::kAlongAxis:
      return builder.AddAlongAxis(instruction.op, operands[0], instruction.axis,
                                  instruction.epsilon);
    case OpKind::kLinear:
      return builder.AddLinear(operands[0], instruction.linear);
    case OpKind::kProduct:
      return builder.AddProduct(operands[0], operands[1],
                                operands.size() > 2 ? operands[2] : kNoValue, instruction.linear);
    case OpKind::kLookup:
      return builder.AddLookup(operands[0], instruction.linear);
    case OpKind::kArrange:
      return WriteArrange(writer, operands, instruction.elements);
    case OpKind::kReverseStep:
      return builder.AddReverseStep(operands[0], operands[1], instruction.part);
  }
  return kNoValue;
}

struct Round {
  Program program;
  bool changed = false;
};

absl::StatusOr<Round> MakeRound(const Program& program, const ProgramLimits& limits) {
  const ProgramIndex index(program);
  const Choice choice = Choose(index);
  ProgramWriter writer(program, limits);
  DEEPPCR_RETURN_IF_ERROR(writer.Begin(choice.needed));
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (!choice.needed[static_cast<size_t>(instruction.result)]) continue;
    const std::optional<Rewrite>& rewrite = choice.rewrites[i];
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId now, rewrite.has_value() ? rewrite->write(writer)
                                                                    : Write(writer, instruction));
    writer.Set(instruction.result, now);
  }
  DEEPPCR_ASSIGN_OR_RETURN(Program written, writer.Finish());
  const bool changed = choice.any || writer.changes() > 0 ||
                       written.instructions.size() != program.instructions.size();
  return Round{std::move(written), changed};
}

}  // namespace

absl::StatusOr<Program> Optimize(const Program& program, const ProgramLimits& limits) {
  Program optimized = program;
  for (int i = 0; i < kMaxRounds; ++i) {
    absl::StatusOr<Round> round = MakeRound(optimized, limits);
    if (absl::IsResourceExhausted(round.status())) break;
    if (!round.ok()) return round.status();
    optimized = std::move(round->program);
    if (!round->changed) break;
  }
  return optimized;
}

}  // namespace deeppcr::program
