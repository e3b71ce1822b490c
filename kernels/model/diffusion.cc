// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/diffusion.h"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/parameter_limits.h"
#include "kernels/model/reverse_process.h"
#include "kernels/model/tensor_reader.h"
#include "kernels/model/time_embedding.h"

namespace deeppcr {
namespace {

constexpr std::string_view kCommonNames =
    "input_proj.{weight,bias}, time_embed.mlp.{0,2}.{weight,bias}, class_embed.weight if "
    "num_classes > 0, cond_embed.{weight,bias} if conditioning_dim > 0, "
    "final_layer.linear.{weight,bias}, decoder.<0 .. number of decoder_widths>.{weight,bias}, ";
constexpr std::string_view kResidualNames =
    "res_blocks.<0 .. num_blocks - 1>.{linear,modulation}.{weight,bias}";
constexpr std::string_view kAdaLnNames =
    "res_blocks.<0 .. num_blocks - 1>.{in_ln,mlp.0,mlp.2,adaLN_modulation.1}.{weight,bias}, "
    "final_layer.adaLN_modulation.1.{weight,bias}";

// Appends <prefix>.weight [rows, cols] and <prefix>.bias [rows].
absl::Status AppendDense(TensorReader& reader, std::string_view prefix, int64_t rows, int64_t cols,
                         std::vector<float>& weight, std::vector<float>& bias) {
  DEEPPCR_RETURN_IF_ERROR(reader.Append(StrCat(prefix, ".weight"), {rows, cols}, weight));
  return reader.Append(StrCat(prefix, ".bias"), {rows}, bias);
}

absl::Status ReadTimeMlp(TensorReader& reader, const ModelConfig& config, TimeMlp& mlp) {
  const int64_t H = config.hidden_dim;
  const int64_t E = config.time_embedding_dim;
  mlp.hidden_dim = H;
  mlp.embedding_dim = E;
  DEEPPCR_RETURN_IF_ERROR(
      AppendDense(reader, "time_embed.mlp.0", H, E, mlp.first_weight, mlp.first_bias));
  return AppendDense(reader, "time_embed.mlp.2", H, H, mlp.second_weight, mlp.second_bias);
}

absl::Status ReadCondition(TensorReader& reader, const ModelConfig& config,
                           DiffusionStorage& storage) {
  const int64_t H = config.hidden_dim;
  if (config.num_classes > 0) {
    DEEPPCR_RETURN_IF_ERROR(
        reader.Append("class_embed.weight", {config.num_classes, H}, storage.class_embedding));
  }
  if (config.conditioning_dim == 0) return absl::OkStatus();
  return AppendDense(reader, "cond_embed", H, config.conditioning_dim, storage.condition_weight,
                     storage.condition_bias);
}

// The config alone must not decide how much is allocated.
void ReserveStack(const TensorReader& reader, int64_t elements, std::vector<float>& values) {
  values.reserve(static_cast<size_t>(std::min(elements, reader.TotalElements())));
}

absl::Status ReadResidualBlocks(TensorReader& reader, const ModelConfig& config,
                                DiffusionStorage& storage) {
  const int64_t H = config.hidden_dim;
  for (int64_t block = 0; block < config.num_blocks; ++block) {
    const std::string prefix = StrCat("res_blocks.", block);
    DEEPPCR_RETURN_IF_ERROR(
        AppendDense(reader, prefix + ".linear", H, H, storage.first_weight, storage.first_bias));
    DEEPPCR_RETURN_IF_ERROR(AppendDense(reader, prefix + ".modulation", H, H,
                                        storage.modulation_weight, storage.modulation_bias));
  }
  return absl::OkStatus();
}

absl::Status ReadAdaLnBlocks(TensorReader& reader, const ModelConfig& config,
                             DiffusionStorage& storage) {
  const int64_t H = config.hidden_dim;
  ReserveStack(reader, config.num_blocks * H * H, storage.first_weight);
  ReserveStack(reader, config.num_blocks * H * H, storage.second_weight);
  ReserveStack(reader, (3 * config.num_blocks + 2) * H * H, storage.modulation_weight);
  for (int64_t block = 0; block < config.num_blocks; ++block) {
    const std::string prefix = StrCat("res_blocks.", block);
    DEEPPCR_RETURN_IF_ERROR(reader.Append(prefix + ".in_ln.weight", {H}, storage.norm_weight));
    DEEPPCR_RETURN_IF_ERROR(reader.Append(prefix + ".in_ln.bias", {H}, storage.norm_bias));
    DEEPPCR_RETURN_IF_ERROR(
        AppendDense(reader, prefix + ".mlp.0", H, H, storage.first_weight, storage.first_bias));
    DEEPPCR_RETURN_IF_ERROR(
        AppendDense(reader, prefix + ".mlp.2", H, H, storage.second_weight, storage.second_bias));
    DEEPPCR_RETURN_IF_ERROR(AppendDense(reader, prefix + ".adaLN_modulation.1", 3 * H, H,
                                        storage.modulation_weight, storage.modulation_bias));
  }
  return AppendDense(reader, "final_layer.adaLN_modulation.1", 2 * H, H, storage.modulation_weight,
                     storage.modulation_bias);
}

// A layer of this shape over storage that does not move from now on.
DenseSpec DenseOver(int64_t rows, int64_t cols, const std::vector<float>& weight,
                    const std::vector<float>& bias) {
  return {.rows = rows, .cols = cols, .weight = weight, .bias = bias};
}

absl::Status ReadDecoder(TensorReader& reader, const ModelConfig& config,
                         DiffusionStorage& storage) {
  if (config.decoder_widths.empty() && !reader.Has("decoder.0.weight") &&
      !reader.Has("decoder.0.bias")) {
    if (config.output_dim == config.state_dim) return absl::OkStatus();
    return InvalidArgument(
        "tensor \"decoder.0.weight\" of shape ",
        ShapeString(TensorReader::Shape{config.output_dim, config.state_dim}),
        " is missing; it may be left out, with its bias, only if output_dim equals state_dim "
        "(config.json: ",
        config.output_dim, " and ", config.state_dim, ")");
  }
  std::vector<int64_t> widths = config.decoder_widths;
  widths.push_back(config.output_dim);
  storage.decoder_weights.resize(widths.size());
  storage.decoder_biases.resize(widths.size());
  int64_t cols = config.state_dim;
  for (size_t j = 0; j < widths.size(); ++j) {
    std::vector<float>& weight = storage.decoder_weights[j];
    std::vector<float>& bias = storage.decoder_biases[j];
    DEEPPCR_RETURN_IF_ERROR(
        AppendDense(reader, StrCat("decoder.", j), widths[j], cols, weight, bias));
    storage.decoder.push_back(DenseOver(widths[j], cols, weight, bias));
    if (j + 1 < widths.size()) storage.decoder.back().activation = config.decoder_activation;
    cols = widths[j];
  }
  return absl::OkStatus();
}

absl::Status ReadTensors(TensorReader& reader, const ModelConfig& config,
                         DiffusionStorage& storage) {
  const int64_t H = config.hidden_dim;
  const int64_t D = config.state_dim;
  DEEPPCR_RETURN_IF_ERROR(
      AppendDense(reader, "input_proj", H, D, storage.input_weight, storage.input_bias));
  DEEPPCR_RETURN_IF_ERROR(ReadTimeMlp(reader, config, storage.time_mlp));
  DEEPPCR_RETURN_IF_ERROR(ReadCondition(reader, config, storage));
  DEEPPCR_RETURN_IF_ERROR(config.denoiser == DenoiserKind::kAdaLnMlp
                              ? ReadAdaLnBlocks(reader, config, storage)
                              : ReadResidualBlocks(reader, config, storage));
  DEEPPCR_RETURN_IF_ERROR(
      AppendDense(reader, "final_layer.linear", D, H, storage.output_weight, storage.output_bias));
  DEEPPCR_RETURN_IF_ERROR(ReadDecoder(reader, config, storage));
  return reader.CheckAllUsed();
}

DenoiserSpec DenoiserOver(const ModelConfig& config, const DiffusionStorage& storage) {
  const int64_t H = config.hidden_dim;
  const int64_t D = config.state_dim;
  DenoiserSpec denoiser{.kind = config.denoiser,
                        .hidden_dim = H,
                        .num_blocks = config.num_blocks,
                        .activation = config.activation,
                        .input = DenseOver(H, D, storage.input_weight, storage.input_bias),
                        .output = DenseOver(D, H, storage.output_weight, storage.output_bias),
                        .first_weight = storage.first_weight,
                        .first_bias = storage.first_bias,
                        .second_weight = storage.second_weight,
                        .second_bias = storage.second_bias,
                        .norm_weight = storage.norm_weight,
                        .norm_bias = storage.norm_bias};
  denoiser.modulation =
      DenseOver(denoiser.modulation_dim(), H, storage.modulation_weight, storage.modulation_bias);
  return denoiser;
}

// Specification of the system of these tables.
DiffusionSpec SpecOver(const Model& model, const StepTables& tables) {
  const ModelConfig& config = model.config;
  const DiffusionStorage& storage = model.diffusion;
  DiffusionSpec spec{.state_dim = config.state_dim,
                     .steps = tables.steps,
                     .clip_range = tables.clip_range,
                     .denoiser = DenoiserOver(config, storage),
                     .time_embedding = tables.time_embedding,
                     .num_classes = config.num_classes,
                     .class_embedding = storage.class_embedding,
                     .decoder = storage.decoder};
  if (config.conditioning_dim > 0) {
    spec.condition = DenseOver(config.hidden_dim, config.conditioning_dim, storage.condition_weight,
                               storage.condition_bias);
  }
  return spec;
}

// Tables without the time embedding.
absl::StatusOr<StepTables> ReverseStepsOf(const Model& model, int64_t num_inference_steps) {
  const ReverseProcessOptions options{.num_inference_steps = num_inference_steps,
                                      .eta = model.config.eta,
                                      .diffusers_compatible = model.config.diffusers_compatible};
  DEEPPCR_ASSIGN_OR_RETURN(ReverseProcess process, BuildReverseProcess(model.scheduler, options));
  return StepTables{.steps = std::move(process.steps), .clip_range = process.clip_range};
}

}  // namespace

absl::Status LoadDiffusionScheduler(const ModelLimits& limits, Model& model) {
  const ModelConfig& config = model.config;
  int64_t steps = 0;
  for (const int64_t count : config.num_inference_steps) {
    DEEPPCR_ASSIGN_OR_RETURN(StepTables tables, ReverseStepsOf(model, count));
    steps += static_cast<int64_t>(tables.steps.size());
    model.diffusion.tables.push_back(std::move(tables));
  }
  const int64_t bytes_per_step = config.hidden_dim * static_cast<int64_t>(sizeof(double));
  model.max_num_steps = std::min({model.scheduler.num_train_timesteps, MaxStepsOnDemand(config),
                                  limits.max_weights_bytes / bytes_per_step});
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t bytes, CheckedProduct({steps, bytes_per_step}));
  if (bytes <= limits.max_weights_bytes) return absl::OkStatus();
  return ResourceExhausted("num_inference_steps: the time embeddings of ", steps, " steps take ",
                           bytes, " bytes; ", limits.max_weights_bytes, " are allowed");
}

absl::Status LoadDiffusion(const Tensors& tensors, const ModelLimits& limits, Model& model) {
  DiffusionStorage& storage = model.diffusion;
  if (storage.tables.size() != model.config.num_inference_steps.size()) {
    return Internal("the tensors of a diffusion model are loaded before its scheduler");
  }
  const bool ada_ln = model.config.denoiser == DenoiserKind::kAdaLnMlp;
  const std::string names = StrCat(kCommonNames, ada_ln ? kAdaLnNames : kResidualNames);
  TensorReader reader(tensors, limits.max_weights_bytes, names);
  DEEPPCR_RETURN_IF_ERROR(ReadTensors(reader, model.config, storage));
  for (StepTables& tables : storage.tables) {
    DEEPPCR_ASSIGN_OR_RETURN(tables.time_embedding,
                             EmbedTimesteps(storage.time_mlp, tables.steps, limits.token));
    model.systems.emplace_back(SpecOver(model, tables));
  }
  return absl::OkStatus();
}

absl::StatusOr<OwnedSystem> DiffusionSystemOf(const Model& model, int64_t num_steps,
                                              const ModelLimits& limits) {
  if (num_steps < 1 || num_steps > model.max_num_steps)
    return InvalidArgument("num_inference_steps: expected an integer in [1, ", model.max_num_steps,
                           "], got ", num_steps);
  auto tables = std::make_shared<StepTables>();
  DEEPPCR_ASSIGN_OR_RETURN(*tables, ReverseStepsOf(model, num_steps));
  DEEPPCR_ASSIGN_OR_RETURN(tables->time_embedding,
                           EmbedTimesteps(model.diffusion.time_mlp, tables->steps, limits.token));
  const SystemSpec spec = SpecOver(model, *tables);
  return OwnedSystem{.storage = std::move(tables), .spec = spec};
}

}  // namespace deeppcr
