// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/activation.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/base/status_macros.h"

namespace deeppcr::program {
namespace {

struct ActivationOp {
  Activation activation;
  Op op;
};
constexpr std::array<ActivationOp, 8> kActivationOps = {{
    {Activation::kRelu, Op::kRelu},
    {Activation::kTanh, Op::kTanh},
    {Activation::kSigmoid, Op::kSigmoid},
    {Activation::kSilu, Op::kSilu},
    {Activation::kGelu, Op::kGelu},
    {Activation::kGeluTanh, Op::kGeluTanh},
    {Activation::kSoftplus, Op::kSoftplus},
    {Activation::kMish, Op::kMish},
}};

// max(x, 0) + the branch of what is below: 0.01 x, or e^x - 1.
absl::StatusOr<ValueId> AddTwoBranches(ProgramBuilder& builder, Activation activation, ValueId x) {
  const int64_t size = builder.at(x).size;
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId zero, builder.AddConstant(std::vector<double>(size)));
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId above, builder.AddElementwise(Op::kRelu, {{x}}));
  DEEPPCR_ASSIGN_OR_RETURN(ValueId below, builder.AddElementwise(Op::kMinimum, {{x, zero}}));
  if (activation == Activation::kElu) {
    DEEPPCR_ASSIGN_OR_RETURN(below, builder.AddElementwise(Op::kExpMinusOne, {{below}}));
  } else {
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId slope,
                             builder.AddConstant(std::vector<double>(size, 0.01)));
    DEEPPCR_ASSIGN_OR_RETURN(below, builder.AddElementwise(Op::kMultiply, {{below, slope}}));
  }
  return builder.AddElementwise(Op::kAdd, {{above, below}});
}

}  // namespace

std::optional<Activation> ActivationOf(Op op) {
  const auto found = std::ranges::find(kActivationOps, op, &ActivationOp::op);
  if (found == kActivationOps.end()) return std::nullopt;
  return found->activation;
}

absl::StatusOr<ValueId> AddActivation(ProgramBuilder& builder, Activation activation, ValueId x) {
  if (activation == Activation::kIdentity) return x;
  const auto found = std::ranges::find(kActivationOps, activation, &ActivationOp::activation);
  if (found == kActivationOps.end()) return AddTwoBranches(builder, activation, x);
  return builder.AddElementwise(found->op, {{x}});
}

}  // namespace deeppcr::program
