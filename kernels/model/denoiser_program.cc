// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/denoiser_program.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/base/never_fits.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/parameter_model.h"
#include "kernels/program/cost.h"
#include "kernels/program/describe.h"
#include "kernels/program/fingerprint.h"
#include "kernels/program/lookups.h"
#include "kernels/program/lower_onnx.h"
#include "kernels/program/onnx_graph.h"
#include "kernels/program/optimize.h"
#include "kernels/program/sampler_step.h"

namespace deeppcr {
namespace {

using program::OnnxGraph;
using program::OnnxInputs;
using program::ProgramBuilder;
using program::ValueId;

// Of the tables of all steps, made in double at load: some ten seconds.
constexpr double kMaxTableProducts = 1e10;
constexpr double kMaxProgramProducts = 4e9;

std::string InputNames(const OnnxGraph& graph) {
  return StrJoin(graph.inputs, ", ", [](const auto& input) { return Quoted(input.name); });
}

// The inputs as config.json names them, else in the order state, time, condition.
absl::StatusOr<OnnxInputs> InputsOf(const ModelConfig& config, const OnnxGraph& graph) {
  const bool conditional = config.num_classes > 0 || config.conditioning_dim > 0;
  DenoiserInputs names = config.denoiser_inputs;
  if (names == DenoiserInputs{}) {
    const size_t most = conditional ? 3 : 2;
    if (graph.inputs.empty() || graph.inputs.size() > most)
      return InvalidArgument(
          "expected ", conditional ? "the inputs state, time, condition" : "the inputs state, time",
          " in this order, got ", InputNames(graph),
          "; name them in config.json: \"denoiser_inputs\": {\"state\": .., \"time\": ..",
          conditional ? ", \"condition\": ..}" : "}");
    names.state = graph.inputs[0].name;
    if (graph.inputs.size() > 1) names.time = graph.inputs[1].name;
    if (graph.inputs.size() > 2) names.condition = graph.inputs[2].name;
  }
  if (!conditional && !names.condition.empty())
    return InvalidArgument("the input ", Quoted(names.condition),
                           " is a condition, but config.json has neither conditioning_dim nor "
                           "num_classes");
  if (conditional && names.condition.empty())
    return InvalidArgument("no input is the condition that config.json speaks of; there are ",
                           InputNames(graph));
  OnnxInputs inputs = {.state = names.state, .time = names.time};
  (config.num_classes > 0 ? inputs.label : inputs.condition) = names.condition;
  return inputs;
}

bool HasIntegerTime(const ModelConfig& config, const OnnxGraph& graph) {
  const absl::StatusOr<OnnxInputs> inputs = InputsOf(config, graph);
  return inputs.ok() && std::ranges::any_of(graph.inputs, [&](const program::OnnxInput& input) {
           return input.name == inputs->time && input.type == program::OnnxType::kInteger;
         });
}

absl::Status CheckIntegerTimes(std::span<const ReverseStep> steps) {
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].timestep == std::trunc(steps[i].timestep)) continue;
    return InvalidArgument("expected integer times, as the time input is an integer, got ",
                           steps[i].timestep, " at step ", i,
                           "; export the network with a floating-point time");
  }
  return absl::OkStatus();
}

// `z` is the state without a sampler's memory.
absl::Status CheckSizes(const ModelConfig& config, const SamplerForm& form,
                        const ProgramBuilder& builder, ValueId z, ValueId prediction) {
  const program::Program& made = builder.program();
  const auto size = [&](ValueId id) { return id == program::kNoValue ? 0 : builder.at(id).size; };
  if (size(z) != config.state_dim)
    return InvalidArgument("the state has ", size(z), " elements; config.json: state_dim ",
                           config.state_dim);
  if (const int64_t expected = program::PredictionSize(config.state_dim, form);
      size(prediction) != expected)
    return InvalidArgument("the output has ", size(prediction), " elements for a state of ",
                           config.state_dim, ", expected ", expected,
                           " (a variance follows the prediction with the variance_type learned or "
                           "learned_range of DDPMScheduler, and only with these)");
  if ((builder.at(prediction).depends & program::kOnState) == 0)
    return InvalidArgument("the output does not depend on the state");
  if (size(made.condition) != config.conditioning_dim)
    return InvalidArgument("the condition has ", size(made.condition),
                           " elements; config.json: conditioning_dim ", config.conditioning_dim);
  return absl::OkStatus();
}

double CostOf(const program::Program& program, uint8_t depends) {
  return program::CostsOf(program).by_class[program::ClassOf(depends)];
}

// The sampler's step around a graph, as it is written.
absl::StatusOr<program::Program> Write(const ModelConfig& config, const SamplerForm& form,
                                       const OnnxGraph& graph, const OnnxInputs& inputs,
                                       ProgramBuilder& builder) {
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId prediction, LowerOnnx(graph, inputs, builder));
  DEEPPCR_ASSIGN_OR_RETURN(const ValueId z, program::SamplerStateOf(builder, form.carries));
  DEEPPCR_RETURN_IF_ERROR(CheckSizes(config, form, builder, z, prediction));
  return program::FinishSampler(builder, z, prediction, form);
}

absl::StatusOr<OnnxInputs> InputsOf(const ModelConfig& config, const SamplerForm& form,
                                    const OnnxGraph& graph) {
  DEEPPCR_ASSIGN_OR_RETURN(OnnxInputs inputs, InputsOf(config, graph));
  inputs.carries = form.carries;
  return inputs;
}

// The same with parameters.
absl::StatusOr<ParameterModel> ParameterModelOf(const ModelConfig& config, const SamplerForm& form,
                                                const OnnxGraph& graph) {
  DEEPPCR_ASSIGN_OR_RETURN(OnnxInputs inputs, InputsOf(config, form, graph));
  ParameterModel made = {.tensors = ParametersOf(graph)};
  for (size_t i = 0; i < made.tensors.size(); ++i)
    inputs.parameters[made.tensors[i].name] = static_cast<int32_t>(i);
  ProgramBuilder builder(kParameterLimits);
  DEEPPCR_ASSIGN_OR_RETURN(made.step, Write(config, form, graph, inputs, builder));
  return made;
}

absl::StatusOr<program::Program> Compile(const ModelConfig& config, const SamplerForm& form,
                                         const OnnxGraph& graph, std::string* listing) {
  DEEPPCR_ASSIGN_OR_RETURN(const OnnxInputs inputs, InputsOf(config, form, graph));
  ProgramBuilder builder;
  DEEPPCR_ASSIGN_OR_RETURN(const program::Program written,
                           Write(config, form, graph, inputs, builder));
  DEEPPCR_ASSIGN_OR_RETURN(program::Program optimized, program::Optimize(written));
  if (listing != nullptr) *listing = Describe(optimized, &written);
  return optimized;
}

}  // namespace

absl::Status LoadDenoiserProgram(const std::string& directory, const ModelLimits& limits,
                                 Model& model) {
  if (!model.config.denoiser_program) return absl::OkStatus();
  MemoryShare of_file = limits.Another();
  DEEPPCR_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(StrCat(directory, "/", kDenoiserFile),
                                                             limits.max_weights_bytes, &of_file));
  const absl::StatusOr<OnnxGraph> graph = program::ReadOnnxGraph(
      bytes, directory,
      {.max_external_bytes = limits.max_weights_bytes - static_cast<int64_t>(bytes.size()),
       .memory = limits.memory});
  DEEPPCR_RETURN_IF_ERROR(WithContext(graph.status(), kDenoiserFile));
  absl::StatusOr<program::Program> compiled =
      Compile(model.config, model.diffusion.form, *graph, limits.listing);
  DEEPPCR_RETURN_IF_ERROR(WithContext(compiled.status(), kDenoiserFile));
  DEEPPCR_ASSIGN_OR_RETURN(model.weights_sha256, program::Fingerprint(*compiled));
  model.diffusion.integer_time = HasIntegerTime(model.config, *graph);
  model.diffusion.program = std::make_unique<const program::Program>(*std::move(compiled));
  if (limits.parameters)
    SetParameters(ParameterModelOf(model.config, model.diffusion.form, *graph), kDenoiserFile,
                  model);
  return absl::OkStatus();
}

DiffusionProgramSpec ProgramSpecOver(const Model& model, const StepTables& tables) {
  const program::Program& program = *model.diffusion.program;
  return {.state_dim = model.config.state_dim,
          .steps = tables.steps,
          .clip_range = tables.clip_range,
          .initial_scale = tables.initial_scale,
          .form = tables.form,
          .program = &program,
          .step_weights = program::StepWeights(program),
          .condition_dim = model.config.conditioning_dim,
          .num_classes = model.config.num_classes,
          .decoder = model.diffusion.decoder};
}

absl::Status CheckTimeCost(const Model& model, int64_t steps) {
  const double products =
      CostOf(*model.diffusion.program, program::kOnTime) * static_cast<double>(steps);
  if (products <= kMaxTableProducts) return absl::OkStatus();
  return NeverFits("num_inference_steps: what ", kDenoiserFile, " computes from the time takes ",
                   products, " products for ", steps, " steps; ", kMaxTableProducts,
                   " are allowed");
}

absl::Status CheckLookups(const Model& model, std::span<const ReverseStep> steps,
                          const CancelToken* token) {
  if (model.diffusion.integer_time)
    DEEPPCR_RETURN_IF_ERROR(WithContext(CheckIntegerTimes(steps), kDenoiserFile));
  std::vector<double> times;
  for (const ReverseStep& step : steps) times.push_back(step.timestep);
  return WithContext(
      program::CheckLookups(*model.diffusion.program, model.config.num_classes, times, token),
      kDenoiserFile);
}

int64_t MaxProgramStepsOnDemand(const Model& model) {
  const program::Program& program = *model.diffusion.program;
  const double per_step =
      CostOf(program, program::kOnTime) + CostOf(program, program::kOnTimeAndCondition);
  return static_cast<int64_t>(kMaxProgramProducts / std::max(1.0, per_step));
}

}  // namespace deeppcr
