// SPDX-License-Identifier: Apache-2.0
// Reductions over axes, and softmax.

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/onnx/operators.h"

namespace deeppcr::program {

absl::StatusOr<std::vector<int64_t>> NormalizedAxes(std::vector<int64_t> axes, int64_t rank) {
  for (int64_t& axis : axes) {
    DEEPPCR_ASSIGN_OR_RETURN(axis, NormalizedAxis(axis, rank));
  }
  std::sort(axes.begin(), axes.end());
  if (std::adjacent_find(axes.begin(), axes.end()) != axes.end()) {
    return InvalidArgument("an axis comes twice");
  }
  return axes;
}

namespace {

// The view in which neighbouring axes are one.
Axis ViewOf(std::span<const int64_t> shape, size_t first, size_t last) {
  return {.outer = NumElements(shape.subspan(0, first)),
          .length = NumElements(shape.subspan(first, last + 1 - first)),
          .inner = NumElements(shape.subspan(last + 1))};
}

// Whether no axis of more than one element lies between axes (sorted).
bool AreNeighbours(std::span<const int64_t> shape, std::span<const int64_t> axes) {
  for (int64_t axis = axes.front(); axis <= axes.back(); ++axis) {
    if (shape[static_cast<size_t>(axis)] != 1 &&
        !std::binary_search(axes.begin(), axes.end(), axis)) {
      return false;
    }
  }
  return true;
}

// The operand with the axes last, and their places there.
absl::StatusOr<Tensor> WithAxesLast(Lowering& lowering, const Tensor& operand,
                                    std::span<const int64_t> axes) {
  std::vector<int64_t> order(operand.shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_partition(order.begin(), order.end(), [&](int64_t axis) {
    return !std::binary_search(axes.begin(), axes.end(), axis);
  });
  return lowering.Transposed(operand, order);
}

}  // namespace

absl::StatusOr<Tensor> Reduced(Lowering& lowering, Op op, const Tensor& operand,
                               std::span<const int64_t> axes) {
  if (axes.empty()) return operand;
  Shape shape = operand.shape;
  for (const int64_t axis : axes) shape[static_cast<size_t>(axis)] = 1;
  if (AreNeighbours(operand.shape, axes)) {
    const Axis view =
        ViewOf(operand.shape, static_cast<size_t>(axes.front()), static_cast<size_t>(axes.back()));
    return lowering.AlongAxis(op, operand, view, std::move(shape));
  }
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor moved, WithAxesLast(lowering, operand, axes));
  const Axis view = ViewOf(moved.shape, moved.shape.size() - axes.size(), moved.shape.size() - 1);
  return lowering.AlongAxis(op, moved, view, std::move(shape));
}

namespace {

// What a reduction is told.
struct Plan {
  std::vector<int64_t> axes;
  bool keep = true;
};

// `since`: the opset version in which axes became an input.
absl::StatusOr<Plan> PlanOf(Call& call, int64_t since) {
  const auto rank = static_cast<int64_t>(call.in(0).shape.size());
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t keep, call.Int("keepdims", 1));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t none_is_none, call.Int("noop_with_empty_axes", 0));
  DEEPPCR_ASSIGN_OR_RETURN(std::vector<int64_t> axes, call.AxesOf(1, since));
  if (axes.empty() && none_is_none == 0) {
    axes.resize(static_cast<size_t>(rank));
    std::iota(axes.begin(), axes.end(), 0);
  }
  DEEPPCR_ASSIGN_OR_RETURN(axes, NormalizedAxes(std::move(axes), rank));
  return Plan{.axes = std::move(axes), .keep = keep != 0};
}

absl::StatusOr<Tensor> Finished(Lowering& lowering, const Tensor& reduced, const Plan& plan) {
  if (plan.keep) return reduced;
  Shape shape;
  for (size_t axis = 0; axis < reduced.shape.size(); ++axis) {
    if (!std::binary_search(plan.axes.begin(), plan.axes.end(), static_cast<int64_t>(axis))) {
      shape.push_back(reduced.shape[axis]);
    }
  }
  return lowering.Reshaped(reduced, std::move(shape));
}

// Axes are an input of ReduceSum since 13, of the others since 18.
template <Op op, int64_t since>
absl::StatusOr<Tensor> Reduce(Call& call) {
  if (op == Op::kMean && call.in(0).type != OnnxType::kFloat) {
    return InvalidArgument("expected floats, got ", OnnxTypeName(call.in(0).type));
  }
  DEEPPCR_ASSIGN_OR_RETURN(const Plan plan, PlanOf(call, since));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor reduced, Reduced(call.lowering, op, call.in(0), plan.axes));
  return Finished(call.lowering, reduced, plan);
}

absl::StatusOr<Tensor> ReduceMin(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const Plan plan, PlanOf(call, 18));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor minus,
                           call.lowering.Elementwise(Op::kNegate, {call.in(0)}));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor largest,
                           Reduced(call.lowering, Op::kLargest, minus, plan.axes));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor least, call.lowering.Elementwise(Op::kNegate, {largest}));
  return Finished(call.lowering, least, plan);
}

// The sum of map(a).
template <Op map>
absl::StatusOr<Tensor> SumOf(Call& call, const Plan& plan) {
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor mapped, call.lowering.Elementwise(map, {call.in(0)}));
  return Reduced(call.lowering, Op::kSum, mapped, plan.axes);
}

template <Op map>
absl::StatusOr<Tensor> ReduceSumOf(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const Plan plan, PlanOf(call, 18));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor sum, SumOf<map>(call, plan));
  return Finished(call.lowering, sum, plan);
}

absl::StatusOr<Tensor> ReduceL2(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const Plan plan, PlanOf(call, 18));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor sum, SumOf<Op::kSquare>(call, plan));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor root, call.lowering.Elementwise(Op::kSqrt, {sum}));
  return Finished(call.lowering, root, plan);
}

// Shapes' sizes: only of constants, all elements.
absl::StatusOr<Tensor> ReduceProd(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const Plan plan, PlanOf(call, 18));
  const Tensor& a = call.in(0);
  if (!a.is_constant() || plan.axes.size() != a.shape.size()) {
    return InvalidArgument("products are taken of all elements of constants only");
  }
  double product = 1;
  for (int64_t i = 0; i < NumElements(a.shape); ++i) product *= (*a.constant)[i];
  // Through an instruction, which checks that integers are exact.
  DEEPPCR_ASSIGN_OR_RETURN(
      Tensor result, call.lowering.Elementwise(Op::kAdd, Lowering::Scalar(product, a.type), 0));
  result.shape.assign(plan.keep ? a.shape.size() : 0, 1);
  return result;
}

// ln sum e^a, from the largest on, so that nothing overflows.
absl::StatusOr<Tensor> LogSumExp(Lowering& lowering, const Tensor& a,
                                 std::span<const int64_t> axes) {
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor largest, Reduced(lowering, Op::kLargest, a, axes));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor shifted, lowering.Elementwise(Op::kSubtract, {a, largest}));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor powers, lowering.Elementwise(Op::kExp, {shifted}));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor sum, Reduced(lowering, Op::kSum, powers, axes));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor log, lowering.Elementwise(Op::kLog, {sum}));
  return lowering.Elementwise(Op::kAdd, {log, largest});
}

absl::StatusOr<Tensor> ReduceLogSumExp(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const Plan plan, PlanOf(call, 18));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor result, LogSumExp(call.lowering, call.in(0), plan.axes));
  return Finished(call.lowering, result, plan);
}

// Before 13, softmax was over all axes from `axis` on.
absl::StatusOr<std::vector<int64_t>> SoftmaxAxes(Call& call) {
  const auto rank = static_cast<int64_t>(call.in(0).shape.size());
  DEEPPCR_ASSIGN_OR_RETURN(int64_t axis, call.Int("axis", call.opset < 13 ? 1 : -1));
  if (call.opset < 13 && axis == rank) return std::vector<int64_t>();
  DEEPPCR_ASSIGN_OR_RETURN(axis, NormalizedAxis(axis, rank));
  std::vector<int64_t> axes = {axis};
  while (call.opset < 13 && axes.back() + 1 < rank) axes.push_back(axes.back() + 1);
  return axes;
}

absl::StatusOr<Tensor> Softmax(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::vector<int64_t> axes, SoftmaxAxes(call));
  const Tensor& a = call.in(0);
  if (axes.empty()) return InvalidArgument("an axis beyond the last");
  return call.lowering.AlongAxis(
      Op::kSoftmax, a,
      ViewOf(a.shape, static_cast<size_t>(axes.front()), static_cast<size_t>(axes.back())),
      a.shape);
}

absl::StatusOr<Tensor> LogSoftmax(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::vector<int64_t> axes, SoftmaxAxes(call));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor sum, LogSumExp(call.lowering, call.in(0), axes));
  return call.lowering.Elementwise(Op::kSubtract, {call.in(0), sum});
}

constexpr OperatorRow kRows[] = {
    {"LogSoftmax", 7, 1, 1, One<LogSoftmax>},
    {"ReduceL1", 7, 1, 2, One<ReduceSumOf<Op::kAbs>>},
    {"ReduceL2", 7, 1, 2, One<ReduceL2>},
    {"ReduceLogSumExp", 7, 1, 2, One<ReduceLogSumExp>},
    {"ReduceMax", 7, 1, 2, One<Reduce<Op::kLargest, 18>>},
    {"ReduceMean", 7, 1, 2, One<Reduce<Op::kMean, 18>>},
    {"ReduceMin", 7, 1, 2, One<ReduceMin>},
    {"ReduceProd", 7, 1, 2, One<ReduceProd>},
    {"ReduceSum", 7, 1, 2, One<Reduce<Op::kSum, 13>>},
    {"ReduceSumSquare", 7, 1, 2, One<ReduceSumOf<Op::kSquare>>},
    {"Softmax", 7, 1, 1, One<Softmax>},
};

}  // namespace

std::span<const OperatorRow> ReductionOperators() { return kRows; }

}  // namespace deeppcr::program
