// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/diffusion.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/never_fits.h"
#include "kernels/base/shape.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/denoiser_program.h"
#include "kernels/model/denoiser_tensors.h"
#include "kernels/model/parameter_limits.h"
#include "kernels/model/parameter_model.h"
#include "kernels/model/reverse_process.h"
#include "kernels/model/step_table.h"
#include "kernels/model/tensor_reader.h"
#include "kernels/model/time_embedding.h"
#include "kernels/program/cost.h"
#include "kernels/program/denoiser_program.h"
#include "kernels/program/guidance.h"
#include "kernels/program/known_elements.h"
#include "kernels/program/optimize.h"
#include "kernels/program/sampler_step.h"

namespace deeppcr {
namespace {

constexpr std::string_view kTensorsFile = "model.safetensors";

// A layer of this shape over storage that does not move from now on.
DenseSpec DenseOver(int64_t rows, int64_t cols, const LayerStorage& layer) {
  return {.rows = rows, .cols = cols, .weight = layer.weight, .bias = layer.bias};
}

TimeMlp TimeMlpOver(const ModelConfig& config, const DiffusionStorage& storage) {
  const int64_t H = config.hidden_dim;
  return {.first = DenseOver(H, config.time_embedding_dim, storage.time_first),
          .second = DenseOver(H, H, storage.time_second)};
}

absl::Status ReadDecoder(TensorReader& reader, const ModelConfig& config,
                         DiffusionStorage& storage) {
  if (config.decoder_widths.empty() && !reader.Has("decoder.0.weight") &&
      !reader.Has("decoder.0.bias")) {
    if (config.output_dim == config.state_dim) return absl::OkStatus();
    return reader.Refuse(InvalidArgument(
        "tensor \"", reader.InFile("decoder.0.weight"), "\" of shape ",
        ShapeString(TensorReader::Shape{config.output_dim, config.state_dim}),
        " is missing; it may be left out, with its bias, only if output_dim equals state_dim "
        "(config.json: ",
        config.output_dim, " and ", config.state_dim, ")"));
  }
  std::vector<int64_t> widths = config.decoder_widths;
  widths.push_back(config.output_dim);
  storage.decoder_layers.resize(widths.size());
  int64_t cols = config.state_dim;
  for (size_t j = 0; j < widths.size(); ++j) {
    const std::string name = StrCat("decoder.", j);
    LayerStorage& layer = storage.decoder_layers[j];
    DEEPPCR_RETURN_IF_ERROR(reader.Append(name + ".weight", {widths[j], cols}, layer.weight));
    DEEPPCR_RETURN_IF_ERROR(reader.Append(name + ".bias", {widths[j]}, layer.bias));
    storage.decoder.push_back(DenseOver(widths[j], cols, layer));
    if (j + 1 < widths.size()) storage.decoder.back().activation = config.decoder_activation;
    cols = widths[j];
  }
  return absl::OkStatus();
}

DenoiserSpec DenoiserOver(const ModelConfig& config, const DiffusionStorage& storage) {
  const int64_t H = config.hidden_dim;
  const int64_t D = config.state_dim;
  DenoiserSpec denoiser{
      .kind = config.denoiser,
      .hidden_dim = H,
      .num_blocks = config.num_blocks,
      .activation = config.activation,
      .input = DenseOver(H, D, storage.input),
      .output = DenseOver(program::PredictionSize(D, storage.form), H, storage.output),
      .first_weight = storage.first.weight,
      .first_bias = storage.first.bias,
      .second_weight = storage.second.weight,
      .second_bias = storage.second.bias,
      .norm_weight = storage.norm.weight,
      .norm_bias = storage.norm.bias};
  denoiser.modulation = DenseOver(denoiser.modulation_dim(), H, storage.modulation);
  return denoiser;
}

// Specification of the system of these tables.
DiffusionSpec SpecOver(const Model& model, const StepTables& tables) {
  const ModelConfig& config = model.config;
  const DiffusionStorage& storage = model.diffusion;
  DiffusionSpec spec{.state_dim = config.state_dim,
                     .steps = tables.steps,
                     .clip_range = tables.clip_range,
                     .initial_scale = tables.initial_scale,
                     .form = tables.form,
                     .denoiser = DenoiserOver(config, storage),
                     .time_embedding = tables.time_embedding,
                     .num_classes = config.num_classes,
                     .class_embedding = storage.class_embedding.weight,
                     .decoder = storage.decoder};
  if (config.conditioning_dim > 0) {
    spec.condition = DenseOver(config.hidden_dim, config.conditioning_dim, storage.condition);
  }
  return spec;
}

absl::StatusOr<StepTables> ScheduledSteps(const Model& model, const SystemKey& key) {
  const ReverseProcessOptions options{
      .num_inference_steps = key.num_steps,
      .eta = model.config.eta,
      .first_step = key.first_step,
      .mu = model.config.mu,
      .use_clipped_model_output = model.config.use_clipped_model_output,
      .diffusers_compatible = model.config.diffusers_compatible};
  DEEPPCR_ASSIGN_OR_RETURN(ReverseProcess process, BuildReverseProcess(model.scheduler, options));
  return StepTables{.steps = std::move(process.steps),
                    .clip_range = process.clip_range,
                    .initial_scale = static_cast<float>(process.initial_scale),
                    .form = process.form};
}

// The rows of the model's step table.
absl::StatusOr<StepTables> RowsOf(StepTables table, int64_t first_step) {
  if (first_step == 0) return table;
  table.initial_scale = 1.0F;
  DEEPPCR_RETURN_IF_ERROR(LeaveOut(first_step, &table.steps));
  return table;
}

// Tables without the time embedding, of a key that CheckKey knows.
absl::StatusOr<StepTables> ReverseStepsOf(const Model& model, const SystemKey& key,
                                          const CancelToken* token) {
  absl::StatusOr<StepTables> tables = model.diffusion.step_table.has_value()
                                          ? RowsOf(*model.diffusion.step_table, key.first_step)
                                          : ScheduledSteps(model, key);
  if (tables.ok() && model.diffusion.program != nullptr)
    DEEPPCR_RETURN_IF_ERROR(CheckLookups(model, tables->steps, token));
  return tables;
}

// The largest number of steps that a request may choose: that of the step table, if there is one.
int64_t MostSteps(const Model& model, const ModelLimits& limits, int64_t bytes_per_step) {
  if (model.diffusion.step_table.has_value()) return std::ssize(model.diffusion.step_table->steps);
  return std::min({MostInferenceSteps(model.scheduler),
                   model.config.denoiser_program ? MaxProgramStepsOnDemand(model)
                                                 : MaxStepsOnDemand(model.config),
                   limits.max_weights_bytes / bytes_per_step});
}

// What a system on demand has for itself.
struct VariedStorage {
  StepTables tables;
  program::Program program;  // of a system whose program is not the model's
};

absl::Status CheckKey(const Model& model, const SystemKey& key) {
  if (model.max_num_steps == 0)
    return InvalidArgument("num_inference_steps: only those of config.json, got ", key.num_steps);
  const bool planned =
      std::ranges::count(model.config.num_inference_steps, key.num_steps) > 0 && !key.plain();
  if (key.num_steps < 1 || (key.num_steps > model.max_num_steps && !planned))
    return InvalidArgument("num_inference_steps: expected an integer in [1, ", model.max_num_steps,
                           "], got ", key.num_steps);
  if (model.diffusion.step_table.has_value() && key.num_steps != model.max_num_steps)
    return InvalidArgument("num_inference_steps: expected ", model.max_num_steps, ", the rows of ",
                           kStepTableFile, ", got ", key.num_steps);
  if (key.first_step < 0 || key.first_step >= key.num_steps)
    return InvalidArgument("first_step: expected an integer in [0, ", key.num_steps - 1, "], got ",
                           key.first_step);
  if (key.known && !model.diffusion.step_table.has_value() && ScalesStates(model.scheduler))
    return InvalidArgument("known_elements: expected none with ",
                           NameOf(model.scheduler.scheduler_class),
                           ", whose network sees scaled samples");
  if (!key.guided) return absl::OkStatus();
  const ModelConfig& config = model.config;
  if (config.num_classes == 0 && config.conditioning_dim == 0)
    return InvalidArgument("guidance_scale: the model takes no condition");
  if (config.num_classes > 0 && !config.null_class.has_value())
    return InvalidArgument("guidance_scale: the model's config.json has no null_class");
  return absl::OkStatus();
}

// The system whose step is varied as the key says.
absl::StatusOr<OwnedSystem> Varied(const Model& model, const SystemKey& key,
                                   DiffusionProgramSpec spec,
                                   std::shared_ptr<VariedStorage> storage) {
  program::Program program = *spec.program;
  if (key.guided) {
    absl::StatusOr<program::Program> guided =
        program::WithGuidance(program, model.config.null_class.value_or(0), program::kNoLimits);
    DEEPPCR_RETURN_IF_ERROR(WithContext(guided.status(), "guidance_scale"));
    program = *std::move(guided);
  }
  if (key.known) {
    const bool unread = program.condition == program::kNoValue;
    DEEPPCR_ASSIGN_OR_RETURN(
        program, program::WithKnownElements(program, unread ? model.config.conditioning_dim : 0,
                                            program::kNoLimits));
  }
  if (key.guided || key.known) {
    storage->program = std::move(program);
    spec.program = &storage->program;
    spec.step_weights = program::StepWeights(storage->program);
    spec.condition_dim = storage->program.at(storage->program.condition).size;
  }
  return OwnedSystem{.storage = std::move(storage), .spec = spec};
}

}  // namespace

absl::Status LoadDiffusionScheduler(const ModelLimits& limits, Model& model) {
  const ModelConfig& config = model.config;
  const bool program = config.denoiser_program;
  if (model.diffusion.step_table.has_value())
    DEEPPCR_RETURN_IF_ERROR(CheckStepTable(*model.diffusion.step_table, config));
  int64_t steps = 0;
  for (const int64_t count : config.num_inference_steps) {
    DEEPPCR_RETURN_IF_ERROR(limits.Take(count * static_cast<int64_t>(sizeof(ReverseStep))));
    DEEPPCR_ASSIGN_OR_RETURN(StepTables tables, ReverseStepsOf(model, count, limits.token));
    steps += static_cast<int64_t>(tables.steps.size());
    model.diffusion.tables.push_back(std::move(tables));
  }
  if (program) DEEPPCR_RETURN_IF_ERROR(CheckTimeCost(model, steps));
  const int64_t bytes_per_step =
      (program ? 1 : config.hidden_dim) * static_cast<int64_t>(sizeof(double));
  model.max_num_steps = MostSteps(model, limits, bytes_per_step);
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t bytes, CheckedProduct({steps, bytes_per_step}));
  if (bytes <= limits.max_weights_bytes) return limits.Take(bytes);
  return NeverFits("num_inference_steps: the time embeddings of ", steps, " steps take ", bytes,
                   " bytes; ", limits.max_weights_bytes, " are allowed");
}

namespace {

// The decoder's layers, with the names of their tensors in the file.
std::vector<NamedLayer> DecoderOf(const Model& model) {
  std::vector<NamedLayer> layers;
  for (const DenseSpec& layer : model.diffusion.decoder)
    layers.push_back({StrCat(model.config.tensor_prefix, "decoder.", layers.size()), layer});
  return layers;
}

// What a named denoiser is differentiated by.
absl::StatusOr<ParameterModel> DenoiserParametersOf(const Model& model) {
  const TimeMlp time_mlp = TimeMlpOver(model.config, model.diffusion);
  ParameterModel made;
  std::vector<program::TensorPlace> places;
  for (DenoiserTensor& tensor : DenoiserTensorsIn(model.config, model.diffusion)) {
    places.push_back({tensor.numbers, static_cast<int32_t>(made.tensors.size())});
    made.tensors.push_back(
        {StrCat(model.config.tensor_prefix, tensor.name), std::move(tensor.shape)});
  }
  DEEPPCR_ASSIGN_OR_RETURN(
      made.step, program::ParameterProgramOfDenoiser(
                     SpecOver(model, {.form = model.diffusion.form}),
                     {.places = places,
                      .time_first = time_mlp.first,
                      .time_second = time_mlp.second,
                      .frequencies = EmbeddingFrequencies(model.config.time_embedding_dim)},
                     kParameterLimits));
  return made;
}

// Adds the decoder to the parameters of the denoiser.
void AddDecoder(Model& model) {
  const std::vector<NamedLayer> layers = DecoderOf(model);
  if (model.parameters == nullptr) return;
  if (!layers.empty()) {
    absl::StatusOr<program::Program> decode = AddLayers(layers, model.parameters->tensors);
    if (!decode.ok()) return SetParameters(decode.status(), kTensorsFile, model);
    model.parameters->decode = *std::move(decode);
  }
  CompleteParameters(model);
}

}  // namespace

absl::Status LoadDiffusion(const Tensors& tensors, const ModelLimits& limits, Model& model) {
  DiffusionStorage& storage = model.diffusion;
  if (storage.tables.size() != model.config.num_inference_steps.size()) {
    return Internal("the tensors of a diffusion model are loaded before its scheduler");
  }
  const bool program = model.config.denoiser_program;
  const std::string names =
      program ? "decoder.<j>.weight, decoder.<j>.bias" : DenoiserTensorNames(model.config);
  TensorReader reader(tensors, limits, names, model.config.tensor_prefix);
  if (!program) DEEPPCR_RETURN_IF_ERROR(ReadDenoiserTensors(reader, model.config, storage));
  DEEPPCR_RETURN_IF_ERROR(ReadDecoder(reader, model.config, storage));
  DEEPPCR_RETURN_IF_ERROR(reader.CheckAllUsed());
  if (limits.parameters) {
    if (!program) SetParameters(DenoiserParametersOf(model), kTensorsFile, model);
    AddDecoder(model);
  }
  if (program) {
    for (const StepTables& tables : storage.tables)
      model.systems.emplace_back(ProgramSpecOver(model, tables));
    return absl::OkStatus();
  }
  const TimeMlp time_mlp = TimeMlpOver(model.config, storage);
  for (StepTables& tables : storage.tables) {
    DEEPPCR_ASSIGN_OR_RETURN(tables.time_embedding,
                             EmbedTimesteps(time_mlp, tables.steps, limits.token));
    model.systems.emplace_back(SpecOver(model, tables));
  }
  return absl::OkStatus();
}

absl::StatusOr<OwnedSystem> DiffusionSystemOf(const Model& model, const SystemKey& key,
                                              const ModelLimits& limits) {
  DEEPPCR_RETURN_IF_ERROR(CheckKey(model, key));
  auto storage = std::make_shared<VariedStorage>();
  StepTables& tables = storage->tables;
  DEEPPCR_ASSIGN_OR_RETURN(tables, ReverseStepsOf(model, key, limits.token));
  if (model.config.denoiser_program) {
    const DiffusionProgramSpec spec = ProgramSpecOver(model, tables);
    return Varied(model, key, spec, std::move(storage));
  }
  DEEPPCR_ASSIGN_OR_RETURN(
      tables.time_embedding,
      EmbedTimesteps(TimeMlpOver(model.config, model.diffusion), tables.steps, limits.token));
  const DiffusionSpec spec = SpecOver(model, tables);
  if (!key.guided && !key.known) return OwnedSystem{.storage = std::move(storage), .spec = spec};
  DEEPPCR_ASSIGN_OR_RETURN(const program::Program written,
                           program::ProgramOfDenoiser(spec, program::kNoLimits));
  DEEPPCR_ASSIGN_OR_RETURN(storage->program, program::Optimize(written, program::kNoLimits));
  const DiffusionProgramSpec with_program = program::WithProgram(spec, storage->program);
  return Varied(model, key, with_program, std::move(storage));
}

}  // namespace deeppcr
