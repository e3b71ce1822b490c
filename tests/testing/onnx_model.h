// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_ONNX_MODEL_H_
#define DEEPPCR_TESTS_TESTING_ONNX_MODEL_H_

#include <onnx/onnx.pb.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/program/evaluate.h"
#include "kernels/program/lower_onnx.h"
#include "kernels/program/onnx_graph.h"
#include "kernels/program/program.h"

namespace deeppcr::testing {

using Shape = std::vector<int64_t>;

// A .onnx file, made piece by piece. What is wrong is written as it is told.
class OnnxModel {
 public:
  explicit OnnxModel(int64_t opset = 17);

  // A float input; an extent of -1 is symbolic.
  OnnxModel& Input(const std::string& name, const Shape& shape,
                   int32_t type = onnx::TensorProto::FLOAT);
  OnnxModel& Floats(const std::string& name, const Shape& shape, const std::vector<float>& values);
  OnnxModel& Ints(const std::string& name, const Shape& shape, const std::vector<int64_t>& values);
  OnnxModel& Output(const std::string& name);
  // A node; attributes go to the last one.
  OnnxModel& Node(const std::string& op_type, const std::vector<std::string>& inputs,
                  const std::vector<std::string>& outputs);
  OnnxModel& Int(const std::string& name, int64_t value);
  OnnxModel& Float(const std::string& name, float value);
  OnnxModel& String(const std::string& name, const std::string& value);
  OnnxModel& IntList(const std::string& name, const std::vector<int64_t>& values);

  onnx::GraphProto& graph() { return *proto.mutable_graph(); }
  onnx::NodeProto& last_node() { return *graph().mutable_node(graph().node_size() - 1); }
  std::string Bytes() const { return proto.SerializeAsString(); }

  onnx::ModelProto proto;

 private:
  onnx::AttributeProto& Attribute(const std::string& name);
};

// The program of a graph, with the prediction; its output is the state.
absl::StatusOr<program::Program> LowerGraph(const program::OnnxGraph& graph,
                                            const program::OnnxInputs& inputs);

// Of a file of bytes, without a folder.
absl::StatusOr<program::Program> LowerBytes(const std::string& bytes,
                                            const program::OnnxInputs& inputs);

// The prediction for a state.
std::vector<double> Predict(const program::Program& lowered, const program::StepInputs& inputs,
                            const std::vector<double>& state);

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_ONNX_MODEL_H_
