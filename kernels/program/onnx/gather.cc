// SPDX-License-Identifier: Apache-2.0
// Elements by index: of known places, or rows of a known table.

#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/onnx/contract.h"
#include "kernels/program/onnx/operators.h"

namespace deeppcr::program {
namespace {

absl::Status CheckIndices(const Tensor& indices) {
  if (indices.type == OnnxType::kInteger) return absl::OkStatus();
  return InvalidArgument("input 1, the indices: expected integers, got ",
                         OnnxTypeName(indices.type));
}

// A known index, counted from the front.
absl::StatusOr<int64_t> PlaceOf(const Tensor& indices, int64_t i, int64_t extent) {
  const double index = (*indices.constant)[i];
  if (!(index >= -static_cast<double>(extent) && index < static_cast<double>(extent))) {
    return InvalidArgument("input 1, the indices: ", index, " of ", extent, " elements");
  }
  return static_cast<int64_t>(index) + (index < 0 ? extent : 0);
}

// Rows of a table, for each element of the indices.
absl::StatusOr<Tensor> LookUp(Call& call, const Tensor& table, const Tensor& indices, Shape shape) {
  Lowering& lowering = call.lowering;
  if (!table.is_constant() && !lowering.OnParametersAlone(table)) {
    return InvalidArgument(
        "indices and data both depend on the graph's inputs; places that depend on data are taken "
        "in constant tables only");
  }
  if (lowering.OnState(indices)) {
    return InvalidArgument("indices that depend on the state are not taken");
  }
  LinearLayer rows = {.rows = table.shape[0],
                      .cols = NumElements(std::span(table.shape).subspan(1))};
  if (rows.rows < 1 || rows.cols < 1) return InvalidArgument("a table without elements");
  if (table.is_constant()) {
    DEEPPCR_ASSIGN_OR_RETURN(rows.weight, ToWeights(table));
  }
  std::vector<Tensor> found;
  std::vector<Element> elements;
  const int64_t count = NumElements(indices.shape);
  DEEPPCR_RETURN_IF_ERROR(lowering.SpendShape(shape).status());
  for (int64_t i = 0; i < count; ++i) {
    const Shape strides(1, 1);
    DEEPPCR_ASSIGN_OR_RETURN(const Tensor index, lowering.Strided(indices, Shape{1}, strides, i));
    absl::StatusOr<Tensor> looked_up = table.is_constant()
                                           ? lowering.Lookup(index, rows, Shape{rows.cols})
                                           : lowering.Lookup(index, table, rows, Shape{rows.cols});
    DEEPPCR_ASSIGN_OR_RETURN(Tensor row, std::move(looked_up));
    row.type = table.type;
    found.push_back(std::move(row));
    for (int64_t k = 0; k < rows.cols; ++k) elements.push_back({static_cast<int32_t>(i), k});
  }
  if (count == 1) return lowering.Reshaped(found[0], std::move(shape));
  return lowering.Arranged(found, std::move(shape), std::move(elements));
}

absl::StatusOr<Tensor> Gather(Call& call) {
  const Tensor& x = call.in(0);
  const Tensor& indices = call.in(1);
  DEEPPCR_RETURN_IF_ERROR(CheckIndices(indices));
  DEEPPCR_ASSIGN_OR_RETURN(int64_t axis, call.Int("axis", 0));
  DEEPPCR_ASSIGN_OR_RETURN(axis, NormalizedAxis(axis, static_cast<int64_t>(x.shape.size())));
  const auto at = static_cast<size_t>(axis);
  Shape shape(x.shape.begin(), x.shape.begin() + axis);
  shape.insert(shape.end(), indices.shape.begin(), indices.shape.end());
  shape.insert(shape.end(), x.shape.begin() + axis + 1, x.shape.end());
  if (!indices.is_constant()) {
    if (axis != 0) return InvalidArgument("indices that are no constants: expected axis 0");
    return LookUp(call, x, indices, std::move(shape));
  }
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t size, call.lowering.SpendShape(shape));
  const int64_t inner = NumElements(std::span(x.shape).subspan(at + 1));
  const int64_t count = NumElements(indices.shape);
  std::vector<int64_t> places;
  for (int64_t i = 0; i < count; ++i) {
    DEEPPCR_ASSIGN_OR_RETURN(const int64_t place, PlaceOf(indices, i, x.shape[at]));
    places.push_back(place);
  }
  std::vector<Element> elements;
  elements.reserve(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    const int64_t outer = i / inner / count;
    const int64_t place = places[static_cast<size_t>(i / inner % count)];
    elements.push_back({0, (outer * x.shape[at] + place) * inner + i % inner});
  }
  return call.lowering.Arranged({{x}}, std::move(shape), std::move(elements));
}

absl::StatusOr<Tensor> GatherElements(Call& call) {
  const Tensor& x = call.in(0);
  const Tensor& indices = call.in(1);
  DEEPPCR_RETURN_IF_ERROR(CheckIndices(indices));
  const auto rank = static_cast<int64_t>(x.shape.size());
  DEEPPCR_ASSIGN_OR_RETURN(int64_t axis, call.Int("axis", 0));
  DEEPPCR_ASSIGN_OR_RETURN(axis, NormalizedAxis(axis, rank));
  if (indices.shape.size() != x.shape.size()) {
    return InvalidArgument("indices of rank ", indices.shape.size(), " in data of rank ", rank);
  }
  // Of a list, the elements are rows of a table.
  if (!indices.is_constant() && rank == 1) return LookUp(call, x, indices, indices.shape);
  if (!indices.is_constant()) {
    return InvalidArgument("indices that are no constants: expected data of rank 1");
  }
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t size, call.lowering.SpendShape(indices.shape));
  const Shape strides = StridesOf(indices.shape), from = StridesOf(x.shape);
  std::vector<Element> elements;
  for (int64_t i = 0; i < size; ++i) {
    int64_t index = 0;
    for (size_t k = 0; k < x.shape.size(); ++k) {
      int64_t place = i / strides[k] % indices.shape[k];
      if (static_cast<int64_t>(k) == axis) {
        DEEPPCR_ASSIGN_OR_RETURN(place, PlaceOf(indices, i, x.shape[k]));
      }
      if (place >= x.shape[k]) return InvalidArgument("indices of a larger shape than the data's");
      index += place * from[k];
    }
    elements.push_back({0, index});
  }
  return call.lowering.Arranged({{x}}, indices.shape, std::move(elements));
}

// off + (on - off) (index = 0, 1 ..), along a new last axis. From opset 11 on a negative index
// counts from the end.
absl::StatusOr<Tensor> OneHot(Call& call) {
  Lowering& lowering = call.lowering;
  Tensor indices = call.in(0);
  const Tensor& values = call.in(2);
  const auto rank = static_cast<int64_t>(indices.shape.size());
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t axis, call.Int("axis", -1));
  if (axis != -1 && axis != rank) return InvalidArgument("attribute axis: expected the last, -1");
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t depth, call.Integer(1, "the depth"));
  if (depth < 1) return InvalidArgument("input 1, the depth: expected 1 or more, got ", depth);
  if (!values.is_constant() || NumElements(values.shape) != 2) {
    return InvalidArgument("input 2, the values: expected two constants");
  }
  indices.shape.push_back(1);
  Tensor result = Lowering::Scalar((*values.constant)[0], values.type);
  const Tensor on = Lowering::Scalar((*values.constant)[1], values.type);
  for (const int64_t first : {int64_t{0}, -depth}) {
    if (first < 0 && call.opset < 11) break;
    DEEPPCR_RETURN_IF_ERROR(lowering.Spend(depth));
    std::vector<double> classes(static_cast<size_t>(depth));
    std::iota(classes.begin(), classes.end(), static_cast<double>(first));
    DEEPPCR_ASSIGN_OR_RETURN(
        const Tensor is_class,
        lowering.Elementwise(Op::kEqual,
                             {indices, Lowering::Vector(std::move(classes), indices.type)},
                             OnnxType::kBool));
    DEEPPCR_ASSIGN_OR_RETURN(
        result, lowering.Elementwise(Op::kSelect, {is_class, on, result}, values.type));
  }
  return result;
}

constexpr OperatorRow kRows[] = {
    {"Gather", 7, 2, 2, One<Gather>},
    {"GatherElements", 11, 2, 2, One<GatherElements>},
    {"OneHot", 9, 3, 3, One<OneHot>},
};

}  // namespace

std::span<const OperatorRow> GatherOperators() { return kRows; }

}  // namespace deeppcr::program
