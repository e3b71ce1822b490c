// SPDX-License-Identifier: Apache-2.0
// ONNX's own tests of its operators: one folder each, with a model, inputs and outputs. Each is
// tried with all inputs known, and with each input in turn as the state.
//
// onnx_nodes_test.sh fetches them and says where they are in DEEPPCR_ONNX_NODE_TESTS.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/onnx/lowering.h"
#include "kernels/program/onnx/tensor_reader.h"
#include "tests/testing/onnx_model.h"

namespace deeppcr::testing {
namespace {

using program::OnnxGraph;
using program::OnnxNode;
using program::OnnxTensor;
using program::OnnxType;

// What the results of ONNX's reference in float32 are held to.
constexpr double kTolerance = 2e-5;

absl::StatusOr<std::vector<OnnxTensor>> ReadTensors(const std::filesystem::path& folder,
                                                    const std::string& kind) {
  std::vector<OnnxTensor> tensors;
  const std::string none;
  const program::OnnxLimits limits;
  for (int i = 0;; ++i) {
    const std::filesystem::path path = folder / StrCat(kind, "_", i, ".pb");
    if (!std::filesystem::exists(path)) return tensors;
    DEEPPCR_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path.string(), 1 << 24));
    onnx::TensorProto proto;
    if (!proto.ParseFromString(bytes)) return absl::InvalidArgumentError("no tensor");
    MemoryShare of_messages;
    program::OnnxTensorReader reader(none, limits, of_messages);
    DEEPPCR_ASSIGN_OR_RETURN(OnnxTensor tensor, reader.Read(proto));
    tensors.push_back(std::move(tensor));
  }
}

std::vector<double> Elements(const OnnxTensor& tensor) {
  std::vector<double> elements(static_cast<size_t>(program::NumElements(tensor.shape)));
  for (size_t i = 0; i < elements.size(); ++i) {
    elements[i] = tensor.numbers[static_cast<int64_t>(i)];
  }
  return elements;
}

// Nodes that make an input of a type and shape from the state, a row of floats.
void MakeFromState(const std::string& name, const OnnxTensor& tensor, OnnxGraph& graph) {
  std::vector<double> shape(tensor.shape.begin(), tensor.shape.end());
  const auto rank = static_cast<int64_t>(shape.size());
  graph.initializers["its shape"] = {
      .shape = {rank},
      .type = OnnxType::kInteger,
      .numbers = {.doubles = std::make_shared<const std::vector<double>>(std::move(shape))}};
  const int64_t type = tensor.type == OnnxType::kFloat     ? onnx::TensorProto::FLOAT
                       : tensor.type == OnnxType::kInteger ? onnx::TensorProto::INT64
                                                           : onnx::TensorProto::BOOL;
  OnnxNode reshape = {
      .op_type = "Reshape", .inputs = {"the state", "its shape"}, .outputs = {"shaped"}};
  OnnxNode cast = {
      .op_type = "Cast", .inputs = {"shaped"}, .outputs = {name}, .attributes = {{"to", type}}};
  graph.nodes.insert(graph.nodes.begin(), {std::move(reshape), std::move(cast)});
}

// The graph with known inputs, but `dynamic`, which is made from the state.
OnnxGraph WithInputs(OnnxGraph graph, const std::vector<OnnxTensor>& inputs,
                     std::optional<size_t> dynamic) {
  const std::vector<program::OnnxInput> declared = std::move(graph.inputs);
  const int64_t size = dynamic ? program::NumElements(inputs[*dynamic].shape) : 1;
  graph.inputs = {{.name = "the state", .shape = {{.extent = 1}, {.extent = size}}}};
  for (size_t i = 0; i < declared.size(); ++i) {
    if (i == dynamic) {
      MakeFromState(declared[i].name, inputs[i], graph);
    } else {
      graph.initializers[declared[i].name] = inputs[i];
    }
  }
  return graph;
}

// Whether the outputs are as expected; an error where the graph is not taken.
absl::StatusOr<bool> Agrees(const OnnxGraph& graph, const std::vector<double>& state,
                            const std::vector<OnnxTensor>& expected) {
  for (size_t i = 0; i < std::min(expected.size(), graph.outputs.size()); ++i) {
    const auto lowered = LowerGraph(graph, {.state = "the state", .prediction = graph.outputs[i]});
    if (!lowered.ok() && i > 0) continue;  // outputs that are not computed
    if (!lowered.ok()) return lowered.status();
    const std::vector<double> got = Predict(*lowered, {}, state), all = Elements(expected[i]);
    if (got.size() != all.size()) return false;
    for (size_t k = 0; k < all.size(); ++k) {
      const bool near = std::abs(got[k] - all[k]) <= kTolerance * std::max(1.0, std::abs(all[k]));
      if (!near && got[k] != all[k]) return false;
    }
  }
  return true;
}

struct Tally {
  int known = 0, computed = 0;
  std::map<std::string, std::set<std::string>> refused;  // tests by reason
};

// The reason without what differs from test to test.
std::string ReasonOf(const absl::Status& status) {
  const std::string message(status.message());
  const size_t colon = message.find("): ");
  return (colon == std::string::npos ? message : message.substr(colon + 3)).substr(0, 60);
}

void TryFolder(const std::filesystem::path& folder, Tally& tally) {
  const std::string name = folder.filename().string();
  const auto refuse = [&](const absl::Status& status) {
    tally.refused[ReasonOf(status)].insert(name);
  };
  const auto bytes = ReadFile((folder / "model.onnx").string(), 1 << 24);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const auto graph = program::ReadOnnxGraph(*bytes, "");
  if (!graph.ok()) return refuse(graph.status());
  const auto inputs = ReadTensors(folder / "test_data_set_0", "input");
  if (!inputs.ok()) return refuse(inputs.status());
  const auto outputs = ReadTensors(folder / "test_data_set_0", "output");
  if (!outputs.ok()) return refuse(outputs.status());
  ASSERT_EQ(inputs->size(), graph->inputs.size()) << name;
  const auto known = Agrees(WithInputs(*graph, *inputs, std::nullopt), {0}, *outputs);
  if (known.ok()) {
    EXPECT_TRUE(*known) << name << ": all inputs known";
    ++tally.known;
  } else {
    refuse(known.status());
  }
  for (size_t i = 0; i < inputs->size(); ++i) {
    if (program::NumElements((*inputs)[i].shape) == 0) continue;
    const auto computed = Agrees(WithInputs(*graph, *inputs, i), Elements((*inputs)[i]), *outputs);
    if (computed.ok()) {
      EXPECT_TRUE(*computed) << name << ": input " << i << " is the state";
      ++tally.computed;
    } else {
      refuse(computed.status());
    }
  }
}

TEST(OnnxNodesTest, AreComputedOrRefused) {
  const char* const folder = std::getenv("DEEPPCR_ONNX_NODE_TESTS");
  if (folder == nullptr) {
    GTEST_SKIP() << "DEEPPCR_ONNX_NODE_TESTS names no folder; run onnx_nodes_test.sh";
  }
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    folders.push_back(entry.path());
  }
  std::ranges::sort(folders);
  Tally tally;
  for (const std::filesystem::path& tried : folders) TryFolder(tried, tally);
  for (const auto& [reason, names] : tally.refused) {
    std::cout << reason << ":\n";
    for (const std::string& name : names) std::cout << "  " << name << "\n";
  }
  std::cout << folders.size() << " folders; taken with all inputs known: " << tally.known
            << "; with one of them as the state: " << tally.computed << "\n";
  EXPECT_GT(tally.known, 300) << "few were taken at all";
  EXPECT_GT(tally.computed, 300) << "few were taken at all";
}

}  // namespace
}  // namespace deeppcr::testing
