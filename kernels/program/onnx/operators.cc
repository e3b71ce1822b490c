// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/onnx/operators.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/base/strings.h"
#include "kernels/program/lower_onnx.h"

namespace deeppcr::program {
namespace {

std::array<std::span<const OperatorRow>, 8> Groups() {
  return {ArithmeticOperators(), ActivationOperators(), ReductionOperators(), NormOperators(),
          ProductOperators(),    ShapeOperators(),      GatherOperators(),    ConstantOperators()};
}

// Operators that cannot be taken, and why.
struct Refusal {
  const char* name;
  const char* why;
};

constexpr const char* kControlFlow = "control flow is not taken: export a straight line";
constexpr const char* kRecurrent = "the step is the recurrence; others inside are not taken";
constexpr const char* kConvolution = "convolutions are not taken";
constexpr const char* kDataDependent = "shapes and places that depend on data are not taken";
constexpr const char* kRandom =
    "random numbers are not taken: the sampler draws them; export the module in eval mode";
constexpr const char* kQuantized = "quantised graphs are not taken: export in float32";

constexpr Refusal kRefusals[] = {
    {"Loop", kControlFlow},
    {"If", kControlFlow},
    {"Scan", kControlFlow},
    {"LSTM", kRecurrent},
    {"GRU", kRecurrent},
    {"RNN", kRecurrent},
    {"Conv", kConvolution},
    {"ConvTranspose", kConvolution},
    {"NonZero", kDataDependent},
    {"Unique", kDataDependent},
    {"Compress", kDataDependent},
    {"TopK", kDataDependent},
    {"ArgMax", kDataDependent},
    {"ArgMin", kDataDependent},
    {"NonMaxSuppression", kDataDependent},
    {"RandomNormal", kRandom},
    {"RandomNormalLike", kRandom},
    {"RandomUniform", kRandom},
    {"RandomUniformLike", kRandom},
    {"Multinomial", kRandom},
    {"Bernoulli", kRandom},
    {"QuantizeLinear", kQuantized},
    {"DequantizeLinear", kQuantized},
    {"DynamicQuantizeLinear", kQuantized},
    {"MatMulInteger", kQuantized},
    {"QLinearMatMul", kQuantized},
};

absl::Status RefuseUnknown(const OnnxNode& node) {
  if (!node.domain.empty()) {
    return InvalidArgument("operators of domain ", Quoted(node.domain),
                           " are not taken: export with ONNX's own operators");
  }
  for (const Refusal& refusal : kRefusals) {
    if (refusal.name == node.op_type) return InvalidArgument(refusal.why);
  }
  return InvalidArgument("the operator is not taken; those that are: ", OnnxOperatorNames());
}

absl::StatusOr<const OperatorRow*> RowOf(const OnnxNode& node) {
  if (!node.domain.empty()) return RefuseUnknown(node);
  for (const std::span<const OperatorRow> group : Groups()) {
    for (const OperatorRow& row : group) {
      if (row.name == node.op_type) return &row;
    }
  }
  return RefuseUnknown(node);
}

absl::Status CheckInputs(const OperatorRow& row, const Call& call) {
  if (call.inputs.size() > row.max_inputs) {
    return InvalidArgument(call.inputs.size(), " inputs; at most ", row.max_inputs,
                           " are expected");
  }
  for (size_t i = 0; i < row.min_inputs; ++i) {
    if (!call.Has(i)) return InvalidArgument("input ", i, " is missing");
  }
  return absl::OkStatus();
}

}  // namespace

std::string OnnxOperatorNames() {
  std::vector<std::string> names;
  for (const std::span<const OperatorRow> group : Groups()) {
    for (const OperatorRow& row : group) names.emplace_back(row.name);
  }
  std::sort(names.begin(), names.end());
  return StrJoin(names, ", ", [](const std::string& name) { return name; });
}

absl::StatusOr<Tensors> LowerNode(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const OperatorRow* row, RowOf(call.node));
  if (call.opset < row->since) {
    return InvalidArgument("the operator is taken from opset ", row->since,
                           " on; the file has opset ", call.opset);
  }
  DEEPPCR_RETURN_IF_ERROR(CheckInputs(*row, call));
  DEEPPCR_ASSIGN_OR_RETURN(Tensors outputs, row->lower(call));
  DEEPPCR_RETURN_IF_ERROR(call.CheckAttributes());
  return outputs;
}

}  // namespace deeppcr::program
