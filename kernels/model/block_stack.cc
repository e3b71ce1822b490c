// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/block_stack.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/base/shape.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/outer_layers.h"
#include "kernels/model/tensor_reader.h"
#include "kernels/program/builder.h"
#include "kernels/program/cost.h"
#include "kernels/program/describe.h"
#include "kernels/program/fingerprint.h"
#include "kernels/program/lower_onnx.h"
#include "kernels/program/onnx_graph.h"
#include "kernels/program/optimize.h"

namespace deeppcr {
namespace {

using program::OnnxGraph;
using program::OnnxTensor;
using program::ValueId;

// Of what is made for each layer at load, in double: some ten seconds.
constexpr double kMaxLayerProducts = 1e10;

bool IsShared(const ModelConfig& config, const std::string& name) {
  return std::ranges::find(config.shared_weights, name) != config.shared_weights.end();
}

std::string TensorNames(const OnnxGraph& graph) {
  std::string names = "input.{weight,bias}, output.{weight,bias}";
  for (const auto& [name, tensor] : graph.initializers) names += ", " + name;
  return names;
}

// A name that is in config.json, and of an initialiser.
absl::Status CheckShared(const ModelConfig& config, const OnnxGraph& graph) {
  for (const std::string& name : config.shared_weights) {
    if (!graph.initializers.contains(name))
      return InvalidArgument("config.json: shared_weights: ", kBlockFile, " has no initialiser ",
                             Quoted(name));
  }
  return absl::OkStatus();
}

// The layers' own numbers for an initialiser, if they have any.
absl::Status ReadStacked(TensorReader& reader, const std::string& name, const OnnxTensor& tensor,
                         Model& model) {
  TensorReader::Shape shape = tensor.shape;
  shape.insert(shape.begin(), model.config.num_layers);
  const bool shared = IsShared(model.config, name);
  if (!reader.Has(name)) {
    // Integers are shapes and axes, and a scalar is mostly an exporter's constant.
    if (shared || tensor.type != program::OnnxType::kFloat || tensor.shape.empty())
      return absl::OkStatus();
    return reader.Refuse(InvalidArgument(
        "tensor ", Quoted(name), " of shape ", ShapeString(shape), " is missing; ", kBlockFile,
        " has an initialiser of this name. One that all layers share is named in config.json: "
        "\"shared_weights\": [",
        Quoted(name), "]"));
  }
  if (shared || tensor.type != program::OnnxType::kFloat)
    return reader.Refuse(InvalidArgument(
        "tensor ", Quoted(name), ": expected none, as ",
        shared ? "config.json names it in shared_weights" : "the initialiser is no float"));
  auto rows = std::make_shared<std::vector<float>>();
  DEEPPCR_RETURN_IF_ERROR(reader.Append(name, shape, *rows));
  if (rows->empty()) return absl::OkStatus();  // a problem that the reader keeps
  model.stack.weights[name] = std::move(rows);
  return absl::OkStatus();
}

absl::Status CheckOuterNames(const OnnxGraph& graph) {
  for (const std::string_view layer : {kInputLayer, kOutputLayer}) {
    for (const std::string_view part : {".weight", ".bias"}) {
      const std::string name = StrCat(layer, part);
      if (graph.initializers.contains(name))
        return InvalidArgument(kBlockFile, ": an initialiser is called ", Quoted(name),
                               ", which is the name of the ", layer,
                               " layer outside the blocks; rename it");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBlockSizes(const ModelConfig& config, const program::ProgramBuilder& builder,
                             ValueId next) {
  const int64_t state = builder.at(builder.program().state).size, output = builder.at(next).size;
  if (state != config.state_dim || output != config.state_dim)
    return InvalidArgument("a block from ", state, " to ", output,
                           " elements; config.json: state_dim ", config.state_dim);
  return absl::OkStatus();
}

absl::StatusOr<program::Program> CompileBlock(const Model& model, std::string* listing) {
  const OnnxGraph& graph = *model.stack.graph;
  if (graph.inputs.size() != 1)
    return InvalidArgument("expected one input, the state, got ", graph.inputs.size());
  program::ProgramBuilder builder;
  DEEPPCR_ASSIGN_OR_RETURN(
      const ValueId next,
      LowerOnnx(graph, {.state = graph.inputs[0].name, .stacked = model.stack.weights}, builder));
  DEEPPCR_RETURN_IF_ERROR(CheckBlockSizes(model.config, builder, next));
  DEEPPCR_ASSIGN_OR_RETURN(const program::Program written, builder.Finish(next));
  DEEPPCR_ASSIGN_OR_RETURN(program::Program optimized, program::Optimize(written));
  const double products = program::CostsOf(optimized).by_class[program::kOnTime];
  if (products * static_cast<double>(model.config.num_layers) > kMaxLayerProducts)
    return ResourceExhausted("what is computed from the weights alone takes ", products,
                             " products for each layer; ", kMaxLayerProducts,
                             " are allowed for all");
  if (listing != nullptr) *listing = Describe(optimized, &written);
  return optimized;
}

}  // namespace

absl::Status LoadBlockGraph(const std::string& directory, const ModelLimits& limits, Model& model) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(StrCat(directory, "/", kBlockFile),
                                                             limits.max_weights_bytes));
  absl::StatusOr<OnnxGraph> graph = program::ReadOnnxGraph(
      bytes, directory,
      {.max_external_bytes = limits.max_weights_bytes - static_cast<int64_t>(bytes.size())});
  DEEPPCR_RETURN_IF_ERROR(WithContext(graph.status(), kBlockFile));
  DEEPPCR_RETURN_IF_ERROR(CheckOuterNames(*graph));
  DEEPPCR_RETURN_IF_ERROR(CheckShared(model.config, *graph));
  model.stack.graph = std::make_shared<const OnnxGraph>(*std::move(graph));
  return absl::OkStatus();
}

absl::Status LoadStack(const Tensors& tensors, const ModelLimits& limits, Model& model) {
  const std::string names = TensorNames(*model.stack.graph);
  TensorReader reader(tensors, limits, names);
  DEEPPCR_RETURN_IF_ERROR(ReadInputLayer(reader, model, model.stack.encode));
  for (const auto& [name, tensor] : model.stack.graph->initializers)
    DEEPPCR_RETURN_IF_ERROR(ReadStacked(reader, name, tensor, model));
  DEEPPCR_RETURN_IF_ERROR(ReadOutputLayer(reader, model, model.stack.decode));
  return reader.CheckAllUsed();
}

absl::Status CompleteStack(const ModelLimits& limits, Model& model) {
  absl::StatusOr<program::Program> compiled = CompileBlock(model, limits.listing);
  DEEPPCR_RETURN_IF_ERROR(WithContext(compiled.status(), kBlockFile));
  DEEPPCR_ASSIGN_OR_RETURN(model.weights_sha256, program::Fingerprint(*compiled));
  model.stack.program = std::make_unique<const program::Program>(*std::move(compiled));
  model.stack.graph = nullptr;
  model.stack.weights.clear();
  model.systems = {StackProgramSpec{.num_steps = model.config.num_layers,
                                    .state_dim = model.config.state_dim,
                                    .program = model.stack.program.get(),
                                    .step_weights = program::StepWeights(*model.stack.program),
                                    .encode = model.stack.encode,
                                    .decode = model.stack.decode}};
  return absl::OkStatus();
}

}  // namespace deeppcr
