// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/onnx_model.h"

#include "kernels/base/status_macros.h"
#include "kernels/program/builder.h"

namespace deeppcr::testing {

OnnxModel::OnnxModel(int64_t opset) {
  proto.set_ir_version(8);
  proto.add_opset_import()->set_version(opset);
  proto.mutable_graph()->set_name("graph");
}

OnnxModel& OnnxModel::Input(const std::string& name, const Shape& shape, int32_t type) {
  onnx::ValueInfoProto& input = *graph().add_input();
  input.set_name(name);
  input.mutable_type()->mutable_tensor_type()->set_elem_type(type);
  auto& dims = *input.mutable_type()->mutable_tensor_type()->mutable_shape();
  for (const int64_t extent : shape) {
    if (extent == -1) {
      dims.add_dim()->set_dim_param("batch");
    } else {
      dims.add_dim()->set_dim_value(extent);
    }
  }
  return *this;
}

OnnxModel& OnnxModel::Floats(const std::string& name, const Shape& shape,
                             const std::vector<float>& values) {
  onnx::TensorProto& tensor = *graph().add_initializer();
  tensor.set_name(name);
  tensor.set_data_type(onnx::TensorProto::FLOAT);
  tensor.mutable_dims()->Add(shape.begin(), shape.end());
  tensor.mutable_float_data()->Add(values.begin(), values.end());
  return *this;
}

OnnxModel& OnnxModel::Ints(const std::string& name, const Shape& shape,
                           const std::vector<int64_t>& values) {
  onnx::TensorProto& tensor = *graph().add_initializer();
  tensor.set_name(name);
  tensor.set_data_type(onnx::TensorProto::INT64);
  tensor.mutable_dims()->Add(shape.begin(), shape.end());
  tensor.mutable_int64_data()->Add(values.begin(), values.end());
  return *this;
}

OnnxModel& OnnxModel::Output(const std::string& name) {
  graph().add_output()->set_name(name);
  return *this;
}

OnnxModel& OnnxModel::Node(const std::string& op_type, const std::vector<std::string>& inputs,
                           const std::vector<std::string>& outputs) {
  onnx::NodeProto& node = *graph().add_node();
  node.set_op_type(op_type);
  for (const std::string& input : inputs) node.add_input(input);
  for (const std::string& output : outputs) node.add_output(output);
  return *this;
}

onnx::AttributeProto& OnnxModel::Attribute(const std::string& name) {
  onnx::AttributeProto& attribute = *last_node().add_attribute();
  attribute.set_name(name);
  return attribute;
}

OnnxModel& OnnxModel::Int(const std::string& name, int64_t value) {
  onnx::AttributeProto& attribute = Attribute(name);
  attribute.set_type(onnx::AttributeProto::INT);
  attribute.set_i(value);
  return *this;
}

OnnxModel& OnnxModel::Float(const std::string& name, float value) {
  onnx::AttributeProto& attribute = Attribute(name);
  attribute.set_type(onnx::AttributeProto::FLOAT);
  attribute.set_f(value);
  return *this;
}

OnnxModel& OnnxModel::String(const std::string& name, const std::string& value) {
  onnx::AttributeProto& attribute = Attribute(name);
  attribute.set_type(onnx::AttributeProto::STRING);
  attribute.set_s(value);
  return *this;
}

OnnxModel& OnnxModel::IntList(const std::string& name, const std::vector<int64_t>& values) {
  onnx::AttributeProto& attribute = Attribute(name);
  attribute.set_type(onnx::AttributeProto::INTS);
  attribute.mutable_ints()->Add(values.begin(), values.end());
  return *this;
}

absl::StatusOr<program::Program> LowerGraph(const program::OnnxGraph& graph,
                                            const program::OnnxInputs& inputs) {
  program::ProgramBuilder builder;
  DEEPPCR_ASSIGN_OR_RETURN(const program::ValueId prediction,
                           program::LowerOnnx(graph, inputs, builder));
  return builder.Finish(builder.program().state, prediction);
}

absl::StatusOr<program::Program> LowerBytes(const std::string& bytes,
                                            const program::OnnxInputs& inputs) {
  DEEPPCR_ASSIGN_OR_RETURN(const program::OnnxGraph graph, program::ReadOnnxGraph(bytes, ""));
  return LowerGraph(graph, inputs);
}

std::vector<double> Predict(const program::Program& lowered, const program::StepInputs& inputs,
                            const std::vector<double>& state) {
  program::Evaluation evaluation(lowered);
  evaluation.Run(inputs, state);
  const std::span<const double> prediction = evaluation.at(lowered.prediction);
  return {prediction.begin(), prediction.end()};
}

}  // namespace deeppcr::testing
