// SPDX-License-Identifier: Apache-2.0
// Arithmetic, comparisons and conversions, element by element.

#include <onnx/onnx.pb.h>

#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/onnx/operators.h"

namespace deeppcr::program {

absl::StatusOr<Tensor> Truncated(Lowering& lowering, const Tensor& a) {
  if (a.type != OnnxType::kFloat) return a;
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor below, lowering.Elementwise(Op::kFloor, {a}));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor minus, lowering.Elementwise(Op::kNegate, {a}));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor minus_above, lowering.Elementwise(Op::kFloor, {minus}));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor above, lowering.Elementwise(Op::kNegate, {minus_above}));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor negative, lowering.Elementwise(Op::kLess, a, 0));
  return lowering.Elementwise(Op::kSelect, {negative, above, below}, OnnxType::kFloat);
}

namespace {

absl::Status CheckSameType(const Call& call) {
  for (size_t i = 1; i < call.inputs.size(); ++i) {
    if (!call.Has(i)) return InvalidArgument("input ", i, " is missing");
    if (call.in(i).type != call.in(0).type) {
      return InvalidArgument("operands of different types, ", OnnxTypeName(call.in(0).type),
                             " and ", OnnxTypeName(call.in(i).type));
    }
  }
  return absl::OkStatus();
}

template <Op op>
absl::StatusOr<Tensor> Unary(Call& call) {
  return call.lowering.Elementwise(op, {call.in(0)});
}

template <Op op>
absl::StatusOr<Tensor> Binary(Call& call) {
  DEEPPCR_RETURN_IF_ERROR(CheckSameType(call));
  return call.lowering.Elementwise(op, {call.in(0), call.in(1)});
}

// op(op(a, b), c) and so on.
template <Op op>
absl::StatusOr<Tensor> Variadic(Call& call) {
  DEEPPCR_RETURN_IF_ERROR(CheckSameType(call));
  Tensor result = call.in(0);
  for (size_t i = 1; i < call.inputs.size(); ++i) {
    DEEPPCR_ASSIGN_OR_RETURN(result, call.lowering.Elementwise(op, {result, call.in(i)}));
  }
  return result;
}

absl::StatusOr<Tensor> Mean(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor sum, Variadic<Op::kAdd>(call));
  return call.lowering.Elementwise(Op::kDivide, sum, static_cast<double>(call.inputs.size()));
}

// a / b, towards zero where they are integers.
absl::StatusOr<Tensor> Quotient(Lowering& lowering, const Tensor& a, const Tensor& b) {
  if (a.type == OnnxType::kFloat) return lowering.Elementwise(Op::kDivide, {a, b});
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor exact,
                           lowering.Elementwise(Op::kDivide, {a, b}, OnnxType::kFloat));
  DEEPPCR_ASSIGN_OR_RETURN(Tensor quotient, Truncated(lowering, exact));
  quotient.type = a.type;
  return quotient;
}

absl::StatusOr<Tensor> Div(Call& call) {
  DEEPPCR_RETURN_IF_ERROR(CheckSameType(call));
  return Quotient(call.lowering, call.in(0), call.in(1));
}

absl::StatusOr<Tensor> Mod(Call& call) {
  Lowering& lowering = call.lowering;
  DEEPPCR_RETURN_IF_ERROR(CheckSameType(call));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t sign_of_dividend, call.Int("fmod", 0));
  Tensor a = call.in(0), b = call.in(1);
  const OnnxType type = std::exchange(a.type, OnnxType::kFloat);
  b.type = OnnxType::kFloat;
  DEEPPCR_ASSIGN_OR_RETURN(Tensor times, lowering.Elementwise(Op::kDivide, {a, b}));
  if (sign_of_dividend != 0) {
    DEEPPCR_ASSIGN_OR_RETURN(times, Truncated(lowering, times));
  } else {
    DEEPPCR_ASSIGN_OR_RETURN(times, lowering.Elementwise(Op::kFloor, {times}));
  }
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor whole, lowering.Elementwise(Op::kMultiply, {b, times}));
  return lowering.Elementwise(Op::kSubtract, {a, whole}, type);
}

// Powers that need no logarithm are products, which take negative numbers too.
absl::StatusOr<Tensor> Pow(Call& call) {
  Lowering& lowering = call.lowering;
  const Tensor& a = call.in(0);
  const Tensor& b = call.in(1);
  const bool one_power = b.is_constant() && NumElements(b.shape) == 1;
  const double power = one_power ? (*b.constant)[0] : 0;
  if (one_power && b.shape.size() <= a.shape.size()) {
    if (power == 1) return a;
    if (power == 0.5) return lowering.Elementwise(Op::kSqrt, {a});
    if (power == -1) return lowering.Elementwise(Op::kReciprocal, {a});
    if (power == 2) return lowering.Elementwise(Op::kSquare, {a});
    if (power == 3) {
      DEEPPCR_ASSIGN_OR_RETURN(const Tensor square, lowering.Elementwise(Op::kSquare, {a}));
      return lowering.Elementwise(Op::kMultiply, {square, a});
    }
  }
  return lowering.Elementwise(Op::kPower, {a, b}, a.type);
}

absl::StatusOr<Tensor> Floor(Call& call) {
  if (call.in(0).type != OnnxType::kFloat) return call.in(0);
  return call.lowering.Elementwise(Op::kFloor, {call.in(0)});
}

absl::StatusOr<Tensor> Ceil(Call& call) {
  if (call.in(0).type != OnnxType::kFloat) return call.in(0);
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor minus,
                           call.lowering.Elementwise(Op::kNegate, {call.in(0)}));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor below, call.lowering.Elementwise(Op::kFloor, {minus}));
  return call.lowering.Elementwise(Op::kNegate, {below});
}

// To the nearest integer, from the middle to the even one.
absl::StatusOr<Tensor> Round(Call& call) {
  Lowering& lowering = call.lowering;
  const Tensor& a = call.in(0);
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor below, lowering.Elementwise(Op::kFloor, {a}));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor above, lowering.Elementwise(Op::kSubtract, {a, below}));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor half, lowering.Elementwise(Op::kMultiply, below, 0.5));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor whole, lowering.Elementwise(Op::kFloor, {half}));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor even, lowering.Elementwise(Op::kEqual, {half, whole}));
  // Above an even integer the middle goes down, above an odd one up.
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor beyond,
                           lowering.Elementwise(Op::kLess, {Lowering::Scalar(0.5), above}));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor less, lowering.Elementwise(Op::kLess, above, 0.5));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor not_less,
                           lowering.Elementwise(Op::kSubtract, {Lowering::Scalar(1), less}));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor up,
                           lowering.Elementwise(Op::kSelect, {even, beyond, not_less}));
  return lowering.Elementwise(Op::kAdd, {below, up});
}

absl::StatusOr<Tensor> Sign(Call& call) {
  const Tensor& a = call.in(0);
  const Tensor zero = Lowering::Scalar(0, a.type);
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor positive, call.lowering.Elementwise(Op::kLess, {zero, a}));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor negative, call.lowering.Elementwise(Op::kLess, {a, zero}));
  return call.lowering.Elementwise(Op::kSubtract, {positive, negative}, a.type);
}

absl::StatusOr<Tensor> Clip(Call& call) {
  Tensor result = call.in(0);
  std::optional<Tensor> least, most;
  if (call.opset < 11) {
    if (call.HasAttribute("min")) {
      DEEPPCR_ASSIGN_OR_RETURN(const double bound, call.Float("min", 0));
      least = Lowering::Scalar(bound);
    }
    if (call.HasAttribute("max")) {
      DEEPPCR_ASSIGN_OR_RETURN(const double bound, call.Float("max", 0));
      most = Lowering::Scalar(bound);
    }
  } else {
    if (call.Has(1)) least = call.in(1);
    if (call.Has(2)) most = call.in(2);
  }
  if (least.has_value()) {
    DEEPPCR_ASSIGN_OR_RETURN(result, call.lowering.Elementwise(Op::kMaximum, {result, *least}));
  }
  if (most.has_value()) {
    DEEPPCR_ASSIGN_OR_RETURN(result, call.lowering.Elementwise(Op::kMinimum, {result, *most}));
  }
  return result;
}

absl::StatusOr<Tensor> Where(Call& call) {
  if (call.in(0).type != OnnxType::kBool || call.in(1).type != call.in(2).type) {
    return InvalidArgument("expected a bool and two values of one type");
  }
  return call.lowering.Elementwise(Op::kSelect, {call.in(0), call.in(1), call.in(2)},
                                   call.in(1).type);
}

absl::StatusOr<Tensor> Inverted(Lowering& lowering, const Tensor& a) {
  return lowering.Elementwise(Op::kSubtract, {Lowering::Scalar(1, OnnxType::kBool), a},
                              OnnxType::kBool);
}

absl::StatusOr<Tensor> Less(Call& call) {
  DEEPPCR_RETURN_IF_ERROR(CheckSameType(call));
  return call.lowering.Elementwise(Op::kLess, {call.in(0), call.in(1)}, OnnxType::kBool);
}

absl::StatusOr<Tensor> Greater(Call& call) {
  DEEPPCR_RETURN_IF_ERROR(CheckSameType(call));
  return call.lowering.Elementwise(Op::kLess, {call.in(1), call.in(0)}, OnnxType::kBool);
}

absl::StatusOr<Tensor> LessOrEqual(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor greater, Greater(call));
  return Inverted(call.lowering, greater);
}

absl::StatusOr<Tensor> GreaterOrEqual(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor less, Less(call));
  return Inverted(call.lowering, less);
}

absl::StatusOr<Tensor> Equal(Call& call) {
  DEEPPCR_RETURN_IF_ERROR(CheckSameType(call));
  return call.lowering.Elementwise(Op::kEqual, {call.in(0), call.in(1)}, OnnxType::kBool);
}

absl::Status CheckBools(const Call& call) {
  DEEPPCR_RETURN_IF_ERROR(CheckSameType(call));
  if (call.in(0).type == OnnxType::kBool) return absl::OkStatus();
  return InvalidArgument("expected operands of type bool, got ", OnnxTypeName(call.in(0).type));
}

absl::StatusOr<Tensor> Not(Call& call) {
  DEEPPCR_RETURN_IF_ERROR(CheckBools(call));
  return Inverted(call.lowering, call.in(0));
}

template <Op op>
absl::StatusOr<Tensor> Logical(Call& call) {
  DEEPPCR_RETURN_IF_ERROR(CheckBools(call));
  return call.lowering.Elementwise(op, {call.in(0), call.in(1)});
}

absl::StatusOr<Tensor> Xor(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor equal, Logical<Op::kEqual>(call));
  return Inverted(call.lowering, equal);
}

absl::StatusOr<Tensor> As(Lowering& lowering, Tensor a, OnnxType type) {
  if (a.type == type) return a;
  if (type == OnnxType::kBool) {
    const Tensor zero = Lowering::Scalar(0, a.type);
    DEEPPCR_ASSIGN_OR_RETURN(const Tensor equal, lowering.Elementwise(Op::kEqual, {a, zero}));
    return Inverted(lowering, equal);
  }
  if (type == OnnxType::kInteger) {
    DEEPPCR_ASSIGN_OR_RETURN(a, Truncated(lowering, a));
  }
  a.type = type;
  return a;
}

absl::StatusOr<Tensor> Cast(Call& call) {
  call.Ignore("saturate");  // of 8-bit floats
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t to, call.Int("to", 0));
  switch (to) {
    case onnx::TensorProto::FLOAT:
    case onnx::TensorProto::DOUBLE:
      return As(call.lowering, call.in(0), OnnxType::kFloat);
    case onnx::TensorProto::INT32:
    case onnx::TensorProto::INT64:
      return As(call.lowering, call.in(0), OnnxType::kInteger);
    case onnx::TensorProto::BOOL:
      return As(call.lowering, call.in(0), OnnxType::kBool);
    case onnx::TensorProto::FLOAT16:
    case onnx::TensorProto::BFLOAT16:
      return InvalidArgument("16-bit floats are not computed with: export in float32");
    default:
      return InvalidArgument("attribute to: element type ", to,
                             " is not taken; expected FLOAT, DOUBLE, INT32, INT64 or BOOL");
  }
}

absl::StatusOr<Tensor> CastLike(Call& call) {
  call.Ignore("saturate");
  return As(call.lowering, call.in(0), call.in(1).type);
}

constexpr OperatorRow kRows[] = {
    {"Abs", 7, 1, 1, One<Unary<Op::kAbs>>},
    {"Add", 7, 2, 2, One<Binary<Op::kAdd>>},
    {"And", 7, 2, 2, One<Logical<Op::kMultiply>>},
    {"Atan", 7, 1, 1, One<Unary<Op::kAtan>>},
    {"Cast", 7, 1, 1, One<Cast>},
    {"CastLike", 15, 2, 2, One<CastLike>},
    {"Ceil", 7, 1, 1, One<Ceil>},
    {"Clip", 7, 1, 3, One<Clip>},
    {"Cos", 7, 1, 1, One<Unary<Op::kCos>>},
    {"Div", 7, 2, 2, One<Div>},
    {"Equal", 7, 2, 2, One<Equal>},
    {"Erf", 9, 1, 1, One<Unary<Op::kErf>>},
    {"Exp", 7, 1, 1, One<Unary<Op::kExp>>},
    {"Floor", 7, 1, 1, One<Floor>},
    {"Greater", 7, 2, 2, One<Greater>},
    {"GreaterOrEqual", 12, 2, 2, One<GreaterOrEqual>},
    {"Less", 7, 2, 2, One<Less>},
    {"LessOrEqual", 12, 2, 2, One<LessOrEqual>},
    {"Log", 7, 1, 1, One<Unary<Op::kLog>>},
    {"Max", 8, 1, kAnyNumber, One<Variadic<Op::kMaximum>>},
    {"Mean", 8, 1, kAnyNumber, One<Mean>},
    {"Min", 8, 1, kAnyNumber, One<Variadic<Op::kMinimum>>},
    {"Mod", 10, 2, 2, One<Mod>},
    {"Mul", 7, 2, 2, One<Binary<Op::kMultiply>>},
    {"Neg", 7, 1, 1, One<Unary<Op::kNegate>>},
    {"Not", 7, 1, 1, One<Not>},
    {"Or", 7, 2, 2, One<Logical<Op::kMaximum>>},
    {"Pow", 7, 2, 2, One<Pow>},
    {"Reciprocal", 7, 1, 1, One<Unary<Op::kReciprocal>>},
    {"Round", 11, 1, 1, One<Round>},
    {"Sign", 9, 1, 1, One<Sign>},
    {"Sin", 7, 1, 1, One<Unary<Op::kSin>>},
    {"Sqrt", 7, 1, 1, One<Unary<Op::kSqrt>>},
    {"Sub", 7, 2, 2, One<Binary<Op::kSubtract>>},
    {"Sum", 8, 1, kAnyNumber, One<Variadic<Op::kAdd>>},
    {"Where", 9, 3, 3, One<Where>},
    {"Xor", 7, 2, 2, One<Xor>},
};

}  // namespace

std::span<const OperatorRow> ArithmeticOperators() { return kRows; }

}  // namespace deeppcr::program
