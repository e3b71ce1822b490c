// SPDX-License-Identifier: Apache-2.0
// Folders of stacks: what is loaded, and what is refused with which words.
#include "kernels/model/block_stack.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/model/model.h"
#include "tests/testing/expect_error.h"
#include "tests/testing/onnx_model.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr {
namespace {

using absl::StatusCode;
using testing::ExpectError;
using testing::NamedTensor;
using testing::OnnxModel;

constexpr char kConfig[] =
    R"("input_dim": 2, "output_dim": 2, "state_dim": 2, "num_layers": 3, "model_type": "stack")";

// next = z + w z' of w [2, 2], by a block that adds `b` [1, 2].
OnnxModel Block() {
  OnnxModel block;
  block.Input("z", {1, 2})
      .Floats("w", {2, 2}, {1, 2, 3, 4})
      .Floats("b", {1, 2}, {5, 6})
      .Node("MatMul", {"z", "w"}, {"y"})
      .Node("Add", {"y", "b"}, {"sum"})
      .Node("Sigmoid", {"sum"}, {"next"})
      .Output("next");
  return block;
}

NamedTensor Numbers(std::string name, std::vector<int64_t> shape) {
  NamedTensor tensor{std::move(name), std::move(shape), {}};
  size_t size = 1;
  for (const int64_t extent : tensor.shape) size *= static_cast<size_t>(extent);
  for (size_t i = 0; i < size; ++i) tensor.values.push_back(0.125F * static_cast<float>(i));
  return tensor;
}

const std::vector<NamedTensor> kTensors = {Numbers("w", {3, 2, 2}), Numbers("b", {3, 1, 2})};

class BlockStackTest : public ::testing::Test {
 protected:
  absl::StatusOr<Model> Load(const OnnxModel& block, const std::vector<NamedTensor>& tensors,
                             const std::string& extra = "") {
    Write(block, tensors, extra);
    return ReadModel(directory_.path(), {});
  }
  void Write(const OnnxModel& block, const std::vector<NamedTensor>& tensors,
             const std::string& extra = "") {
    ASSERT_TRUE(
        testing::WriteModel(directory_.path(), std::string("{") + kConfig + extra + "}", tensors)
            .ok());
    std::ofstream(directory_.File("block.onnx"), std::ios::binary) << block.Bytes();
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(BlockStackTest, ALayerOfANamedStackIsOne) {
  const auto model = Load(Block(), kTensors);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto& spec = std::get<DenseStackSpec>(model->systems.at(0));
  EXPECT_EQ(spec.num_steps, 3);
  EXPECT_FALSE(spec.residual);
  EXPECT_EQ(spec.activation, Activation::kSigmoid);
  // MatMul's matrix is [in, out].
  EXPECT_EQ(spec.weights[1], kTensors[0].values[2]);
  EXPECT_EQ(spec.weights[4 + 2], kTensors[0].values[4 + 1]);
  EXPECT_EQ(spec.biases[5], kTensors[1].values[5]);
}

TEST_F(BlockStackTest, AnyOtherBlockIsAProgram) {
  OnnxModel block = Block();
  block.graph().mutable_output(0)->set_name("twice");
  block.Node("Mul", {"next", "z"}, {"twice"});
  const auto model = Load(block, kTensors);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto& spec = std::get<StackProgramSpec>(model->systems.at(0));
  EXPECT_EQ(spec.num_steps, 3);
  EXPECT_EQ(spec.program, model->stack.program.get());
  EXPECT_EQ(spec.program->stacked.size(), 2u);
  EXPECT_EQ(model->stack.graph, nullptr);
}

TEST_F(BlockStackTest, SharedWeightsAreTheFilesOwnAndNeedNoTensor) {
  const auto model = Load(Block(), {}, R"(, "shared_weights": ["w", "b"])");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto& spec = std::get<StackProgramSpec>(model->systems.at(0));
  EXPECT_TRUE(spec.program->stacked.empty());
  const auto& layer = spec.program->instructions.at(0).linear;
  EXPECT_EQ(*layer.weight, (std::vector<float>{1, 3, 2, 4}));
  EXPECT_EQ(*layer.bias, (std::vector<float>{5, 6}));
}

// A scalar without a tensor may be an exporter's constant, or a parameter that was forgotten.
TEST_F(BlockStackTest, SaysWhichScalarsAreTheSameForAllLayers) {
  OnnxModel block = Block();
  block.Floats("gate", {}, {0.5F}).Floats("half", {}, {0.5F}).Ints("axis", {}, {0});
  block.graph().mutable_output(0)->set_name("scaled");
  block.Node("Mul", {"next", "gate"}, {"gated"}).Node("Mul", {"gated", "half"}, {"scaled"});
  const auto notes = [&](const std::vector<NamedTensor>& tensors, const std::string& extra = "") {
    Write(block, tensors, extra);
    const ModelFilesReport report = CheckModelFiles(directory_.path(), {});
    EXPECT_EQ(report.problems, std::vector<std::string>());
    std::vector<std::string> at_load;
    EXPECT_TRUE(ReadModel(directory_.path(), {.notes = &at_load}).ok());
    EXPECT_EQ(at_load, report.notes);
    return report.notes;
  };
  const std::vector<std::string> both = notes(kTensors);
  ASSERT_EQ(both.size(), 1u);
  EXPECT_NE(both[0].find("block.onnx: the same for all layers"), std::string::npos) << both[0];
  EXPECT_NE(both[0].find("\"gate\", \"half\""), std::string::npos) << both[0];
  std::vector<NamedTensor> tensors = kTensors;
  tensors.push_back(Numbers("gate", {3}));
  const std::vector<std::string> one = notes(tensors);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].find("\"gate\""), std::string::npos) << one[0];
  EXPECT_TRUE(notes(tensors, R"(, "shared_weights": ["half"])").empty());
}

TEST_F(BlockStackTest, OuterLayersAreThoseOfNamedStacks) {
  std::vector<NamedTensor> tensors = kTensors;
  tensors.push_back(Numbers("input.weight", {2, 2}));
  tensors.push_back(Numbers("output.weight", {2, 2}));
  tensors.push_back(Numbers("output.bias", {2}));
  const auto model = Load(Block(), tensors, R"(, "input_activation": "tanh")");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto& spec = std::get<DenseStackSpec>(model->systems.at(0));
  EXPECT_EQ(spec.encode.activation, Activation::kTanh);
  EXPECT_EQ(spec.decode.bias[1], 0.125F);
}

TEST_F(BlockStackTest, TheIdIsThatOfAllFiles) {
  std::string last;
  for (int change = 0; change < 4; ++change) {
    std::vector<NamedTensor> tensors = kTensors;
    OnnxModel block = Block();
    if (change == 1) tensors[0].values[3] += 1;
    if (change == 2) block.graph().mutable_node(2)->set_op_type("Tanh");
    if (change == 3) tensors.push_back(Numbers("output.weight", {2, 2}));
    const auto model = Load(block, tensors);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->weights_sha256.size(), 64u);
    EXPECT_NE(model->weights_sha256, last);
    last = model->weights_sha256;
  }
}

TEST_F(BlockStackTest, NamesWhatIsMissingOrTooMuch) {
  const auto refused = [&](const std::vector<NamedTensor>& tensors, const std::string& words,
                           const std::string& extra = "") {
    ExpectError(Load(Block(), tensors, extra), StatusCode::kInvalidArgument, words);
  };
  refused({kTensors[0]},
          "tensor \"b\" of shape [3, 1, 2] is missing; block.onnx has an initialiser");
  refused({kTensors[0], Numbers("b", {3, 2})}, "tensor \"b\"");
  refused({kTensors[0], Numbers("b", {2, 1, 2})}, "tensor \"b\"");
  refused({kTensors[0], kTensors[1], Numbers("c", {3, 2})}, "tensor \"c\"");
  refused(kTensors, "tensor \"b\": expected none, as config.json names it in shared_weights",
          R"(, "shared_weights": ["b"])");
  refused(kTensors, "shared_weights: block.onnx has no initialiser \"v\"",
          R"(, "shared_weights": ["v"])");
  refused(kTensors, "shared_weights[0]: expected a string", R"(, "shared_weights": [1])");
  refused(kTensors, "activation: only for model_type mlp, resnet, diffusion",
          R"(, "activation": "relu")");
}

TEST_F(BlockStackTest, NamesWhatTheGraphDoesNotFit) {
  const auto refused = [&](const OnnxModel& block, const std::string& words) {
    ExpectError(Load(block, kTensors), StatusCode::kInvalidArgument, words);
  };
  OnnxModel two = Block();
  two.Input("t", {1});
  refused(two, "block.onnx: expected one input, the state, got 2");
  OnnxModel wide;
  wide.Input("z", {1, 3}).Floats("w", {2, 2}, {1, 2, 3, 4}).Floats("b", {1, 2}, {5, 6});
  wide.Node("Sigmoid", {"z"}, {"next"}).Output("next");
  refused(wide, "block.onnx: a block from 3 to 3 elements; config.json: state_dim 2");
  OnnxModel constant = Block();
  constant.graph().mutable_node(0)->set_input(0, "b");
  refused(constant, "block.onnx: the output does not depend on the state");
  OnnxModel unknown = Block();
  unknown.last_node().set_op_type("Sigmoidal");
  refused(unknown, "(\"Sigmoidal\")");
  // A shape that each layer would have for itself.
  OnnxModel shaped = Block();
  shaped.graph().mutable_output(0)->set_name("shaped");
  shaped.Node("Cast", {"b"}, {"of_b"}).Int("to", onnx::TensorProto::INT64);
  shaped.Node("Reshape", {"next", "of_b"}, {"shaped"});
  refused(shaped, "the shape, is made of weights that differ from layer to layer; it has to be");
  OnnxModel named = Block();
  named.Floats("output.weight", {2}, {1, 2});
  refused(named, "which is the name of the output layer outside the blocks; rename it");
}

// What an exporter took for one initialiser, as its numbers were equal in the layer it saw.
TEST_F(BlockStackTest, CopiesOfAnInitialiserAreInitialisersOfTheirOwn) {
  OnnxModel block;
  block.Input("z", {1, 2})
      .Floats("first", {1, 2}, {1, 1})
      .Node("Identity", {"first"}, {"second"})
      .Node("Mul", {"z", "first"}, {"y"})
      .Node("Tanh", {"y"}, {"h"})
      .Node("Mul", {"h", "second"}, {"next"})
      .Output("next");
  const NamedTensor first = Numbers("first", {3, 1, 2}), second = Numbers("second", {3, 1, 2});
  ExpectError(Load(block, {first}), StatusCode::kInvalidArgument,
              "tensor \"second\" of shape [3, 1, 2] is missing");
  const auto model = Load(block, {first, second});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(std::get<StackProgramSpec>(model->systems.at(0)).program->stacked.size(), 2u);
}

// A few numbers of each layer that become large matrices, of many layers.
TEST_F(BlockStackTest, MatricesAreBoundedThoughTheirNumbersAreFew) {
  OnnxModel block;
  block.Input("z", {1, 64})
      .Floats("s", {1}, {1})
      .Ints("shape", {2}, {64, 64})
      .Node("Expand", {"s", "shape"}, {"w"})
      .Node("MatMul", {"z", "w"}, {"y"})
      .Node("Tanh", {"y"}, {"next"})
      .Output("next");
  ASSERT_TRUE(testing::WriteModel(directory_.path(),
                                  R"({"input_dim": 64, "output_dim": 64, "state_dim": 64,
                                      "num_layers": 4096, "model_type": "stack"})",
                                  {Numbers("s", {4096, 1})})
                  .ok());
  std::ofstream(directory_.File("block.onnx"), std::ios::binary) << block.Bytes();
  ExpectError(ReadModel(directory_.path(), {.max_weights_bytes = 1 << 22}),
              StatusCode::kResourceExhausted, "block.onnx: the matrices of 4096 layers take");
}

TEST_F(BlockStackTest, WorkForEachLayerIsBoundedByItsInstructionsToo) {
  OnnxModel block = Block();
  block.Floats("s", {1}, {1});
  std::string last = "s";
  for (int i = 0; i < 400; ++i) {
    const std::string next = "c" + std::to_string(i);
    block.Node(i % 2 == 0 ? "Tanh" : "Sigmoid", {last}, {next});
    last = next;
  }
  block.graph().mutable_output(0)->set_name("scaled");
  block.Node("Mul", {"next", last}, {"scaled"});
  ASSERT_TRUE(testing::WriteModel(directory_.path(),
                                  R"({"input_dim": 2, "output_dim": 2, "state_dim": 2,
                                      "num_layers": 1048576, "model_type": "stack",
                                      "shared_weights": ["w", "b"]})",
                                  {Numbers("s", {1048576, 1})})
                  .ok());
  std::ofstream(directory_.File("block.onnx"), std::ios::binary) << block.Bytes();
  ExpectError(ReadModel(directory_.path(), {}), StatusCode::kResourceExhausted,
              "operations for each of 1048576 layers");
}

TEST_F(BlockStackTest, WantsItsFile) {
  ASSERT_TRUE(
      testing::WriteModel(directory_.path(), std::string("{") + kConfig + "}", kTensors).ok());
  ExpectError(ReadModel(directory_.path(), {}), StatusCode::kNotFound, "block.onnx");
}

TEST_F(BlockStackTest, NumbersThatAreNotFiniteAreRefused) {
  // The bias of a layer overflows once it is computed from the layer's own numbers.
  OnnxModel block = Block();
  block.graph().mutable_node(1)->set_input(1, "large");
  block.Floats("factor", {}, {3e38F}).Node("Mul", {"b", "factor"}, {"large"});
  std::vector<NamedTensor> tensors = kTensors;
  for (float& b : tensors[1].values) b = 1e30F;
  ExpectError(Load(block, tensors), StatusCode::kInvalidArgument,
              "the matrix or bias of a layer is not finite");
}

TEST_F(BlockStackTest, AllProblemsAreListedAtOnce) {
  Write(Block(), {Numbers("w", {2, 2, 2}), Numbers("c", {1})});
  const ModelFilesReport report = CheckModelFiles(directory_.path(), {});
  ASSERT_EQ(report.problems.size(), 3u);
  std::string all;
  for (const std::string& problem : report.problems) all += problem + "\n";
  for (const char* name : {"\"w\"", "\"b\"", "\"c\""}) EXPECT_NE(all.find(name), std::string::npos);
}

}  // namespace
}  // namespace deeppcr
