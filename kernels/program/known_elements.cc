// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/known_elements.h"

#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/passes/program_writer.h"

namespace deeppcr::program {
namespace {

// Elements of z, which a memory may stand behind in the state.
absl::StatusOr<int64_t> SizeOfZ(const Program& program) {
  for (const Instruction& instruction : program.instructions)
    if (instruction.op == Op::kReverseStep) return program.at(instruction.result).size;
  return Internal("known elements of a program without a reverse step");
}

}  // namespace

absl::StatusOr<Program> WithKnownElements(const Program& program, int64_t unread,
                                          const ProgramLimits& limits) {
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t dim, SizeOfZ(program));
  const int64_t size = program.at(program.state).size;
  ProgramWriter writer(program, limits);
  DEEPPCR_RETURN_IF_ERROR(
      writer.Begin(std::vector<bool>(program.values.size(), true), unread + 2 * dim));
  ProgramBuilder& builder = writer.builder();
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId mask, writer.AddMore(unread, dim));
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId values, writer.AddMore(unread + dim, dim));
  // The state with the known elements put in.
  const auto known = [&](ValueId state) -> absl::StatusOr<ValueId> {
    DEEPPCR_ASSIGN_OR_RETURN(ValueId z, size == dim ? state : builder.AddPart(state, 0, dim));
    DEEPPCR_ASSIGN_OR_RETURN(z, builder.AddElementwise(Op::kSelect, {{mask, values, z}}));
    if (size == dim) return z;
    std::vector<Element> elements;
    for (int64_t i = 0; i < size; ++i) elements.push_back({i < dim ? 0 : 1, i});
    return builder.AddArrange({{z, state}}, std::move(elements));
  };
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId seen, known(builder.program().state));
  writer.Set(program.state, seen);
  for (const Instruction& instruction : program.instructions) {
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId now,
                             builder.AddLike(instruction, writer.Now(instruction.operands)));
    writer.Set(instruction.result, now);
  }
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId next, known(writer.Now(program.output)));
  writer.Set(program.output, next);
  return writer.Finish();
}

}  // namespace deeppcr::program
