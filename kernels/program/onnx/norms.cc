// SPDX-License-Identifier: Apache-2.0
// Normalisations, as exporters write them whole.

#include <utility>

#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/onnx/operators.h"

namespace deeppcr::program {

namespace {

// x scale + bias, each broadcast; no bias: null.
absl::StatusOr<Tensor> Affine(Lowering& lowering, const Tensor& x, const Tensor& scale,
                              const Tensor* bias) {
  DEEPPCR_ASSIGN_OR_RETURN(Tensor y, lowering.Elementwise(Op::kMultiply, {x, scale}));
  if (bias == nullptr) return y;
  return lowering.Elementwise(Op::kAdd, {y, *bias});
}

const Tensor* OptionalInput(const Call& call, size_t i) {
  return call.Has(i) ? &call.in(i) : nullptr;
}

absl::Status CheckChannels(const Tensor& x, int64_t min_rank) {
  if (static_cast<int64_t>(x.shape.size()) >= min_rank) return absl::OkStatus();
  return InvalidArgument("shape ", ShapeString(x.shape), "; expected [batch, channels, ..]");
}

// A vector of channels in the shape that broadcasts along axis 1.
absl::StatusOr<Tensor> PerChannel(Lowering& lowering, const Tensor& vector, const Tensor& x) {
  Shape shape(x.shape.size(), 1);
  shape[1] = x.shape[1];
  return lowering.Reshaped(vector, std::move(shape));
}

// Layer and RMS norm, over all axes from `axis` on.
template <Op op>
absl::StatusOr<Tensor> NormFromAxis(Call& call) {
  const Tensor& x = call.in(0);
  call.Ignore("stash_type");  // the precision of the sums
  DEEPPCR_ASSIGN_OR_RETURN(int64_t axis, call.Int("axis", -1));
  DEEPPCR_ASSIGN_OR_RETURN(const double epsilon, call.Float("epsilon", 1e-5f));
  DEEPPCR_ASSIGN_OR_RETURN(axis, NormalizedAxis(axis, static_cast<int64_t>(x.shape.size())));
  const std::span<const int64_t> shape = x.shape;
  const Axis view = {.outer = NumElements(shape.subspan(0, static_cast<size_t>(axis))),
                     .length = NumElements(shape.subspan(static_cast<size_t>(axis)))};
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor y, call.lowering.AlongAxis(op, x, view, x.shape, epsilon));
  // PyTorch 1.13 leaves the scale out where a norm has no weight, against the standard.
  const Tensor scale = call.Has(1) ? call.in(1) : Lowering::Scalar(1, x.type);
  return Affine(call.lowering, y, scale, OptionalInput(call, 2));
}

absl::StatusOr<Tensor> InstanceNormalization(Call& call) {
  const Tensor& x = call.in(0);
  DEEPPCR_RETURN_IF_ERROR(CheckChannels(x, 3));
  DEEPPCR_ASSIGN_OR_RETURN(const double epsilon, call.Float("epsilon", 1e-5f));
  const Axis view = {.outer = x.shape[0] * x.shape[1],
                     .length = NumElements(std::span(x.shape).subspan(2))};
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor y,
                           call.lowering.AlongAxis(Op::kStandardize, x, view, x.shape, epsilon));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor scale, PerChannel(call.lowering, call.in(1), x));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor bias, PerChannel(call.lowering, call.in(2), x));
  return Affine(call.lowering, y, scale, &bias);
}

// Weights per group (opset 18) or per channel (21), each for all that it belongs to.
absl::StatusOr<Tensor> GroupWeights(Call& call, size_t input, const Tensor& x, int64_t groups) {
  const Tensor& vector = call.in(input);
  if (NumElements(vector.shape) != groups || call.opset >= 21) {
    return PerChannel(call.lowering, vector, x);
  }
  const int64_t channels = x.shape[1] / groups;
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor column, call.lowering.Reshaped(vector, Shape{groups, 1}));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor spread,
                           call.lowering.Broadcast(column, Shape{groups, channels}));
  return PerChannel(call.lowering, spread, x);
}

absl::StatusOr<Tensor> GroupNormalization(Call& call) {
  const Tensor& x = call.in(0);
  DEEPPCR_RETURN_IF_ERROR(CheckChannels(x, 2));
  call.Ignore("stash_type");
  DEEPPCR_ASSIGN_OR_RETURN(const double epsilon, call.Float("epsilon", 1e-5f));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t groups, call.Int("num_groups", 0));
  if (groups < 1 || x.shape[1] % groups != 0) {
    return InvalidArgument("attribute num_groups: ", groups, " groups of ", x.shape[1],
                           " channels");
  }
  const Axis view = {.outer = x.shape[0] * groups,
                     .length = NumElements(std::span(x.shape).subspan(1)) / groups};
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor y,
                           call.lowering.AlongAxis(Op::kStandardize, x, view, x.shape, epsilon));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor scale, GroupWeights(call, 1, x, groups));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor bias, GroupWeights(call, 2, x, groups));
  return Affine(call.lowering, y, scale, &bias);
}

// x scale' + bias' with the running statistics in scale' and bias'.
absl::StatusOr<Tensor> BatchNormalization(Call& call) {
  Lowering& lowering = call.lowering;
  const Tensor& x = call.in(0);
  DEEPPCR_RETURN_IF_ERROR(CheckChannels(x, 2));
  call.Ignore("momentum");
  DEEPPCR_ASSIGN_OR_RETURN(const double epsilon, call.Float("epsilon", 1e-5f));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t training, call.Int("training_mode", 0));
  if (training != 0) {
    return InvalidArgument("batch statistics are not taken: export the module in eval mode");
  }
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor variance,
                           lowering.Elementwise(Op::kAdd, call.in(4), epsilon));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor deviation, lowering.Elementwise(Op::kSqrt, {variance}));
  DEEPPCR_ASSIGN_OR_RETURN(Tensor scale,
                           lowering.Elementwise(Op::kDivide, {call.in(1), deviation}));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor shift,
                           lowering.Elementwise(Op::kMultiply, {call.in(3), scale}));
  DEEPPCR_ASSIGN_OR_RETURN(Tensor bias, lowering.Elementwise(Op::kSubtract, {call.in(2), shift}));
  DEEPPCR_ASSIGN_OR_RETURN(scale, PerChannel(lowering, scale, x));
  DEEPPCR_ASSIGN_OR_RETURN(bias, PerChannel(lowering, bias, x));
  return Affine(lowering, x, scale, &bias);
}

absl::StatusOr<Tensor> LpNormalization(Call& call) {
  Lowering& lowering = call.lowering;
  const Tensor& x = call.in(0);
  DEEPPCR_ASSIGN_OR_RETURN(int64_t axis, call.Int("axis", -1));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t p, call.Int("p", 2));
  if (p != 1 && p != 2) return InvalidArgument("attribute p: expected 1 or 2, got ", p);
  DEEPPCR_ASSIGN_OR_RETURN(axis, NormalizedAxis(axis, static_cast<int64_t>(x.shape.size())));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor parts,
                           lowering.Elementwise(p == 1 ? Op::kAbs : Op::kSquare, {x}));
  DEEPPCR_ASSIGN_OR_RETURN(Tensor norm, Reduced(lowering, Op::kSum, parts, std::span(&axis, 1)));
  if (p == 2) {
    DEEPPCR_ASSIGN_OR_RETURN(norm, lowering.Elementwise(Op::kSqrt, {norm}));
  }
  return lowering.Elementwise(Op::kDivide, {x, norm});
}

constexpr OperatorRow kRows[] = {
    {"BatchNormalization", 9, 5, 5, One<BatchNormalization>},
    {"GroupNormalization", 18, 3, 3, One<GroupNormalization>},
    {"InstanceNormalization", 7, 3, 3, One<InstanceNormalization>},
    {"LayerNormalization", 17, 1, 3, One<NormFromAxis<Op::kStandardize>>},
    {"LpNormalization", 7, 1, 1, One<LpNormalization>},
    {"RMSNormalization", 23, 2, 2, One<NormFromAxis<Op::kScaleToUnit>>},
};

}  // namespace

std::span<const OperatorRow> NormOperators() { return kRows; }

}  // namespace deeppcr::program
