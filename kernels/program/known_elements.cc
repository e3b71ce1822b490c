// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/known_elements.h"

#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/program/passes/program_writer.h"

namespace deeppcr::program {

absl::StatusOr<Program> WithKnownElements(const Program& program, const ProgramLimits& limits) {
  const int64_t dim = program.at(program.state).size;
  ProgramWriter writer(program, limits);
  DEEPPCR_RETURN_IF_ERROR(writer.Begin(std::vector<bool>(program.values.size(), true), 2 * dim));
  ProgramBuilder& builder = writer.builder();
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId mask, writer.AddMore(0, dim));
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId values, writer.AddMore(dim, dim));
  const ValueId state = builder.program().state;
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId seen,
                           builder.AddElementwise(Op::kSelect, {{mask, values, state}}));
  writer.Set(program.state, seen);
  for (const Instruction& instruction : program.instructions) {
    std::vector<ValueId> operands = writer.Now(instruction.operands);
    // What it makes of the known elements is not looked at.
    if (instruction.op == Op::kReverseStep) operands[0] = state;
    DEEPPCR_ASSIGN_OR_RETURN(ValueId now, builder.AddLike(instruction, operands));
    if (instruction.op == Op::kReverseStep) {
      DEEPPCR_ASSIGN_OR_RETURN(now, builder.AddElementwise(Op::kSelect, {{mask, values, now}}));
    }
    writer.Set(instruction.result, now);
  }
  return writer.Finish();
}

}  // namespace deeppcr::program
