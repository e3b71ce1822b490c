// SPDX-License-Identifier: Apache-2.0
// Activations, as the program's operations.

#include <cmath>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/onnx/operators.h"

namespace deeppcr::program {
namespace {

template <Op op>
absl::StatusOr<Tensor> Unary(Call& call) {
  return call.lowering.Elementwise(op, {call.in(0)});
}

// relu(a) + below, for activations that are the identity above zero.
absl::StatusOr<Tensor> IdentityAbove(Lowering& lowering, const Tensor& a, const Tensor& below) {
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor above, lowering.Elementwise(Op::kRelu, {a}));
  return lowering.Elementwise(Op::kAdd, {above, below});
}

// relu(a) + slope min(a, 0)
absl::StatusOr<Tensor> Leaky(Lowering& lowering, const Tensor& a, const Tensor& slope) {
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor least, lowering.Elementwise(Op::kMinimum, a, 0));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor below, lowering.Elementwise(Op::kMultiply, {least, slope}));
  return IdentityAbove(lowering, a, below);
}

absl::StatusOr<Tensor> LeakyRelu(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const double alpha, call.Float("alpha", 0.01));
  if (static_cast<float>(alpha) == 0.01F) return Unary<Op::kLeakyRelu>(call);
  return Leaky(call.lowering, call.in(0), Lowering::Scalar(alpha));
}

absl::StatusOr<Tensor> PRelu(Call& call) { return Leaky(call.lowering, call.in(0), call.in(1)); }

// relu(a) + height (e^(min(a, 0) / width) - 1)
absl::StatusOr<Tensor> Exponential(Lowering& lowering, const Tensor& a, double height,
                                   double width) {
  DEEPPCR_ASSIGN_OR_RETURN(Tensor below, lowering.Elementwise(Op::kMinimum, a, 0));
  if (width != 1) {
    DEEPPCR_ASSIGN_OR_RETURN(below, lowering.Elementwise(Op::kDivide, below, width));
  }
  DEEPPCR_ASSIGN_OR_RETURN(below, lowering.Elementwise(Op::kExpMinusOne, {below}));
  if (height != 1) {
    DEEPPCR_ASSIGN_OR_RETURN(below, lowering.Elementwise(Op::kMultiply, below, height));
  }
  return IdentityAbove(lowering, a, below);
}

absl::StatusOr<Tensor> Elu(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const double alpha, call.Float("alpha", 1));
  if (alpha == 1) return Unary<Op::kElu>(call);
  return Exponential(call.lowering, call.in(0), alpha, 1);
}

absl::StatusOr<Tensor> Celu(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const double alpha, call.Float("alpha", 1));
  if (!(alpha > 0)) return InvalidArgument("attribute alpha: expected more than 0, got ", alpha);
  return Exponential(call.lowering, call.in(0), alpha, alpha);
}

absl::StatusOr<Tensor> Selu(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const double alpha, call.Float("alpha", 1.67326319217681884765625));
  DEEPPCR_ASSIGN_OR_RETURN(const double gamma, call.Float("gamma", 1.05070102214813232421875));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor elu, Exponential(call.lowering, call.in(0), alpha, 1));
  return call.lowering.Elementwise(Op::kMultiply, elu, gamma);
}

absl::StatusOr<Tensor> Softsign(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor size, call.lowering.Elementwise(Op::kAbs, {call.in(0)}));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor divisor, call.lowering.Elementwise(Op::kAdd, size, 1));
  return call.lowering.Elementwise(Op::kDivide, {call.in(0), divisor});
}

// min(max(slope a + offset, 0), 1)
absl::StatusOr<Tensor> HardStep(Lowering& lowering, const Tensor& a, double slope, double offset) {
  DEEPPCR_ASSIGN_OR_RETURN(Tensor step, lowering.Elementwise(Op::kMultiply, a, slope));
  DEEPPCR_ASSIGN_OR_RETURN(step, lowering.Elementwise(Op::kAdd, step, offset));
  DEEPPCR_ASSIGN_OR_RETURN(step, lowering.Elementwise(Op::kMaximum, step, 0));
  return lowering.Elementwise(Op::kMinimum, step, 1);
}

absl::StatusOr<Tensor> HardSigmoid(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const double alpha, call.Float("alpha", 0.2f));
  DEEPPCR_ASSIGN_OR_RETURN(const double beta, call.Float("beta", 0.5));
  return HardStep(call.lowering, call.in(0), alpha, beta);
}

absl::StatusOr<Tensor> HardSwish(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor gate, HardStep(call.lowering, call.in(0), 1.0 / 6, 0.5));
  return call.lowering.Elementwise(Op::kMultiply, {call.in(0), gate});
}

absl::StatusOr<Tensor> Gelu(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::string approximate, call.String("approximate", "none"));
  if (approximate != "none" && approximate != "tanh") {
    return InvalidArgument("attribute approximate: expected \"none\" or \"tanh\", got ",
                           Quoted(approximate));
  }
  return call.lowering.Elementwise(approximate == "none" ? Op::kGelu : Op::kGeluTanh, {call.in(0)});
}

absl::StatusOr<Tensor> ThresholdedRelu(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const double alpha, call.Float("alpha", 1));
  DEEPPCR_ASSIGN_OR_RETURN(
      const Tensor above,
      call.lowering.Elementwise(Op::kLess, {Lowering::Scalar(alpha), call.in(0)}));
  return call.lowering.Elementwise(Op::kSelect, {above, call.in(0), Lowering::Scalar(0)});
}

absl::StatusOr<Tensor> Swish(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const double alpha, call.Float("alpha", 1));
  if (alpha == 1) return call.lowering.Elementwise(Op::kSilu, {call.in(0)});
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor scaled,
                           call.lowering.Elementwise(Op::kMultiply, call.in(0), alpha));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor gate, call.lowering.Elementwise(Op::kSigmoid, {scaled}));
  return call.lowering.Elementwise(Op::kMultiply, {call.in(0), gate});
}

constexpr OperatorRow kRows[] = {
    {"Celu", 12, 1, 1, One<Celu>},
    {"Elu", 7, 1, 1, One<Elu>},
    {"Gelu", 20, 1, 1, One<Gelu>},
    {"HardSigmoid", 7, 1, 1, One<HardSigmoid>},
    {"HardSwish", 14, 1, 1, One<HardSwish>},
    {"LeakyRelu", 7, 1, 1, One<LeakyRelu>},
    {"Mish", 18, 1, 1, One<Unary<Op::kMish>>},
    {"PRelu", 7, 2, 2, One<PRelu>},
    {"Relu", 7, 1, 1, One<Unary<Op::kRelu>>},
    {"Selu", 7, 1, 1, One<Selu>},
    {"Sigmoid", 7, 1, 1, One<Unary<Op::kSigmoid>>},
    {"Softplus", 7, 1, 1, One<Unary<Op::kSoftplus>>},
    {"Softsign", 7, 1, 1, One<Softsign>},
    {"Swish", 24, 1, 1, One<Swish>},
    {"Tanh", 7, 1, 1, One<Unary<Op::kTanh>>},
    {"ThresholdedRelu", 10, 1, 1, One<ThresholdedRelu>},
};

}  // namespace

std::span<const OperatorRow> ActivationOperators() { return kRows; }

}  // namespace deeppcr::program
