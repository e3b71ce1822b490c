// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/onnx/contract.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/onnx/operators.h"

namespace deeppcr::program {
namespace {

bool Has(const std::string& axes, char letter) { return axes.find(letter) != std::string::npos; }

// Letters of `axes` for which `keep` holds.
template <typename Keep>
std::string Filtered(const std::string& axes, Keep keep) {
  std::string kept;
  std::copy_if(axes.begin(), axes.end(), std::back_inserter(kept), keep);
  return kept;
}

using Extents = std::map<char, int64_t>;

absl::Status AddExtents(const Labelled& operand, Extents& extents) {
  for (size_t i = 0; i < operand.axes.size(); ++i) {
    int64_t& extent = extents.try_emplace(operand.axes[i], 1).first->second;
    const int64_t given = operand.tensor.shape[i];
    if (extent != given && extent != 1 && given != 1) {
      return InvalidArgument("a product over axes of ", extent, " and ", given, " elements");
    }
    if (extent == 1) extent = given;
  }
  return absl::OkStatus();
}

Shape ShapeOf(const std::string& axes, const Extents& extents) {
  Shape shape;
  for (const char letter : axes) shape.push_back(extents.at(letter));
  return shape;
}

// Without the axes of extent 1.
absl::StatusOr<Labelled> Squeezed(Lowering& lowering, const Labelled& operand) {
  Labelled result;
  Shape shape;
  for (size_t i = 0; i < operand.axes.size(); ++i) {
    if (operand.tensor.shape[i] == 1) continue;
    shape.push_back(operand.tensor.shape[i]);
    result.axes.push_back(operand.axes[i]);
  }
  DEEPPCR_ASSIGN_OR_RETURN(result.tensor, lowering.Reshaped(operand.tensor, std::move(shape)));
  return result;
}

// Sums over the axes for which `keep` does not hold, which are the operand's alone.
template <typename Keep>
absl::StatusOr<Labelled> Summed(Lowering& lowering, const Labelled& operand, Keep keep) {
  std::vector<int64_t> axes;
  for (size_t i = 0; i < operand.axes.size(); ++i) {
    if (!keep(operand.axes[i])) axes.push_back(static_cast<int64_t>(i));
  }
  Labelled result = operand;
  DEEPPCR_ASSIGN_OR_RETURN(result.tensor, Reduced(lowering, Op::kSum, operand.tensor, axes));
  return Squeezed(lowering, result);
}

absl::StatusOr<Tensor> InOrder(Lowering& lowering, const Labelled& operand,
                               const std::string& axes) {
  std::vector<int64_t> order;
  for (const char letter : axes) order.push_back(static_cast<int64_t>(operand.axes.find(letter)));
  return lowering.Transposed(operand.tensor, order);
}

// The operand broadcast to all letters of `axes`.
absl::StatusOr<Tensor> Spread(Lowering& lowering, const Labelled& operand, const std::string& axes,
                              const Extents& extents) {
  const std::string own = Filtered(axes, [&](char letter) { return Has(operand.axes, letter); });
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor ordered, InOrder(lowering, operand, own));
  Shape shape;
  for (const char letter : axes) shape.push_back(Has(own, letter) ? extents.at(letter) : 1);
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor aligned, lowering.Reshaped(ordered, std::move(shape)));
  return lowering.Broadcast(aligned, ShapeOf(axes, extents));
}

// Elementwise products, then sums: for what is no linear layer.
absl::StatusOr<Tensor> ByProducts(Lowering& lowering, const Labelled& a, const Labelled& b,
                                  const std::string& out, const std::string& summed,
                                  const Extents& extents) {
  const std::string all = out + summed;
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor left, Spread(lowering, a, all, extents));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor right, Spread(lowering, b, all, extents));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor product,
                           lowering.Elementwise(Op::kMultiply, {left, right}));
  if (summed.empty()) return product;
  const Axis view = {.outer = NumElements(ShapeOf(out, extents)),
                     .length = NumElements(ShapeOf(summed, extents))};
  return lowering.AlongAxis(Op::kSum, product, view, ShapeOf(out, extents));
}

// The matrix of a product, [rows, cols] or, transposed, [cols, rows]: whichever it is already.
absl::StatusOr<Tensor> MatrixOf(Lowering& lowering, const Labelled& weights,
                                const std::string& rows, const std::string& summed,
                                LinearLayer& layer) {
  layer.transposed = weights.axes == summed + rows && weights.axes != rows + summed;
  return InOrder(lowering, weights, layer.transposed ? weights.axes : rows + summed);
}

// x times a constant, a parameter, or a matrix that is made anew for each step: for each row of x
// over `summed`, a linear layer.
absl::StatusOr<Tensor> ByLinear(Lowering& lowering, const Labelled& x, const Labelled& weights,
                                const std::string& out, const Extents& extents,
                                std::shared_ptr<const std::vector<float>> bias) {
  const auto is_out = [&](char letter) { return Has(out, letter); };
  const auto is_summed = [&](char letter) { return !Has(out, letter); };
  const std::string summed = Filtered(x.axes, is_summed);
  const std::string repeated = Filtered(x.axes, is_out);
  const std::string rows = Filtered(weights.axes, is_out);
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor operand, InOrder(lowering, x, repeated + summed));
  LinearLayer layer = {.rows = NumElements(ShapeOf(rows, extents)),
                       .cols = NumElements(ShapeOf(summed, extents)),
                       .repeat = NumElements(ShapeOf(repeated, extents)),
                       .bias = std::move(bias)};
  Labelled result{.axes = repeated + rows};
  if (weights.tensor.is_constant()) {
    DEEPPCR_ASSIGN_OR_RETURN(const Tensor matrix, InOrder(lowering, weights, rows + summed));
    DEEPPCR_ASSIGN_OR_RETURN(layer.weight, ToWeights(matrix));
    DEEPPCR_ASSIGN_OR_RETURN(result.tensor,
                             lowering.Linear(operand, layer, ShapeOf(result.axes, extents)));
  } else {
    DEEPPCR_ASSIGN_OR_RETURN(const Tensor matrix, MatrixOf(lowering, weights, rows, summed, layer));
    DEEPPCR_ASSIGN_OR_RETURN(
        result.tensor, lowering.Product(operand, matrix, layer, ShapeOf(result.axes, extents)));
  }
  return InOrder(lowering, result, out);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const std::vector<float>>> ToWeights(const Tensor& constant) {
  std::shared_ptr<const std::vector<float>> floats = constant.constant->floats;
  if (floats == nullptr) {
    const std::vector<double>& doubles = *constant.constant->doubles;
    auto rounded = std::make_shared<std::vector<float>>(doubles.size());
    std::transform(doubles.begin(), doubles.end(), rounded->begin(),
                   [](double number) { return static_cast<float>(number); });
    floats = std::move(rounded);
  }
  if (!std::all_of(floats->begin(), floats->end(), [](float x) { return std::isfinite(x); })) {
    return InvalidArgument("a weight is not finite in float32");
  }
  return floats;
}

absl::StatusOr<Tensor> Contract(Lowering& lowering, const Labelled& a, const Labelled& b,
                                const std::string& out,
                                std::shared_ptr<const std::vector<float>> bias) {
  Extents extents;
  DEEPPCR_RETURN_IF_ERROR(AddExtents(a, extents));
  DEEPPCR_RETURN_IF_ERROR(AddExtents(b, extents));
  for (const char letter : out) extents.try_emplace(letter, 1);
  DEEPPCR_ASSIGN_OR_RETURN(Labelled left, Squeezed(lowering, a));
  DEEPPCR_ASSIGN_OR_RETURN(Labelled right, Squeezed(lowering, b));
  DEEPPCR_ASSIGN_OR_RETURN(left, Summed(lowering, left, [&](char letter) {
                             return Has(out, letter) || Has(right.axes, letter);
                           }));
  DEEPPCR_ASSIGN_OR_RETURN(right, Summed(lowering, right, [&](char letter) {
                             return Has(out, letter) || Has(left.axes, letter);
                           }));
  const std::string long_out = Filtered(out, [&](char letter) { return extents.at(letter) != 1; });
  const std::string summed = Filtered(left.axes, [&](char letter) { return !Has(out, letter); });
  const bool batched = std::any_of(left.axes.begin(), left.axes.end(), [&](char letter) {
    return Has(out, letter) && Has(right.axes, letter);
  });
  // The matrix is the right one: known, of parameters, or made anew for each step.
  const auto is_matrix = [&](const Tensor& tensor, const Tensor& other) {
    if (tensor.is_constant() || other.is_constant()) return tensor.is_constant();
    if (lowering.OnParametersAlone(tensor)) return true;
    return lowering.OnTimeAlone(tensor) && !lowering.OnTimeAlone(other) &&
           !lowering.OnParametersAlone(other);
  };
  if (is_matrix(left.tensor, right.tensor) && !right.tensor.is_constant()) std::swap(left, right);
  if (lowering.OnState(left.tensor) && lowering.OnState(right.tensor) && !summed.empty()) {
    return InvalidArgument(
        "a product of two matrices that both depend on the state (attention, or the like) is not "
        "taken");
  }
  const bool linear = is_matrix(right.tensor, left.tensor) && !left.tensor.is_constant() &&
                      !batched && (!summed.empty() || bias != nullptr);
  Tensor product;
  if (linear) {
    DEEPPCR_ASSIGN_OR_RETURN(product,
                             ByLinear(lowering, left, right, long_out, extents, std::move(bias)));
  } else {
    DEEPPCR_ASSIGN_OR_RETURN(product, ByProducts(lowering, left, right, long_out, summed, extents));
  }
  return lowering.Reshaped(product, ShapeOf(out, extents));
}

}  // namespace deeppcr::program
