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
constexpr std::array<ActivationOp, 10> kActivationOps = {{
    {Activation::kRelu, Op::kRelu},
    {Activation::kLeakyRelu, Op::kLeakyRelu},
    {Activation::kElu, Op::kElu},
    {Activation::kTanh, Op::kTanh},
    {Activation::kSigmoid, Op::kSigmoid},
    {Activation::kSilu, Op::kSilu},
    {Activation::kGelu, Op::kGelu},
    {Activation::kGeluTanh, Op::kGeluTanh},
    {Activation::kSoftplus, Op::kSoftplus},
    {Activation::kMish, Op::kMish},
}};

}  // namespace

std::optional<Activation> ActivationOf(Op op) {
  const auto found = std::ranges::find(kActivationOps, op, &ActivationOp::op);
  if (found == kActivationOps.end()) return std::nullopt;
  return found->activation;
}

absl::StatusOr<ValueId> AddActivation(ProgramBuilder& builder, Activation activation, ValueId x) {
  if (activation == Activation::kIdentity) return x;
  const auto found = std::ranges::find(kActivationOps, activation, &ActivationOp::activation);
  return builder.AddElementwise(found->op, {{x}});
}

}  // namespace deeppcr::program
