// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/onnx_graph.h"

#include <onnx/onnx.pb.h>

#include <utility>

#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/onnx/node_order.h"
#include "kernels/program/onnx/tensor_reader.h"
#include "kernels/program/onnx/wire.h"

namespace deeppcr::program {
namespace {

using onnx::AttributeProto;

absl::StatusOr<onnx::ModelProto> ParseModel(std::string_view bytes, const OnnxLimits& limits,
                                            MemoryShare& memory) {
  if (static_cast<int64_t>(bytes.size()) > limits.max_bytes) {
    return ResourceExhausted("file of ", bytes.size(), " bytes; ", limits.max_bytes,
                             " are allowed");
  }
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t memory_bytes, CheckOnnxWire(bytes, limits));
  DEEPPCR_RETURN_IF_ERROR(memory.Set(memory_bytes));
  onnx::ModelProto model;
  if (!model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return InvalidArgument("no ONNX file: protobuf cannot parse the bytes");
  }
  if (!model.has_graph()) return InvalidArgument("no ONNX file: there is no graph in it");
  return model;
}

absl::StatusOr<int64_t> ReadOpset(const onnx::ModelProto& model) {
  int64_t opset = 0;
  for (const auto& import : model.opset_import()) {
    if (!import.domain().empty() && import.domain() != "ai.onnx") continue;
    if (opset != 0) return InvalidArgument("opset_import: two versions of ONNX's own operators");
    opset = import.version();
  }
  if (opset < kMinOnnxOpset || opset > kMaxOnnxOpset) {
    return InvalidArgument("opset version ", opset, "; ", kMinOnnxOpset, " to ", kMaxOnnxOpset,
                           " are taken: export with opset_version=17 or 18");
  }
  return opset;
}

template <typename Field>
absl::Status CheckListSize(const Field& field, const OnnxLimits& limits) {
  if (field.size() <= limits.max_attribute_elements) return absl::OkStatus();
  return ResourceExhausted(field.size(), " elements; ", limits.max_attribute_elements,
                           " are allowed");
}

absl::StatusOr<OnnxAttribute> ReadAttribute(AttributeProto& proto, OnnxTensorReader& tensors,
                                            const OnnxLimits& limits) {
  if (!proto.ref_attr_name().empty()) {
    return InvalidArgument("refers to a function's attribute, and functions are not taken");
  }
  switch (proto.type()) {
    case AttributeProto::INT:
      return proto.i();
    case AttributeProto::FLOAT:
      return proto.f();
    case AttributeProto::STRING:
      return proto.s();
    case AttributeProto::TENSOR:
      return tensors.Read(*proto.mutable_t());
    case AttributeProto::INTS:
      DEEPPCR_RETURN_IF_ERROR(CheckListSize(proto.ints(), limits));
      return std::vector<int64_t>(proto.ints().begin(), proto.ints().end());
    case AttributeProto::FLOATS:
      DEEPPCR_RETURN_IF_ERROR(CheckListSize(proto.floats(), limits));
      return std::vector<float>(proto.floats().begin(), proto.floats().end());
    case AttributeProto::STRINGS:
      DEEPPCR_RETURN_IF_ERROR(CheckListSize(proto.strings(), limits));
      return std::vector<std::string>(proto.strings().begin(), proto.strings().end());
    case AttributeProto::GRAPH:
    case AttributeProto::GRAPHS:
      return InvalidArgument(
          "holds a subgraph; control flow (Loop, If, Scan) is not taken: export a module whose "
          "forward is a straight line");
    default:
      return InvalidArgument("its type, number ", static_cast<int>(proto.type()),
                             ", is not taken; expected a number, a string, a list of them or a "
                             "tensor");
  }
}

absl::StatusOr<std::vector<std::string>> ReadNames(
    const google::protobuf::RepeatedPtrField<std::string>& names, const OnnxLimits& limits) {
  for (const std::string& name : names) {
    DEEPPCR_RETURN_IF_ERROR(CheckOnnxName(name, "a value", limits));
  }
  return std::vector<std::string>(names.begin(), names.end());
}

absl::StatusOr<OnnxNode> ReadNode(onnx::NodeProto& proto, OnnxTensorReader& tensors,
                                  const OnnxLimits& limits) {
  OnnxNode node;
  DEEPPCR_RETURN_IF_ERROR(CheckOnnxName(proto.op_type(), "an operator", limits));
  DEEPPCR_RETURN_IF_ERROR(CheckOnnxName(proto.domain(), "a domain", limits));
  DEEPPCR_RETURN_IF_ERROR(CheckOnnxName(proto.name(), "a node", limits));
  node.op_type = proto.op_type();
  node.domain = proto.domain() == "ai.onnx" ? "" : proto.domain();
  node.name = proto.name();
  DEEPPCR_ASSIGN_OR_RETURN(node.inputs, ReadNames(proto.input(), limits));
  DEEPPCR_ASSIGN_OR_RETURN(node.outputs, ReadNames(proto.output(), limits));
  for (AttributeProto& attribute : *proto.mutable_attribute()) {
    DEEPPCR_RETURN_IF_ERROR(CheckOnnxName(attribute.name(), "an attribute", limits));
    const std::string context = StrCat(Describe(node), ": attribute ", Quoted(attribute.name()));
    absl::StatusOr<OnnxAttribute> value = ReadAttribute(attribute, tensors, limits);
    if (!value.ok()) return WithContext(value.status(), context);
    if (!node.attributes.emplace(attribute.name(), *std::move(value)).second) {
      return InvalidArgument(context, " comes twice");
    }
  }
  return node;
}

absl::StatusOr<OnnxInput> ReadInput(const onnx::ValueInfoProto& proto, const OnnxLimits& limits) {
  OnnxInput input{.name = proto.name()};
  if (!proto.type().has_tensor_type() || !proto.type().tensor_type().has_shape()) {
    return InvalidArgument("expected a tensor with a shape");
  }
  const auto& type = proto.type().tensor_type();
  if (type.elem_type() == onnx::TensorProto::FLOAT16 ||
      type.elem_type() == onnx::TensorProto::BFLOAT16) {
    return InvalidArgument("16-bit floats are not computed with: export in float32");
  }
  DEEPPCR_ASSIGN_OR_RETURN(input.type, TypeOfElements(type.elem_type()));
  if (type.shape().dim_size() > limits.max_rank) {
    return ResourceExhausted("rank ", type.shape().dim_size(), "; ", limits.max_rank,
                             " is allowed");
  }
  for (const auto& dim : type.shape().dim()) {
    if (dim.has_dim_value() && dim.dim_value() < 1) {
      return InvalidArgument("extent ", dim.dim_value(), "; expected 1 or more");
    }
    DEEPPCR_RETURN_IF_ERROR(CheckOnnxName(dim.dim_param(), "an extent", limits));
    input.shape.push_back(dim.has_dim_value() ? OnnxDimension{.extent = dim.dim_value()}
                                              : OnnxDimension{.symbol = dim.dim_param()});
  }
  return input;
}

absl::Status ReadInitializers(onnx::GraphProto& proto, OnnxTensorReader& tensors,
                              const OnnxLimits& limits, OnnxGraph& graph) {
  for (onnx::TensorProto& initializer : *proto.mutable_initializer()) {
    DEEPPCR_RETURN_IF_ERROR(CheckOnnxName(initializer.name(), "an initialiser", limits));
    if (initializer.name().empty()) return InvalidArgument("an initialiser has no name");
    absl::StatusOr<OnnxTensor> tensor = tensors.Read(initializer);
    const std::string context = StrCat("initialiser ", Quoted(initializer.name()));
    if (!tensor.ok()) return WithContext(tensor.status(), context);
    if (!graph.initializers.emplace(initializer.name(), *std::move(tensor)).second) {
      return InvalidArgument(context, " comes twice");
    }
  }
  return absl::OkStatus();
}

// An input with an initialiser is a default, which files of before 2019 have for all weights.
absl::Status ReadInputs(const onnx::GraphProto& proto, const OnnxLimits& limits, OnnxGraph& graph) {
  for (const auto& value : proto.input()) {
    DEEPPCR_RETURN_IF_ERROR(CheckOnnxName(value.name(), "an input", limits));
    if (graph.initializers.contains(value.name())) continue;
    absl::StatusOr<OnnxInput> input = ReadInput(value, limits);
    if (!input.ok()) {
      return WithContext(input.status(), StrCat("input ", Quoted(value.name())));
    }
    graph.inputs.push_back(*std::move(input));
  }
  return absl::OkStatus();
}

absl::Status ReadOutputs(const onnx::GraphProto& proto, const OnnxLimits& limits,
                         OnnxGraph& graph) {
  if (proto.output().empty()) return InvalidArgument("the graph has no output");
  for (const auto& value : proto.output()) {
    DEEPPCR_RETURN_IF_ERROR(CheckOnnxName(value.name(), "an output", limits));
    graph.outputs.push_back(value.name());
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view OnnxTypeName(OnnxType type) {
  switch (type) {
    case OnnxType::kFloat:
      return "float";
    case OnnxType::kInteger:
      return "integer";
    case OnnxType::kBool:
      return "bool";
  }
  return "";
}

std::string Describe(const OnnxNode& node) {
  const std::string_view first = node.outputs.empty() ? "" : std::string_view(node.outputs[0]);
  return StrCat("node ", Quoted(node.name.empty() ? first : std::string_view(node.name)), " (",
                Quoted(node.op_type), ")");
}

absl::StatusOr<OnnxGraph> ReadOnnxGraph(std::string_view bytes, const std::string& directory,
                                        const OnnxLimits& limits) {
  MemoryShare of_messages = limits.memory == nullptr ? MemoryShare() : limits.memory->Another();
  DEEPPCR_ASSIGN_OR_RETURN(onnx::ModelProto model, ParseModel(bytes, limits, of_messages));
  onnx::GraphProto& proto = *model.mutable_graph();
  OnnxGraph graph;
  DEEPPCR_ASSIGN_OR_RETURN(graph.opset, ReadOpset(model));
  OnnxTensorReader tensors(directory, limits, of_messages);
  DEEPPCR_RETURN_IF_ERROR(ReadInitializers(proto, tensors, limits, graph));
  DEEPPCR_RETURN_IF_ERROR(ReadInputs(proto, limits, graph));
  DEEPPCR_RETURN_IF_ERROR(ReadOutputs(proto, limits, graph));
  for (onnx::NodeProto& node : *proto.mutable_node()) {
    DEEPPCR_ASSIGN_OR_RETURN(OnnxNode read, ReadNode(node, tensors, limits));
    graph.nodes.push_back(std::move(read));
  }
  DEEPPCR_RETURN_IF_ERROR(OrderNodes(graph));
  return graph;
}

}  // namespace deeppcr::program
