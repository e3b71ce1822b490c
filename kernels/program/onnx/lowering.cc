// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/onnx/lowering.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/evaluate.h"
#include "kernels/program/onnx/shape_size.h"

namespace deeppcr::program {
namespace {

constexpr double kMaxExactInteger = 9007199254740992.0;  // 2^53
constexpr double kNoBound = 9223372036854775808.0;       // 2^63

Numbers NumbersOf(std::vector<double> elements) {
  return {.doubles = std::make_shared<const std::vector<double>>(std::move(elements))};
}

std::vector<double> ToDoubles(const Numbers& numbers, int64_t size) {
  std::vector<double> elements(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) elements[static_cast<size_t>(i)] = numbers[i];
  return elements;
}

absl::Status CheckComputed(const std::vector<double>& elements, OnnxType type) {
  for (const double element : elements) {
    if (std::isnan(element)) {
      return InvalidArgument("a constant is not a number (0 / 0, or the like)");
    }
    // The ends of 64 bits stand for "no bound" and stay what they are.
    const double magnitude = std::abs(element);
    if (type == OnnxType::kInteger && magnitude > kMaxExactInteger && magnitude != kNoBound) {
      return InvalidArgument("an integer constant beyond 2^53");
    }
  }
  return absl::OkStatus();
}

// Calls visit(source) with the index of each element of a strided view, in row-major order.
template <typename Visit>
void WalkStrided(std::span<const int64_t> shape, std::span<const int64_t> strides, int64_t offset,
                 Visit visit) {
  const int64_t size = NumElements(shape);
  std::vector<int64_t> at(shape.size());
  int64_t source = offset;
  for (int64_t i = 0; i < size; ++i) {
    visit(source);
    for (size_t axis = shape.size(); axis-- > 0;) {
      source += strides[axis];
      if (++at[axis] < shape[axis]) break;
      source -= strides[axis] * shape[axis];
      at[axis] = 0;
    }
  }
}

template <typename T>
std::shared_ptr<const std::vector<T>> Picked(const std::vector<T>& from,
                                             std::span<const int64_t> shape,
                                             std::span<const int64_t> strides, int64_t offset) {
  auto to = std::make_shared<std::vector<T>>();
  to->reserve(static_cast<size_t>(NumElements(shape)));
  WalkStrided(shape, strides, offset,
              [&](int64_t source) { to->push_back(from[static_cast<size_t>(source)]); });
  return to;
}

bool IsInOrder(std::span<const int64_t> shape, std::span<const int64_t> strides) {
  int64_t expected = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    if (shape[axis] != 1 && strides[axis] != expected) return false;
    expected *= shape[axis];
  }
  return true;
}

}  // namespace

int64_t NumElements(std::span<const int64_t> shape) {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

absl::StatusOr<Shape> BroadcastShape(std::span<const int64_t> a, std::span<const int64_t> b) {
  Shape shape(std::max(a.size(), b.size()), 1);
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t from_a = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t from_b = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (from_a != from_b && from_a != 1 && from_b != 1) {
      return InvalidArgument("shapes ", ShapeString(a), " and ", ShapeString(b),
                             " cannot be broadcast");
    }
    shape[shape.size() - 1 - i] = from_a == 1 ? from_b : from_a;
  }
  return shape;
}

Shape StridesOf(std::span<const int64_t> shape) {
  Shape strides(shape.size());
  int64_t stride = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
  return strides;
}

absl::StatusOr<int64_t> NormalizedAxis(int64_t axis, int64_t rank) {
  if (axis < -rank || axis >= rank) {
    return InvalidArgument("axis ", axis, " of a tensor of rank ", rank);
  }
  return axis < 0 ? axis + rank : axis;
}

Tensor Lowering::Scalar(double value, OnnxType type) {
  return {.type = type, .constant = NumbersOf({value})};
}

Tensor Lowering::Vector(std::vector<double> elements, OnnxType type) {
  return {.shape = {static_cast<int64_t>(elements.size())},
          .type = type,
          .constant = NumbersOf(std::move(elements))};
}

absl::Status Lowering::Spend(int64_t elements) {
  if (elements > elements_left_) {
    return ResourceExhausted("shapes grow far beyond the file's constants");
  }
  elements_left_ -= elements;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Lowering::SpendShape(std::span<const int64_t> shape) {
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t elements, CheckedSize(shape));
  DEEPPCR_RETURN_IF_ERROR(Spend(elements));
  return elements;
}

namespace {

// Operations whose results on integers are integers. ONNX has none of the others for integers, but
// PyTorch's exporter writes them where its own functions take integers and make floats.
bool KeepsIntegers(Op op) {
  switch (op) {
    case Op::kNegate:
    case Op::kAbs:
    case Op::kSquare:
    case Op::kRelu:
    case Op::kFloor:
    case Op::kAdd:
    case Op::kSubtract:
    case Op::kMultiply:
    case Op::kMaximum:
    case Op::kMinimum:
    case Op::kLess:
    case Op::kEqual:
    case Op::kSelect:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::StatusOr<Tensor> Lowering::Elementwise(Op op, std::initializer_list<Tensor> operands,
                                             std::optional<OnnxType> type) {
  std::vector<Tensor> shaped(operands);
  Shape shape = shaped[0].shape;
  for (const Tensor& operand : shaped) {
    DEEPPCR_ASSIGN_OR_RETURN(shape, BroadcastShape(shape, operand.shape));
  }
  for (Tensor& operand : shaped) {
    DEEPPCR_ASSIGN_OR_RETURN(operand, Broadcast(operand, shape));
  }
  const OnnxType result_type = type.value_or(KeepsIntegers(op) ? shaped[0].type : OnnxType::kFloat);
  return Finish({.op = op}, shaped, std::move(shape), result_type);
}

absl::StatusOr<Tensor> Lowering::AlongAxis(Op op, const Tensor& operand, const Axis& axis,
                                           Shape shape, double epsilon) {
  if (axis.length == 0) return InvalidArgument("an axis of no elements");
  return Finish({.op = op, .axis = axis, .epsilon = epsilon}, {{operand}}, std::move(shape),
                operand.type);
}

absl::StatusOr<Tensor> Lowering::Linear(const Tensor& operand, const LinearLayer& layer,
                                        Shape shape) {
  return Finish({.op = Op::kLinear, .linear = layer}, {{operand}}, std::move(shape), operand.type);
}

absl::StatusOr<Tensor> Lowering::Product(const Tensor& operand, const Tensor& matrix,
                                         const LinearLayer& sizes, Shape shape) {
  return Finish({.op = Op::kProduct, .linear = sizes}, {{operand, matrix}}, std::move(shape),
                operand.type);
}

absl::StatusOr<Tensor> Lowering::Lookup(const Tensor& index, const LinearLayer& table,
                                        Shape shape) {
  return Finish({.op = Op::kLookup, .linear = table}, {{index}}, std::move(shape),
                OnnxType::kFloat);
}

absl::StatusOr<Tensor> Lowering::Lookup(const Tensor& index, const Tensor& table,
                                        const LinearLayer& sizes, Shape shape) {
  return Finish({.op = Op::kLookup, .linear = sizes}, {{index, table}}, std::move(shape),
                OnnxType::kFloat);
}

absl::StatusOr<Tensor> Lowering::Reshaped(const Tensor& operand, Shape shape) {
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t size, CheckedSize(shape));
  if (size != NumElements(operand.shape)) {
    return InvalidArgument("shape ", ShapeString(operand.shape), " cannot be seen as ",
                           ShapeString(shape));
  }
  Tensor result = operand;
  result.shape = std::move(shape);
  return result;
}

absl::StatusOr<Tensor> Lowering::Broadcast(const Tensor& operand, Shape shape) {
  DEEPPCR_ASSIGN_OR_RETURN(const Shape both, BroadcastShape(operand.shape, shape));
  if (both != shape) {
    return InvalidArgument("shape ", ShapeString(operand.shape), " cannot be broadcast to ",
                           ShapeString(shape));
  }
  const Shape from = StridesOf(operand.shape);
  Shape strides(shape.size());
  const size_t ahead = shape.size() - from.size();
  for (size_t axis = 0; axis < from.size(); ++axis) {
    if (operand.shape[axis] != 1) strides[ahead + axis] = from[axis];
  }
  return Strided(operand, std::move(shape), strides, 0);
}

absl::StatusOr<Tensor> Lowering::Transposed(const Tensor& operand, std::span<const int64_t> order) {
  const Shape from = StridesOf(operand.shape);
  Shape shape, strides;
  for (const int64_t axis : order) {
    shape.push_back(operand.shape[static_cast<size_t>(axis)]);
    strides.push_back(from[static_cast<size_t>(axis)]);
  }
  return Strided(operand, std::move(shape), strides, 0);
}

absl::StatusOr<Tensor> Lowering::Strided(const Tensor& operand, Shape shape,
                                         std::span<const int64_t> strides, int64_t offset) {
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t size, CheckedSize(shape));
  if (size == NumElements(operand.shape) && offset == 0 && IsInOrder(shape, strides)) {
    return Reshaped(operand, std::move(shape));
  }
  if (operand.is_constant() && NumElements(operand.shape) == 1) {
    return Filled(operand, std::move(shape), size);
  }
  DEEPPCR_RETURN_IF_ERROR(Spend(size));
  if (!operand.is_constant()) {
    DEEPPCR_RETURN_IF_ERROR(CheckValueSize(size));
    std::vector<Element> elements;
    elements.reserve(static_cast<size_t>(size));
    WalkStrided(shape, strides, offset, [&](int64_t source) { elements.push_back({0, source}); });
    return Arranged({{operand}}, std::move(shape), std::move(elements));
  }
  // Weights stay in float32.
  const Numbers& from = *operand.constant;
  Numbers to;
  if (from.floats != nullptr) {
    to.floats = Picked(*from.floats, shape, strides, offset);
  } else {
    to.doubles = Picked(*from.doubles, shape, strides, offset);
  }
  return Tensor{.shape = std::move(shape), .type = operand.type, .constant = std::move(to)};
}

// One number many times, which activations and norms ask for again and again.
absl::StatusOr<Tensor> Lowering::Filled(const Tensor& operand, Shape shape, int64_t size) {
  const double number = (*operand.constant)[0];
  Numbers& numbers = filled_[{number, size}];
  if (numbers.doubles == nullptr) {
    DEEPPCR_RETURN_IF_ERROR(Spend(size));
    numbers = NumbersOf(std::vector<double>(static_cast<size_t>(size), number));
  }
  return Tensor{.shape = std::move(shape), .type = operand.type, .constant = numbers};
}

absl::Status Lowering::CheckValueSize(int64_t size) const {
  const int64_t allowed = builder_.limits().max_value_size;
  if (size <= allowed) return absl::OkStatus();
  return ResourceExhausted("a value of ", size, " elements; ", allowed, " are allowed");
}

absl::StatusOr<Tensor> Lowering::Arranged(std::span<const Tensor> operands, Shape shape,
                                          std::vector<Element> elements) {
  return Finish({.op = Op::kArrange, .elements = std::move(elements)}, operands, std::move(shape),
                operands[0].type);
}

absl::StatusOr<Tensor> Lowering::Finish(Instruction instruction, std::span<const Tensor> operands,
                                        Shape shape, OnnxType type) {
  const bool known = std::all_of(operands.begin(), operands.end(),
                                 [](const Tensor& operand) { return operand.is_constant(); });
  if (known) return Fold(instruction, operands, std::move(shape), type);
  // A value without elements is known.
  if (NumElements(shape) == 0) {
    return Tensor{.shape = std::move(shape), .type = type, .constant = NumbersOf({})};
  }
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId id, Write(std::move(instruction), operands));
  return Tensor{.shape = std::move(shape), .type = type, .id = id};
}

absl::StatusOr<Tensor> Lowering::Fold(const Instruction& instruction,
                                      std::span<const Tensor> operands, Shape shape,
                                      OnnxType type) {
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t size, SpendShape(shape));
  std::vector<double> elements;
  if (size > 0) {
    std::vector<std::vector<double>> given;
    for (const Tensor& operand : operands) {
      DEEPPCR_RETURN_IF_ERROR(Spend(NumElements(operand.shape)));
      given.push_back(ToDoubles(*operand.constant, NumElements(operand.shape)));
    }
    const std::vector<std::span<const double>> views(given.begin(), given.end());
    elements = EvaluateInstruction(instruction, size, views);
  }
  DEEPPCR_RETURN_IF_ERROR(CheckComputed(elements, type));
  return Tensor{
      .shape = std::move(shape), .type = type, .constant = NumbersOf(std::move(elements))};
}

absl::StatusOr<ValueId> Lowering::Write(Instruction instruction, std::span<const Tensor> operands) {
  std::vector<ValueId> ids;
  for (const Tensor& operand : operands) {
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId id, Value(operand));
    ids.push_back(id);
  }
  switch (RowOf(instruction.op).kind) {
    case OpKind::kElementwise:
      return builder_.AddElementwise(instruction.op, ids);
    case OpKind::kReduction:
    case OpKind::kAlongAxis:
      return builder_.AddAlongAxis(instruction.op, ids[0], instruction.axis, instruction.epsilon);
    case OpKind::kLinear:
      return builder_.AddLinear(ids[0], instruction.linear);
    case OpKind::kProduct:
      return builder_.AddProduct(ids[0], ids[1], kNoValue, instruction.linear);
    case OpKind::kLookup:
      return ids.size() == 1 ? builder_.AddLookup(ids[0], instruction.linear)
                             : builder_.AddLookup(ids[0], ids[1], instruction.linear);
    case OpKind::kArrange:
      return builder_.AddArrange(ids, std::move(instruction.elements));
    case OpKind::kReverseStep:
      return Internal("no ONNX operator is a reverse step");
  }
  return Internal("unknown kind of operation");
}

absl::StatusOr<ValueId> Lowering::Value(const Tensor& tensor) {
  if (!tensor.is_constant()) return tensor.id;
  const Numbers& numbers = *tensor.constant;
  const void* const key = numbers.floats != nullptr ? static_cast<const void*>(numbers.floats.get())
                                                    : numbers.doubles.get();
  const auto found = constants_.find(key);
  if (found != constants_.end()) return found->second.id;
  const int64_t size = NumElements(tensor.shape);
  if (size == 0) return InvalidArgument("a constant without elements");
  DEEPPCR_RETURN_IF_ERROR(Spend(size));
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId id, builder_.AddConstant(ToDoubles(numbers, size)));
  constants_.emplace(key, Written{.numbers = numbers, .id = id});
  return id;
}

}  // namespace deeppcr::program
