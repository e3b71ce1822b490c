// SPDX-License-Identifier: Apache-2.0
// Constants, and what exporters compute from shapes.

#include <onnx/onnx.pb.h>

#include <cmath>
#include <utility>

#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/onnx/operators.h"

namespace deeppcr::program {
namespace {

Tensor FromTensor(const OnnxTensor& tensor) {
  return {.shape = tensor.shape, .type = tensor.type, .constant = tensor.numbers};
}

template <typename T>
Tensor FromList(const std::vector<T>& list, OnnxType type) {
  return Lowering::Vector(std::vector<double>(list.begin(), list.end()), type);
}

absl::StatusOr<Tensor> Constant(Call& call) {
  if (const OnnxAttribute* value = call.Attribute("value")) {
    const auto* tensor = std::get_if<OnnxTensor>(value);
    if (tensor == nullptr) return InvalidArgument("attribute value: expected a tensor");
    return FromTensor(*tensor);
  }
  if (call.HasAttribute("value_float")) {
    DEEPPCR_ASSIGN_OR_RETURN(const double value, call.Float("value_float", 0));
    return Lowering::Scalar(value);
  }
  if (call.HasAttribute("value_int")) {
    DEEPPCR_ASSIGN_OR_RETURN(const int64_t value, call.Int("value_int", 0));
    return Lowering::Scalar(static_cast<double>(value), OnnxType::kInteger);
  }
  if (call.HasAttribute("value_ints")) {
    DEEPPCR_ASSIGN_OR_RETURN(const std::vector<int64_t> list, call.Ints("value_ints", {}));
    return FromList(list, OnnxType::kInteger);
  }
  if (const OnnxAttribute* value = call.Attribute("value_floats")) {
    const auto* list = std::get_if<std::vector<float>>(value);
    if (list == nullptr) return InvalidArgument("attribute value_floats: expected floats");
    for (const float number : *list) {
      if (std::isnan(number)) return InvalidArgument("attribute value_floats: a number is NaN");
    }
    return FromList(*list, OnnxType::kFloat);
  }
  return InvalidArgument(
      "expected an attribute value, value_float, value_floats, value_int or value_ints");
}

absl::StatusOr<Tensor> ConstantOfShape(Call& call) {
  Tensor value = Lowering::Scalar(0);
  if (const OnnxAttribute* attribute = call.Attribute("value")) {
    const auto* tensor = std::get_if<OnnxTensor>(attribute);
    if (tensor == nullptr || NumElements(tensor->shape) != 1) {
      return InvalidArgument("attribute value: expected a tensor of one number");
    }
    value = FromTensor(*tensor);
    value.shape.clear();
  }
  DEEPPCR_ASSIGN_OR_RETURN(Shape shape, call.Integers(0, "the shape"));
  DEEPPCR_RETURN_IF_ERROR(CheckedProduct(shape).status());
  return call.lowering.Broadcast(value, std::move(shape));
}

// Python's rule for bounds of a list.
int64_t Bound(int64_t bound, int64_t size) {
  if (bound < 0) bound = std::max<int64_t>(bound + size, 0);
  return std::min(bound, size);
}

absl::StatusOr<Tensor> ShapeOf(Call& call) {
  const Shape& shape = call.in(0).shape;
  const auto rank = static_cast<int64_t>(shape.size());
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t start, call.Int("start", 0));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t end, call.Int("end", rank));
  std::vector<double> extents;
  for (int64_t axis = Bound(start, rank); axis < Bound(end, rank); ++axis) {
    extents.push_back(static_cast<double>(shape[static_cast<size_t>(axis)]));
  }
  return Lowering::Vector(std::move(extents), OnnxType::kInteger);
}

absl::StatusOr<Tensor> Size(Call& call) {
  return Lowering::Scalar(static_cast<double>(NumElements(call.in(0).shape)), OnnxType::kInteger);
}

absl::StatusOr<double> KnownNumber(const Call& call, size_t i) {
  const Tensor& tensor = call.in(i);
  if (!tensor.is_constant() || NumElements(tensor.shape) != 1) {
    return InvalidArgument("input ", i, ": expected one constant");
  }
  return (*tensor.constant)[0];
}

absl::StatusOr<Tensor> Range(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const double start, KnownNumber(call, 0));
  DEEPPCR_ASSIGN_OR_RETURN(const double limit, KnownNumber(call, 1));
  DEEPPCR_ASSIGN_OR_RETURN(const double step, KnownNumber(call, 2));
  const double count = std::max(0.0, std::ceil((limit - start) / step));
  if (step == 0 || !(count <= 1e9)) {
    return InvalidArgument("a range from ", start, " to ", limit, " with step ", step);
  }
  DEEPPCR_RETURN_IF_ERROR(call.lowering.Spend(static_cast<int64_t>(count)));
  std::vector<double> numbers(static_cast<size_t>(count));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = start + static_cast<double>(i) * step;
  return Lowering::Vector(std::move(numbers), call.in(0).type);
}

// Ones at column = row + k, for a matrix's mask.
template <typename Keep>
absl::StatusOr<Tensor> Mask(Call& call, const Shape& shape, Keep keep) {
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t size, call.lowering.SpendShape(shape));
  std::vector<double> mask(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    mask[static_cast<size_t>(i)] = keep(i / shape[1], i % shape[1]) ? 1 : 0;
  }
  return call.lowering.Reshaped(Lowering::Vector(std::move(mask), OnnxType::kBool), shape);
}

// Diagonals far outside of a matrix are all the same.
int64_t NearDiagonal(int64_t k) {
  constexpr int64_t kFar = int64_t{1} << 40;
  return std::min(std::max(k, -kFar), kFar);
}

absl::StatusOr<Tensor> EyeLike(Call& call) {
  const Tensor& x = call.in(0);
  if (x.shape.size() != 2) return InvalidArgument("expected a matrix");
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t given, call.Int("k", 0));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t dtype, call.Int("dtype", 0));
  const int64_t k = NearDiagonal(given);
  DEEPPCR_ASSIGN_OR_RETURN(
      Tensor eye, Mask(call, x.shape, [&](int64_t row, int64_t col) { return col == row + k; }));
  eye.type = dtype == 0                         ? x.type
             : dtype == onnx::TensorProto::BOOL ? OnnxType::kBool
             : dtype == onnx::TensorProto::INT32 || dtype == onnx::TensorProto::INT64
                 ? OnnxType::kInteger
                 : OnnxType::kFloat;
  return eye;
}

absl::StatusOr<Tensor> Trilu(Call& call) {
  const Tensor& x = call.in(0);
  if (x.shape.size() < 2) return InvalidArgument("expected a matrix");
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t upper, call.Int("upper", 1));
  int64_t k = 0;
  if (call.Has(1)) {
    DEEPPCR_ASSIGN_OR_RETURN(k, call.Integer(1, "the diagonal"));
    k = NearDiagonal(k);
  }
  const Shape matrix(x.shape.end() - 2, x.shape.end());
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor mask, Mask(call, matrix, [&](int64_t row, int64_t col) {
                             return upper != 0 ? col >= row + k : col <= row + k;
                           }));
  return call.lowering.Elementwise(Op::kSelect, {mask, x, Lowering::Scalar(0, x.type)}, x.type);
}

absl::StatusOr<Tensor> CumSum(Call& call) {
  const Tensor& x = call.in(0);
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t exclusive, call.Int("exclusive", 0));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t reverse, call.Int("reverse", 0));
  DEEPPCR_ASSIGN_OR_RETURN(int64_t axis, call.Integer(1, "the axis"));
  DEEPPCR_ASSIGN_OR_RETURN(axis, NormalizedAxis(axis, static_cast<int64_t>(x.shape.size())));
  if (!x.is_constant() || exclusive != 0 || reverse != 0) {
    return InvalidArgument("cumulative sums are taken of constants, forwards, inclusively");
  }
  const int64_t inner = StridesOf(x.shape)[static_cast<size_t>(axis)];
  const int64_t extent = x.shape[static_cast<size_t>(axis)];
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t size, call.lowering.SpendShape(x.shape));
  std::vector<double> sums(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    const bool first = i / inner % extent == 0;
    sums[static_cast<size_t>(i)] =
        (*x.constant)[i] + (first ? 0 : sums[static_cast<size_t>(i - inner)]);
  }
  return call.lowering.Reshaped(Lowering::Vector(std::move(sums), x.type), x.shape);
}

constexpr OperatorRow kRows[] = {
    {"Constant", 7, 0, 0, One<Constant>}, {"ConstantOfShape", 9, 1, 1, One<ConstantOfShape>},
    {"CumSum", 11, 2, 2, One<CumSum>},    {"EyeLike", 9, 1, 1, One<EyeLike>},
    {"Range", 11, 3, 3, One<Range>},      {"Shape", 7, 1, 1, One<ShapeOf>},
    {"Size", 7, 1, 1, One<Size>},         {"Trilu", 14, 1, 2, One<Trilu>},
};

}  // namespace

std::span<const OperatorRow> ConstantOperators() { return kRows; }

}  // namespace deeppcr::program
