// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/lower_onnx.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/base/shape.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/onnx/call.h"
#include "kernels/program/onnx/lowering.h"
#include "kernels/program/onnx/operators.h"
#include "kernels/program/sampler_step.h"

namespace deeppcr::program {
namespace {

constexpr int64_t kMaxRank = 8;
// Elements that may be computed ahead or rearranged, beside a few for each of the file's.
constexpr int64_t kMaxElements = int64_t{1} << 24;
constexpr int64_t kMaxPerFileElement = 4;

using Environment = std::unordered_map<std::string, Tensor>;

int64_t ElementsOf(const OnnxGraph& graph) {
  int64_t elements = 0;
  for (const auto& [name, tensor] : graph.initializers) elements += NumElements(tensor.shape);
  return elements;
}

// The shape for a batch of one.
absl::StatusOr<Shape> ShapeForOne(const OnnxInput& input) {
  Shape shape;
  for (size_t i = 0; i < input.shape.size(); ++i) {
    const auto& [extent, symbol] = input.shape[i];
    if (i == 0 && extent > 1) {
      return InvalidArgument("the first axis, the batch, has extent ", extent,
                             "; export with a batch of 1, or with dynamic_axes for axis 0");
    }
    if (i > 0 && extent < 0 && symbol != input.shape[0].symbol) {
      return InvalidArgument("axis ", i, " has no fixed extent (", Quoted(symbol),
                             "); only the batch, axis 0, may be left open at export");
    }
    shape.push_back(extent < 0 ? 1 : extent);
  }
  DEEPPCR_RETURN_IF_ERROR(CheckedProduct(shape).status());
  return shape;
}

// One of what a program may read.
struct Role {
  std::string_view what;
  const std::string& name;
  bool one_number;
  bool may_be_float, may_be_integer;
};

absl::Status CheckRole(const Role& role, const OnnxInput& input, const Shape& shape) {
  if (role.one_number && NumElements(shape) != 1) {
    return InvalidArgument("expected one number, got shape ", ShapeString(shape));
  }
  if (!role.one_number && shape.empty()) {
    return InvalidArgument("expected a shape [batch, ..], got a scalar");
  }
  if ((input.type == OnnxType::kFloat && role.may_be_float) ||
      (input.type == OnnxType::kInteger && role.may_be_integer)) {
    return absl::OkStatus();
  }
  return InvalidArgument("elements of type ", OnnxTypeName(input.type), "; expected ",
                         role.may_be_float ? "float" : "",
                         role.may_be_float && role.may_be_integer ? " or " : "",
                         role.may_be_integer ? "integer" : "");
}

absl::Status Bind(const OnnxGraph& graph, const Role& role, auto add, Environment& values) {
  if (role.name.empty()) return absl::OkStatus();
  const auto found = std::ranges::find(graph.inputs, role.name, &OnnxInput::name);
  if (found == graph.inputs.end()) {
    return InvalidArgument("the graph has no input ", Quoted(role.name), " for the ", role.what,
                           "; it has ", StrJoin(graph.inputs, ", ", [](const OnnxInput& input) {
                                          return Quoted(input.name);
                                        }).substr(0, 1000));
  }
  const std::string context = StrCat("input ", Quoted(role.name), " (", role.what, ")");
  absl::StatusOr<Shape> shape = ShapeForOne(*found);
  if (!shape.ok()) return WithContext(shape.status(), context);
  DEEPPCR_RETURN_IF_ERROR(WithContext(CheckRole(role, *found, *shape), context));
  absl::StatusOr<ValueId> id = add(NumElements(*shape));
  if (!id.ok()) return WithContext(id.status(), context);
  const Tensor tensor = {.shape = *std::move(shape), .type = found->type, .id = *id};
  if (!values.emplace(role.name, tensor).second) {
    return InvalidArgument(context, ": another role has this input already");
  }
  return absl::OkStatus();
}

absl::Status BindInputs(const OnnxGraph& graph, const OnnxInputs& names, ProgramBuilder& builder,
                        Environment& values) {
  DEEPPCR_RETURN_IF_ERROR(Bind(
      graph, {"state", names.state, false, true, false},
      [&](int64_t size) { return AddSamplerState(builder, size, names.carries); }, values));
  DEEPPCR_RETURN_IF_ERROR(Bind(
      graph, {"time", names.time, true, true, true}, [&](int64_t) { return builder.AddTime(); },
      values));
  DEEPPCR_RETURN_IF_ERROR(Bind(
      graph, {"condition", names.condition, false, true, false},
      [&](int64_t size) { return builder.AddCondition(size); }, values));
  DEEPPCR_RETURN_IF_ERROR(Bind(
      graph, {"label", names.label, true, false, true}, [&](int64_t) { return builder.AddLabel(); },
      values));
  for (const OnnxInput& input : graph.inputs) {
    if (!values.contains(input.name)) {
      return InvalidArgument("input ", Quoted(input.name),
                             " is none of state, time, condition and label; name what it is, or "
                             "make it a constant at export");
    }
  }
  return absl::OkStatus();
}

// The numbers of a parameter as float32, in which they are served.
std::shared_ptr<const std::vector<float>> FloatsOf(const Numbers& numbers) {
  if (numbers.floats != nullptr) return numbers.floats;
  return std::make_shared<const std::vector<float>>(numbers.doubles->begin(),
                                                    numbers.doubles->end());
}

// The value of an initialiser that is none of the program's constants; kNoValue: it is one.
absl::StatusOr<ValueId> BindValue(const std::string& name, const OnnxTensor& tensor,
                                  const OnnxInputs& inputs, ProgramBuilder& builder) {
  const int64_t size = NumElements(tensor.shape);
  const auto stacked = inputs.stacked.find(name);
  const bool per_step = stacked != inputs.stacked.end();
  if (const auto parameter = inputs.parameters.find(name); parameter != inputs.parameters.end()) {
    return builder.AddParameter(per_step ? stacked->second : FloatsOf(tensor.numbers), size,
                                per_step, {{parameter->second, size}});
  }
  return per_step ? builder.AddStacked(stacked->second, size) : kNoValue;
}

absl::Status BindInitializers(const OnnxGraph& graph, const OnnxInputs& inputs,
                              ProgramBuilder& builder, Environment& values) {
  for (const auto& [name, tensor] : graph.initializers) {
    Tensor bound = {.shape = tensor.shape, .type = tensor.type};
    absl::StatusOr<ValueId> id = BindValue(name, tensor, inputs, builder);
    if (!id.ok()) return WithContext(id.status(), StrCat("initialiser ", Quoted(name)));
    if (*id == kNoValue) {
      bound.constant = tensor.numbers;
    } else {
      builder.Name(*id, name);
      bound.id = *id;
    }
    values.emplace(name, std::move(bound));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> PredictionName(const OnnxGraph& graph, const OnnxInputs& names) {
  const auto list = [&] {
    return StrJoin(graph.outputs, ", ", [](const std::string& name) { return Quoted(name); })
        .substr(0, 1000);
  };
  if (names.prediction.empty()) {
    if (graph.outputs.size() == 1) return graph.outputs[0];
    return InvalidArgument("the graph has the outputs ", list(), "; name the prediction");
  }
  if (std::ranges::find(graph.outputs, names.prediction) == graph.outputs.end()) {
    return InvalidArgument("the graph has no output ", Quoted(names.prediction), "; it has ",
                           list());
  }
  return names.prediction;
}

// Which nodes a value needs.
std::vector<bool> NeededFor(const OnnxGraph& graph, const std::string& value) {
  std::set<std::string_view> wanted = {value};
  std::vector<bool> needed(graph.nodes.size());
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const OnnxNode& node = graph.nodes[i];
    needed[i] = std::ranges::any_of(node.outputs, [&](const std::string& output) {
      return !output.empty() && wanted.contains(output);
    });
    if (needed[i]) wanted.insert(node.inputs.begin(), node.inputs.end());
  }
  return needed;
}

absl::StatusOr<Tensors> LowerOne(const OnnxNode& node, int64_t opset, const Environment& values,
                                 Lowering& lowering) {
  std::vector<const Tensor*> inputs;
  for (const std::string& name : node.inputs) {
    const auto found = values.find(name);
    if (!name.empty() && found == values.end()) {
      return InvalidArgument("its input ", Quoted(name),
                             " is an output that is not computed here (a mask or a statistic)");
    }
    inputs.push_back(name.empty() ? nullptr : &found->second);
  }
  Call call(lowering, node, std::move(inputs), opset);
  DEEPPCR_ASSIGN_OR_RETURN(Tensors outputs, LowerNode(call));
  for (const Tensor& output : outputs) {
    if (static_cast<int64_t>(output.shape.size()) > kMaxRank) {
      return InvalidArgument("a result of rank ", output.shape.size(), "; ", kMaxRank,
                             " is allowed");
    }
  }
  return outputs;
}

void Keep(const OnnxNode& node, Tensors outputs, ProgramBuilder& builder, Environment& values) {
  for (size_t i = 0; i < std::min(outputs.size(), node.outputs.size()); ++i) {
    if (node.outputs[i].empty()) continue;
    if (!outputs[i].is_constant()) builder.Name(outputs[i].id, node.outputs[i]);
    values.emplace(node.outputs[i], std::move(outputs[i]));
  }
}

}  // namespace

absl::StatusOr<ValueId> LowerOnnx(const OnnxGraph& graph, const OnnxInputs& inputs,
                                  ProgramBuilder& builder) {
  if (inputs.state.empty()) return InvalidArgument("no input is named as the state");
  DEEPPCR_ASSIGN_OR_RETURN(const std::string prediction, PredictionName(graph, inputs));
  Environment values;
  DEEPPCR_RETURN_IF_ERROR(BindInputs(graph, inputs, builder, values));
  DEEPPCR_RETURN_IF_ERROR(BindInitializers(graph, inputs, builder, values));
  Lowering lowering(builder, kMaxElements + kMaxPerFileElement * ElementsOf(graph));
  const std::vector<bool> needed = NeededFor(graph, prediction);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const OnnxNode& node = graph.nodes[i];
    if (!needed[i]) continue;
    absl::StatusOr<Tensors> outputs = LowerOne(node, graph.opset, values, lowering);
    if (!outputs.ok()) return WithContext(outputs.status(), Describe(node));
    Keep(node, *std::move(outputs), builder, values);
  }
  const auto found = values.find(prediction);
  if (found == values.end()) {
    return InvalidArgument("the output ", Quoted(prediction), " is not computed here");
  }
  return lowering.Value(found->second);
}

}  // namespace deeppcr::program
