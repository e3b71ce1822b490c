// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/dense_stack.h"

#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/program/activation.h"
#include "kernels/program/builder.h"
#include "kernels/program/passes/program_index.h"

namespace deeppcr::program {
namespace {

// Takes the residual sum off: the value that is added to the state.
ValueId BranchOf(const ProgramIndex& index, const Instruction& end, DenseStackForm& form) {
  const ValueId state = index.program().state;
  if (end.op != Op::kAdd) return end.result;
  const bool first = end.operands[0] == state;
  if (first == (end.operands[1] == state)) return end.result;  // neither, or 2 z
  form.residual = true;
  return end.operands[first ? 1 : 0];
}

// Takes a factor off that is the same for all elements, and that float32 holds as it is used.
ValueId UnscaledOf(const ProgramIndex& index, ValueId id, DenseStackForm& form) {
  const Instruction* product = index.Inner(id, Op::kMultiply);
  if (product == nullptr || !form.residual) return id;
  for (const int which : {0, 1}) {
    const auto number = index.Number(product->operands[static_cast<size_t>(which)]);
    if (!number.has_value()) continue;
    form.scale = static_cast<float>(*number);
    const float size = std::fabs(form.scale);
    if (!(size >= std::numeric_limits<float>::min()) || !std::isfinite(size)) return kNoValue;
    return product->operands[static_cast<size_t>(1 - which)];
  }
  return id;
}

ValueId PreActivationOf(const ProgramIndex& index, ValueId id, DenseStackForm& form) {
  const Instruction* maker = index.Producer(id);
  if (maker == nullptr) return kNoValue;
  const auto activation = ActivationOf(maker->op);
  if (!activation.has_value()) return id;
  form.activation = *activation;
  return maker->operands[0];
}

std::shared_ptr<const std::vector<float>> Owned(std::span<const float> from) {
  return std::make_shared<const std::vector<float>>(from.begin(), from.end());
}

}  // namespace

std::optional<DenseStackForm> DenseStackFormOf(const Program& program) {
  const ProgramIndex index(program);
  const Instruction* end = index.Producer(program.output);
  if (end == nullptr || program.prediction != kNoValue) return std::nullopt;
  DenseStackForm form;
  ValueId id = BranchOf(index, *end, form);
  id = UnscaledOf(index, id, form);
  if (id != kNoValue) id = PreActivationOf(index, id, form);
  const Instruction* product = id == kNoValue ? nullptr : index.Producer(id);
  if (product == nullptr || product->op != Op::kProduct || product->operands[0] != program.state ||
      product->linear.repeat != 1)
    return std::nullopt;
  form.matrix = product->operands[1];
  form.transposed = product->linear.transposed;
  if (product->operands.size() > 2) form.bias = product->operands[2];
  return form;
}

absl::StatusOr<Program> ProgramOfStack(const DenseStackSpec& spec) {
  const int64_t dim = spec.state_dim;
  ProgramBuilder builder;
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId z, builder.AddState(dim));
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId matrix,
                           builder.AddStacked(Owned(spec.weights), dim * dim));
  ValueId bias = kNoValue;
  if (!spec.biases.empty()) {
    DEEPPCR_ASSIGN_OR_RETURN(bias, builder.AddStacked(Owned(spec.biases), dim));
  }
  DEEPPCR_ASSIGN_OR_RETURN(ValueId next,
                           builder.AddProduct(z, matrix, bias, {.rows = dim, .cols = dim}));
  DEEPPCR_ASSIGN_OR_RETURN(next, AddActivation(builder, spec.activation, next));
  if (!spec.residual) return builder.Finish(next);
  DEEPPCR_ASSIGN_OR_RETURN(
      const ValueId scale,
      builder.AddConstant(std::vector<double>(static_cast<size_t>(dim), spec.residual_scale)));
  DEEPPCR_ASSIGN_OR_RETURN(next, builder.AddElementwise(Op::kMultiply, {{scale, next}}));
  DEEPPCR_ASSIGN_OR_RETURN(next, builder.AddElementwise(Op::kAdd, {{z, next}}));
  return builder.Finish(next);
}

}  // namespace deeppcr::program
