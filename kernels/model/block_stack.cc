// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/block_stack.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/base/shape.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/outer_layers.h"
#include "kernels/model/parameter_model.h"
#include "kernels/model/tensor_reader.h"
#include "kernels/program/builder.h"
#include "kernels/program/cost.h"
#include "kernels/program/dense_stack.h"
#include "kernels/program/describe.h"
#include "kernels/program/evaluate.h"
#include "kernels/program/fingerprint.h"
#include "kernels/program/lower_onnx.h"
#include "kernels/program/onnx_graph.h"
#include "kernels/program/optimize.h"

namespace deeppcr {
namespace {

using program::OnnxGraph;
using program::OnnxTensor;
using program::ValueId;

// Work for each layer at load, in double: some ten seconds in all. An instruction takes as long as
// so many multiply-adds, however small it is.
constexpr double kMaxLayerWork = 1e10, kWorkOfInstruction = 64;

double WorkOfALayer(const program::Program& program) {
  double work = program::CostsOf(program).by_class[program::kOnTime];
  for (const program::StackedConstant& stacked : program.stacked)
    work += static_cast<double>(program.at(stacked.value).size);
  for (const program::Instruction& instruction : program.instructions) {
    const program::Value& value = program.at(instruction.result);
    if (value.depends == program::kOnTime)
      work += kWorkOfInstruction + static_cast<double>(value.size);
  }
  return work;
}

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
        Quoted(name),
        "]; parameters keep their names where torch.onnx.export is told "
        "do_constant_folding=False"));
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

// A scalar that no tensor is given for may be a parameter whose tensor was forgotten.
void NoteSharedScalars(const Model& model, const ModelLimits& limits) {
  if (limits.notes == nullptr) return;
  std::string names;
  for (const auto& [name, tensor] : model.stack.graph->initializers) {
    if (tensor.type != program::OnnxType::kFloat || !tensor.shape.empty() ||
        IsShared(model.config, name) || model.stack.weights.contains(name))
      continue;
    names += StrCat(names.empty() ? "" : ", ", Quoted(name));
  }
  if (names.empty()) return;
  limits.notes->push_back(StrCat(
      kBlockFile, ": the same for all layers, as model.safetensors has no tensors of their names: ",
      names, "; name them in \"shared_weights\" of config.json if that is meant"));
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

// The block as it is written, with these initialisers as parameters.
absl::StatusOr<program::Program> WriteBlock(const Model& model,
                                            const std::map<std::string, int32_t>& parameters,
                                            program::ProgramBuilder& builder) {
  const OnnxGraph& graph = *model.stack.graph;
  if (graph.inputs.size() != 1)
    return InvalidArgument("expected one input, the state, got ", graph.inputs.size());
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId next, LowerOnnx(graph,
                                                         {.state = graph.inputs[0].name,
                                                          .stacked = model.stack.weights,
                                                          .parameters = parameters},
                                                         builder));
  DEEPPCR_RETURN_IF_ERROR(CheckBlockSizes(model.config, builder, next));
  return builder.Finish(next);
}

// What the stack is differentiated by. The graph and the layers' weights are still there.
absl::StatusOr<ParameterModel> StackParametersOf(const Model& model) {
  std::vector<std::string> scalars = model.config.shared_weights;
  for (const auto& [name, rows] : model.stack.weights) scalars.push_back(name);
  ParameterModel made = {.tensors = ParametersOf(*model.stack.graph, scalars)};
  std::map<std::string, int32_t> parameters;
  for (size_t i = 0; i < made.tensors.size(); ++i) {
    ParameterTensor& tensor = made.tensors[i];
    parameters[tensor.name] = static_cast<int32_t>(i);
    if (model.stack.weights.contains(tensor.name))
      tensor.shape.insert(tensor.shape.begin(), model.config.num_layers);
  }
  program::ProgramBuilder builder(kParameterLimits);
  DEEPPCR_ASSIGN_OR_RETURN(made.step, WriteBlock(model, parameters, builder));
  const auto layer = [](std::string_view name, const DenseSpec& spec) {
    NamedLayer named = {std::string(name), spec};
    named.layer.activation = Activation::kIdentity;  // of the input layer, whose sum has cotangents
    return named;
  };
  if (model.stack.encode.rows > 0) {
    DEEPPCR_ASSIGN_OR_RETURN(made.encode,
                             AddLayers({{layer(kInputLayer, model.stack.encode)}}, made.tensors));
  }
  if (model.stack.decode.rows > 0) {
    DEEPPCR_ASSIGN_OR_RETURN(made.decode,
                             AddLayers({{layer(kOutputLayer, model.stack.decode)}}, made.tensors));
  }
  return made;
}

absl::StatusOr<program::Program> CompileBlock(const Model& model, std::string* listing) {
  const OnnxGraph& graph = *model.stack.graph;
  program::ProgramBuilder builder;
  DEEPPCR_ASSIGN_OR_RETURN(const program::Program written, WriteBlock(model, {}, builder));
  DEEPPCR_ASSIGN_OR_RETURN(program::Program optimized, program::Optimize(written));
  const double work = WorkOfALayer(optimized);
  if (work * static_cast<double>(model.config.num_layers) > kMaxLayerWork)
    return ResourceExhausted("what is computed from the weights alone takes ", work,
                             " operations for each of ", model.config.num_layers, " layers; ",
                             kMaxLayerWork, " are allowed for all");
  if (listing != nullptr) {
    *listing = Describe(optimized, &written);
    for (const auto& [name, tensor] : graph.initializers) {
      if (tensor.type != program::OnnxType::kFloat || model.stack.weights.contains(name)) continue;
      *listing +=
          StrCat("the same for all layers: ", Quoted(name), " ", ShapeString(tensor.shape), "\n");
    }
  }
  return optimized;
}

}  // namespace

absl::Status LoadBlockGraph(const std::string& directory, const ModelLimits& limits, Model& model) {
  MemoryShare of_file = limits.Another();
  DEEPPCR_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(StrCat(directory, "/", kBlockFile),
                                                             limits.max_weights_bytes, &of_file));
  absl::StatusOr<OnnxGraph> graph = program::ReadOnnxGraph(
      bytes, directory,
      {.max_external_bytes = limits.max_weights_bytes - static_cast<int64_t>(bytes.size()),
       .memory = limits.memory});
  DEEPPCR_RETURN_IF_ERROR(WithContext(graph.status(), kBlockFile));
  model.stack.graph = std::make_shared<const OnnxGraph>(*std::move(graph));
  return absl::OkStatus();
}

namespace {

// An exporter takes initialisers of equal numbers for one, and writes the others as its copies:
// they are initialisers of their own again, as layers differ where this one did not. A scalar is
// one only where it has a tensor.
std::shared_ptr<const OnnxGraph> WithoutCopies(const OnnxGraph& graph, const Tensors& tensors) {
  auto result = std::make_shared<OnnxGraph>(graph);
  std::erase_if(result->nodes, [&](const program::OnnxNode& node) {
    if (node.op_type != "Identity" || node.inputs.size() != 1 || node.outputs.size() != 1)
      return false;
    const auto from = result->initializers.find(node.inputs[0]);
    const std::string& to = node.outputs[0];
    const bool is_output = std::ranges::find(result->outputs, to) != result->outputs.end();
    if (from == result->initializers.end() || is_output) return false;
    if (from->second.shape.empty() && tensors.Find(to) == nullptr) return false;
    return result->initializers.emplace(to, OnnxTensor(from->second)).second;
  });
  return result;
}

}  // namespace

absl::Status LoadStack(const Tensors& tensors, const ModelLimits& limits, Model& model) {
  model.stack.graph = WithoutCopies(*model.stack.graph, tensors);
  DEEPPCR_RETURN_IF_ERROR(CheckOuterNames(*model.stack.graph));
  DEEPPCR_RETURN_IF_ERROR(CheckShared(model.config, *model.stack.graph));
  const std::string names = TensorNames(*model.stack.graph);
  TensorReader reader(tensors, limits, names);
  DEEPPCR_RETURN_IF_ERROR(ReadInputLayer(reader, model, model.stack.encode));
  for (const auto& [name, tensor] : model.stack.graph->initializers)
    DEEPPCR_RETURN_IF_ERROR(ReadStacked(reader, name, tensor, model));
  NoteSharedScalars(model, limits);
  DEEPPCR_RETURN_IF_ERROR(ReadOutputLayer(reader, model, model.stack.decode));
  return reader.CheckAllUsed();
}

namespace {

// The specification of a block that is a layer of a named stack: hand-written kernels exist for
// these, on every backend. Its numbers go to the storage of a dense stack.
absl::StatusOr<DenseStackSpec> DenseStackOver(const program::DenseStackForm& form,
                                              const program::Program& program,
                                              const ModelLimits& limits, Model& model) {
  const int64_t L = model.config.num_layers, D = model.config.state_dim;
  // A matrix may be computed from far fewer numbers than it has.
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t bytes, CheckedProduct({L, D, D + 1, sizeof(float)}));
  if (bytes > limits.max_weights_bytes)
    return ResourceExhausted(kBlockFile, ": the matrices of ", L, " layers take ", bytes,
                             " bytes; ", limits.max_weights_bytes, " are allowed");
  DEEPPCR_RETURN_IF_ERROR(limits.Take(bytes));
  program::Evaluation evaluation(program);
  model.weights.reserve(static_cast<size_t>(L * D * D));
  for (int64_t l = 0; l < L; ++l) {
    if (Fired(limits.token)) return absl::CancelledError("stopped while layers were computed");
    evaluation.Run({.step = l}, {}, program::kOnTime);
    const auto matrix = evaluation.at(form.matrix);
    for (int64_t i = 0; i < D; ++i)
      for (int64_t k = 0; k < D; ++k)
        model.weights.push_back(
            static_cast<float>(matrix[form.transposed ? k * D + i : i * D + k]));
    if (form.bias == program::kNoValue) continue;
    const auto bias = evaluation.at(form.bias);
    model.biases.insert(model.biases.end(), bias.begin(), bias.end());
  }
  for (const std::vector<float>* numbers : {&model.weights, &model.biases}) {
    if (!std::ranges::all_of(*numbers, [](float x) { return std::isfinite(x); }))
      return InvalidArgument(kBlockFile, ": the matrix or bias of a layer is not finite");
  }
  return DenseStackSpec{.num_steps = L,
                        .state_dim = D,
                        .residual = form.residual,
                        .residual_scale = form.scale,
                        .activation = form.activation,
                        .weights = model.weights,
                        .biases = model.biases,
                        .encode = model.stack.encode,
                        .decode = model.stack.decode};
}

}  // namespace

absl::Status CompleteStack(const ModelLimits& limits, Model& model) {
  absl::StatusOr<program::Program> compiled = CompileBlock(model, limits.listing);
  DEEPPCR_RETURN_IF_ERROR(WithContext(compiled.status(), kBlockFile));
  DEEPPCR_ASSIGN_OR_RETURN(model.weights_sha256, program::Fingerprint(*compiled));
  if (limits.parameters) {
    SetParameters(StackParametersOf(model), kBlockFile, model);
    CompleteParameters(model);
  }
  model.stack.graph = nullptr;
  model.stack.weights.clear();
  if (const auto form = program::DenseStackFormOf(*compiled); form.has_value()) {
    DEEPPCR_ASSIGN_OR_RETURN(const DenseStackSpec spec,
                             DenseStackOver(*form, *compiled, limits, model));
    model.systems = {spec};
    if (limits.listing != nullptr) *limits.listing += "served by the kernels of dense stacks\n";
    return absl::OkStatus();
  }
  model.stack.program = std::make_unique<const program::Program>(*std::move(compiled));
  model.systems = {StackProgramSpec{.num_steps = model.config.num_layers,
                                    .state_dim = model.config.state_dim,
                                    .program = model.stack.program.get(),
                                    .step_weights = program::StepWeights(*model.stack.program),
                                    .encode = model.stack.encode,
                                    .decode = model.stack.decode}};
  return absl::OkStatus();
}

}  // namespace deeppcr
