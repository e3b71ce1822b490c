// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_split.h"
#include "kernels/base/json.h"
#include "kernels/base/shape.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/parameter_limits.h"
#include "kernels/model/registry.h"
#include "kernels/model/weights.h"

namespace deeppcr {
namespace {

constexpr int64_t kMaxDim = 65536;
constexpr int64_t kMaxStateDim = 4096;
constexpr int64_t kMaxLayers = int64_t{1} << 20;
constexpr int64_t kMaxLabelBytes = 256;
// Limits of diffusion models.
constexpr int64_t kMaxHiddenDim = 4096;
constexpr int64_t kMaxConditioningDim = 16384;  // that of a large language model's states
constexpr int64_t kMaxBlocks = 64;
constexpr int64_t kMaxClasses = 65536;
constexpr int64_t kMaxInferenceSteps = int64_t{1} << 16;
constexpr size_t kMaxStepCounts = 8;
constexpr size_t kMaxDecoderWidths = 8;

struct DenoiserName {
  DenoiserKind kind;
  std::string_view name;
};
// The denoiser that denoiser.onnx describes.
constexpr std::string_view kProgramName = "onnx";
constexpr std::array<DenoiserName, 2> kDenoiserNames = {{
    {DenoiserKind::kResidualMlp, "residual_mlp"},
    {DenoiserKind::kAdaLnMlp, "adaln_mlp"},
}};

template <auto member>
absl::Status ReadInteger(const nlohmann::json& value, const ConfigKey& key, ModelConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t number, JsonInteger(value, key.name, key.min, key.max));
  config.*member = static_cast<std::decay_t<decltype(config.*member)>>(number);
  return absl::OkStatus();
}

template <auto member>
absl::Status ReadActivation(const nlohmann::json& value, const ConfigKey& key,
                            ModelConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::string name, JsonString(value, key.name));
  const absl::StatusOr<Activation> activation = ParseActivation(name);
  DEEPPCR_RETURN_IF_ERROR(WithContext(activation.status(), key.name));
  config.*member = *activation;
  return absl::OkStatus();
}

absl::Status ReadModelType(const nlohmann::json& value, const ConfigKey& key, ModelConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(config.model_type, JsonString(value, key.name));
  if (FindModelFamily(config.model_type) != nullptr) return absl::OkStatus();
  const std::string names =
      StrJoin(ModelFamilies(), ", ", [](const ModelFamily& family) { return family.name; });
  return InvalidArgument(key.name, ": expected one of ", names, ", got ", DescribeJson(value));
}

absl::Status ReadResidualScale(const nlohmann::json& value, const ConfigKey& key,
                               ModelConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(const double scale, JsonNumber(value, key.name));
  const double magnitude = std::abs(scale);
  if (magnitude >= std::numeric_limits<float>::min() &&
      magnitude <= std::numeric_limits<float>::max()) {
    config.residual_scale = scale;
    return absl::OkStatus();
  }
  return InvalidArgument(key.name, ": expected a number that is finite and not 0 as float32, got ",
                         DescribeJson(value));
}

// True for a character that moves a terminal's cursor or breaks a line of output.
bool IsControl(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

// output_dim is an earlier row, so its value is known.
absl::Status ReadLabels(const nlohmann::json& value, const ConfigKey& key, ModelConfig& config) {
  if (!value.is_array() || std::cmp_not_equal(value.size(), config.output_dim)) {
    return InvalidArgument(key.name, ": expected an array of output_dim = ", config.output_dim,
                           " strings, got ", DescribeJson(value));
  }
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string field = StrCat(key.name, "[", i, "]");
    DEEPPCR_ASSIGN_OR_RETURN(std::string label, JsonString(value[i], field));
    if (label.empty() || std::cmp_greater(label.size(), kMaxLabelBytes)) {
      return InvalidArgument(field, ": expected 1 to ", kMaxLabelBytes, " bytes, got ",
                             label.size());
    }
    if (std::any_of(label.begin(), label.end(), IsControl)) {
      return InvalidArgument(field, ": expected no control characters, got ", Quoted(label));
    }
    config.labels.push_back(std::move(label));
  }
  return absl::OkStatus();
}

absl::Status ReadSharedWeights(const nlohmann::json& value, const ConfigKey& key,
                               ModelConfig& config) {
  if (!value.is_array())
    return InvalidArgument(key.name, ": expected an array of strings, got ", DescribeJson(value));
  for (size_t i = 0; i < value.size(); ++i) {
    DEEPPCR_ASSIGN_OR_RETURN(std::string name, JsonString(value[i], StrCat(key.name, "[", i, "]")));
    config.shared_weights.push_back(std::move(name));
  }
  return absl::OkStatus();
}

absl::Status ReadDenoiser(const nlohmann::json& value, const ConfigKey& key, ModelConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::string name, JsonString(value, key.name));
  for (const DenoiserName& row : kDenoiserNames) {
    if (row.name != name) continue;
    config.denoiser = row.kind;
    return absl::OkStatus();
  }
  config.denoiser_program = name == kProgramName;
  if (config.denoiser_program) return absl::OkStatus();
  const std::string names =
      StrJoin(kDenoiserNames, ", ", [](const DenoiserName& row) { return row.name; });
  return InvalidArgument(key.name, ": expected one of ", names, ", ", kProgramName, ", got ",
                         DescribeJson(value));
}

absl::Status ReadDenoiserInputs(const nlohmann::json& value, const ConfigKey& key,
                                ModelConfig& config) {
  if (!value.is_object())
    return InvalidArgument(key.name, ": expected an object, got ", DescribeJson(value));
  for (const auto& member : value.items()) {
    DenoiserInputs& inputs = config.denoiser_inputs;
    std::string* const to = member.key() == "state"       ? &inputs.state
                            : member.key() == "time"      ? &inputs.time
                            : member.key() == "condition" ? &inputs.condition
                                                          : nullptr;
    const std::string field = StrCat(key.name, ".", Quoted(member.key()));
    if (to == nullptr)
      return InvalidArgument(field, ": expected the keys state, time and condition only");
    DEEPPCR_ASSIGN_OR_RETURN(*to, JsonString(member.value(), field));
    if (to->empty()) return InvalidArgument(field, ": expected the name of an input, got \"\"");
  }
  if (!config.denoiser_inputs.state.empty()) return absl::OkStatus();
  return InvalidArgument(key.name, ": expected the key state");
}

absl::Status ReadTimeEmbeddingDim(const nlohmann::json& value, const ConfigKey& key,
                                  ModelConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t dim, JsonInteger(value, key.name, key.min, key.max));
  if (dim % 2 != 0) return InvalidArgument(key.name, ": expected an even integer, got ", dim);
  config.time_embedding_dim = dim;
  return absl::OkStatus();
}

absl::Status ReadTensorPrefix(const nlohmann::json& value, const ConfigKey& key,
                              ModelConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(std::string prefix, JsonString(value, key.name));
  if (prefix.empty() || std::cmp_greater(prefix.size(), kMaxTensorNameBytes)) {
    return InvalidArgument(key.name, ": expected 1 to ", kMaxTensorNameBytes, " bytes, got ",
                           prefix.size());
  }
  if (std::any_of(prefix.begin(), prefix.end(), IsControl)) {
    return InvalidArgument(key.name, ": expected no control characters, got ", Quoted(prefix));
  }
  config.tensor_prefix = std::move(prefix);
  return absl::OkStatus();
}

// The integers of an array whose size was checked, each in the range of the key.
absl::StatusOr<std::vector<int64_t>> Integers(const nlohmann::json& array, const ConfigKey& key) {
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < array.size(); ++i) {
    DEEPPCR_ASSIGN_OR_RETURN(
        const int64_t number,
        JsonInteger(array[i], StrCat(key.name, "[", i, "]"), key.min, key.max));
    numbers.push_back(number);
  }
  return numbers;
}

absl::Status ReadStepCounts(const nlohmann::json& value, const ConfigKey& key,
                            ModelConfig& config) {
  if (value.is_number()) {
    DEEPPCR_ASSIGN_OR_RETURN(const int64_t count, JsonInteger(value, key.name, key.min, key.max));
    config.num_inference_steps = {count};
    return absl::OkStatus();
  }
  if (!value.is_array() || value.empty() || value.size() > kMaxStepCounts) {
    return InvalidArgument(key.name, ": expected an integer in [", key.min, ", ", key.max,
                           "] or an array of 1 to ", kMaxStepCounts, " of them, got ",
                           DescribeJson(value));
  }
  DEEPPCR_ASSIGN_OR_RETURN(config.num_inference_steps, Integers(value, key));
  std::vector<int64_t> sorted = config.num_inference_steps;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return absl::OkStatus();
  return InvalidArgument(key.name, ": expected distinct integers, got ", *twice, " twice");
}

// num_classes is an earlier row, so its value is known.
absl::Status ReadConditioningDim(const nlohmann::json& value, const ConfigKey& key,
                                 ModelConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t dim, JsonInteger(value, key.name, key.min, key.max));
  if (dim > 0 && config.num_classes > 0) {
    return InvalidArgument(key.name, ": expected 0 beside num_classes = ", config.num_classes,
                           " (one kind of condition at a time), got ", dim);
  }
  config.conditioning_dim = config.input_dim = dim;
  return absl::OkStatus();
}

// num_classes is an earlier row.
absl::Status ReadNullClass(const nlohmann::json& value, const ConfigKey& key, ModelConfig& config) {
  if (config.num_classes == 0)
    return InvalidArgument(key.name, ": expected none without num_classes, got ",
                           DescribeJson(value));
  DEEPPCR_ASSIGN_OR_RETURN(config.null_class,
                           JsonInteger(value, key.name, 0, config.num_classes - 1));
  return absl::OkStatus();
}

// conditioning_dim is an earlier row.
absl::Status ReadNullCondition(const nlohmann::json& value, const ConfigKey& key,
                               ModelConfig& config) {
  const auto dim = static_cast<size_t>(config.conditioning_dim);
  if (dim == 0)
    return InvalidArgument(key.name, ": expected none without conditioning_dim, got ",
                           DescribeJson(value));
  if (value.is_array() && value.size() != dim)
    return InvalidArgument(key.name, ": expected conditioning_dim = ", dim,
                           " numbers, or one, got ", value.size());
  for (size_t i = 0; i < dim; ++i) {
    DEEPPCR_ASSIGN_OR_RETURN(const double number,
                             JsonNumber(value.is_array() ? value[i] : value, key.name));
    const auto element = static_cast<float>(number);
    if (!std::isfinite(element))
      return InvalidArgument(key.name, ": expected numbers that are finite as float32, got ",
                             number);
    config.null_condition.push_back(element);
  }
  return absl::OkStatus();
}

absl::Status ReadDecoderWidths(const nlohmann::json& value, const ConfigKey& key,
                               ModelConfig& config) {
  if (!value.is_array() || value.size() > kMaxDecoderWidths) {
    return InvalidArgument(key.name, ": expected an array of at most ", kMaxDecoderWidths,
                           " integers, got ", DescribeJson(value));
  }
  DEEPPCR_ASSIGN_OR_RETURN(config.decoder_widths, Integers(value, key));
  return absl::OkStatus();
}

// A key that would do nothing is a mistake of the author's. decoder_widths is an earlier row.
absl::Status ReadDecoderActivation(const nlohmann::json& value, const ConfigKey& key,
                                   ModelConfig& config) {
  DEEPPCR_RETURN_IF_ERROR(ReadActivation<&ModelConfig::decoder_activation>(value, key, config));
  if (!config.decoder_widths.empty()) return absl::OkStatus();
  return InvalidArgument(key.name, ": needs decoder_widths, which are not given; got ",
                         DescribeJson(value));
}

absl::Status ReadEta(const nlohmann::json& value, const ConfigKey& key, ModelConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(const double eta, JsonNumber(value, key.name));
  if (!(eta >= 0.0 && eta <= 1.0)) {
    return InvalidArgument(key.name, ": expected a number in [0, 1], got ", DescribeJson(value));
  }
  config.eta = eta;
  return absl::OkStatus();
}

absl::Status ReadMu(const nlohmann::json& value, const ConfigKey& key, ModelConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(config.mu, JsonNumber(value, key.name));
  return absl::OkStatus();
}

template <auto member>
absl::Status ReadBool(const nlohmann::json& value, const ConfigKey& key, ModelConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(config.*member, JsonBool(value, key.name));
  return absl::OkStatus();
}

// output_dim is an earlier row, so its value is known.
absl::Status ReadImageShape(const nlohmann::json& value, const ConfigKey& key,
                            ModelConfig& config) {
  if (!value.is_array() || value.size() < 2 || value.size() > 3) {
    return InvalidArgument(key.name,
                           ": expected an array of 2 or 3 integers (height, width, channels), got ",
                           DescribeJson(value));
  }
  DEEPPCR_ASSIGN_OR_RETURN(config.image_shape, Integers(value, key));
  const std::vector<int64_t>& shape = config.image_shape;
  if (shape.size() == 3 && shape[2] != 1 && shape[2] != 3) {
    return InvalidArgument(key.name, "[2]: expected 1 or 3 channels, got ", shape[2]);
  }
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t pixels, CheckedProduct(shape));
  if (pixels == config.output_dim) return absl::OkStatus();
  return InvalidArgument(key.name, ": expected output_dim = ", config.output_dim,
                         " values in all, got ", ShapeString(shape), " = ", pixels);
}

constexpr std::array<ConfigKey, 29> kKeys = {{
    {"model_type", "string", "required", "all",
     "family of the model: `mlp`, `resnet`, `stack` or `diffusion`", 0, 0, &ReadModelType},
    {"input_dim", "integer", "required", "mlp, resnet, stack", "values per sample of a request", 1,
     kMaxDim, &ReadInteger<&ModelConfig::input_dim>},
    {"output_dim", "integer", "required", "all", "values per sample of a reply", 1, kMaxDim,
     &ReadInteger<&ModelConfig::output_dim>},
    {"state_dim", "integer", "required", "all", "width D of the state inside the recurrence", 1,
     kMaxStateDim, &ReadInteger<&ModelConfig::state_dim>},
    {"num_layers", "integer", "required", "mlp, resnet, stack", "number L of recurrent layers", 1,
     kMaxLayers, &ReadInteger<&ModelConfig::num_layers>},
    {"denoiser", "string", "required", "diffusion",
     "the network that predicts noise, sample or velocity: `onnx` for the file denoiser.onnx, or "
     "`residual_mlp` or `adaln_mlp`",
     0, 0, &ReadDenoiser},
    {"activation", "string", "required", "mlp, resnet, diffusion",
     "activation of the recurrent layers; of the denoiser's blocks", 0, 0,
     &ReadActivation<&ModelConfig::activation>, ConfigKey::Denoiser::kNamed},
    {"residual_scale", "number", "1/sqrt(num_layers)", "resnet",
     "factor s of a residual layer, not 0: z + s act(W z + b)", 0, 0, &ReadResidualScale},
    {"max_batch_size", "integer", "64", "all", "most samples of one request", 1, 4096,
     &ReadInteger<&ModelConfig::max_batch_size>},
    {"input_activation", "string", "identity", "mlp, resnet, stack",
     "activation of the input layer; needs `input.weight`", 0, 0,
     &ReadActivation<&ModelConfig::input_activation>},
    {"labels", "array of strings", "none", "mlp, resnet, stack",
     "names of the outputs, output_dim of them, 1 to 256 bytes each, no control characters", 0, 0,
     &ReadLabels},
    {"shared_weights", "array of strings", "none", "stack",
     "initialisers of block.onnx that all layers share; every other one has a tensor "
     "[num_layers, ..] of its name in model.safetensors",
     0, 0, &ReadSharedWeights},
    {"hidden_dim", "integer", "required", "diffusion", "width H inside the denoiser", 1,
     kMaxHiddenDim, &ReadInteger<&ModelConfig::hidden_dim>, ConfigKey::Denoiser::kNamed},
    {"num_blocks", "integer", "required", "diffusion", "residual blocks of the denoiser", 1,
     kMaxBlocks, &ReadInteger<&ModelConfig::num_blocks>, ConfigKey::Denoiser::kNamed},
    {"time_embedding_dim", "integer", "required", "diffusion",
     "width of the sinusoidal embedding of a timestep; even", 2, kMaxHiddenDim,
     &ReadTimeEmbeddingDim, ConfigKey::Denoiser::kNamed},
    {"tensor_prefix", "string", "none", "diffusion",
     "what the names of the tensors begin with in model.safetensors, as `net.`, 1 to 256 bytes; "
     "tensors of other names are left alone",
     0, 0, &ReadTensorPrefix, ConfigKey::Denoiser::kNamed},
    {"denoiser_inputs", "object", "none", "diffusion",
     "names of the inputs of denoiser.onnx: `state`, `time` and `condition` (a vector, or a "
     "class); "
     "none: in this order",
     0, 0, &ReadDenoiserInputs, ConfigKey::Denoiser::kProgram},
    {"num_inference_steps", "integer or array of integers", "required", "diffusion",
     "numbers of steps that plans are made for at load, 1 to 8 distinct ones, the default first; "
     "at most num_train_timesteps",
     1, kMaxInferenceSteps, &ReadStepCounts},
    {"num_classes", "integer", "0", "diffusion",
     "classes that a request names as its condition; 0 for none", 0, kMaxClasses,
     &ReadInteger<&ModelConfig::num_classes>},
    {"conditioning_dim", "integer", "0", "diffusion",
     "values per sample that a request gives as its condition; 0 for none; not with num_classes", 0,
     kMaxConditioningDim, &ReadConditioningDim},
    {"null_class", "integer below num_classes", "none", "diffusion",
     "class that stands for no condition, for requests with a guidance_scale; needs num_classes", 0,
     kMaxClasses - 1, &ReadNullClass},
    {"null_condition", "number or array of numbers", "none", "diffusion",
     "vector that stands for no condition, for requests with a guidance_scale: conditioning_dim "
     "numbers, or one that all of them are; none: such requests bring it as null_conditioning",
     0, 0, &ReadNullCondition},
    {"decoder_widths", "array of integers", "none", "diffusion",
     "widths of the decoder's hidden layers, at most 8; see the tensors `decoder.<j>`", 1, kMaxDim,
     &ReadDecoderWidths},
    {"decoder_activation", "string", "relu", "diffusion",
     "activation after each layer of the decoder but the last; needs decoder_widths", 0, 0,
     &ReadDecoderActivation},
    {"eta", "number", "0", "diffusion",
     "share of DDPM's noise that DDIM adds, in [0, 1]; 0 with other schedulers", 0, 0, &ReadEta},
    {"use_clipped_model_output", "boolean", "false", "diffusion",
     "whether DDIM computes epsilon again from the clipped x_0, as the argument of diffusers' "
     "`step()`; false with other schedulers",
     0, 0, &ReadBool<&ModelConfig::use_clipped_model_output>},
    {"mu", "number", "none", "diffusion",
     "the shift of the times, as the argument of diffusers' `set_timesteps()`; needed by "
     "FlowMatchEulerDiscrete with `use_dynamic_shifting`",
     0, 0, &ReadMu},
    {"diffusers_compatible", "boolean", "false", "diffusion",
     "whether DDIM steps to timestep - T / n as diffusers does, not to the next timestep of its "
     "list",
     0, 0, &ReadBool<&ModelConfig::diffusers_compatible>},
    {"image_shape", "array of integers", "none", "diffusion",
     "height, width and maybe channels (1 or 3) of an output, for whoever draws it; their product "
     "is output_dim",
     1, kMaxDim, &ReadImageShape},
}};

std::string KeyNames(std::span<const ConfigKey> keys) {
  return StrJoin(keys, ", ", [](const ConfigKey& key) { return key.name; });
}

bool AppliesTo(const ConfigKey& key, std::string_view model_type) {
  if (key.families == "all") return true;
  const std::vector<std::string> families = absl::StrSplit(ToAbsl(key.families), ", ");
  return std::find(families.begin(), families.end(), model_type) != families.end();
}

absl::Status CheckKnown(const nlohmann::json& object, std::span<const ConfigKey> keys,
                        Problems* problems) {
  for (const auto& member : object.items()) {
    const auto known = [&](const ConfigKey& key) { return key.name == member.key(); };
    if (std::any_of(keys.begin(), keys.end(), known)) continue;
    DEEPPCR_RETURN_IF_ERROR(problems->Add(
        InvalidArgument("unknown key ", Quoted(member.key()), "; the keys are ", KeyNames(keys))));
  }
  return absl::OkStatus();
}

// The rows are read in order: model_type comes first, so its value is known for the other rows.
absl::Status ReadKey(const nlohmann::json& object, const ConfigKey& key, ModelConfig& config) {
  const auto member = object.find(key.name);
  const bool given = member != object.end();
  const bool applies = AppliesTo(key, config.model_type);
  const bool of_other = key.denoiser == (config.denoiser_program ? ConfigKey::Denoiser::kNamed
                                                                 : ConfigKey::Denoiser::kProgram);
  if (applies && of_other && config.model_type == "diffusion") {
    if (!given) return absl::OkStatus();
    return InvalidArgument(key.name, config.denoiser_program
                                         ? ": not with denoiser \"onnx\", whose file says it"
                                         : ": only with denoiser \"onnx\"");
  }
  if (given && applies) return key.read(*member, key, config);
  if (given) {
    return InvalidArgument(key.name, ": only for model_type ", key.families, ", this is ",
                           config.model_type);
  }
  if (!applies || key.default_value != "required") return absl::OkStatus();
  return InvalidArgument(key.name, ": missing; expected ", key.type, " (", key.meaning, ")");
}

}  // namespace

std::span<const ConfigKey> ConfigKeys() { return kKeys; }

absl::StatusOr<Activation> ParseActivation(std::string_view name) {
  for (const ActivationName& row : kActivationNames) {
    if (row.name == name) return row.activation;
  }
  const std::string names =
      StrJoin(kActivationNames, ", ", [](const ActivationName& row) { return row.name; });
  return InvalidArgument("expected one of ", names, ", got ", Quoted(name));
}

std::string_view NameOf(Activation activation) {
  for (const ActivationName& row : kActivationNames) {
    if (row.activation == activation) return row.name;
  }
  return "unknown";
}

std::string_view NameOf(DenoiserKind denoiser) {
  for (const DenoiserName& row : kDenoiserNames) {
    if (row.kind == denoiser) return row.name;
  }
  return "unknown";
}

absl::StatusOr<ModelConfig> ParseConfig(std::string_view json, std::span<const ConfigKey> keys,
                                        Problems* all) {
  const JsonLimits limits{.max_bytes = static_cast<int64_t>(json.size())};
  DEEPPCR_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJson(json, limits));
  if (!object.is_object()) {
    return InvalidArgument("expected an object, got ", DescribeJson(object));
  }
  Problems problems(all != nullptr);
  DEEPPCR_RETURN_IF_ERROR(CheckKnown(object, keys, &problems));
  ModelConfig config;
  for (const ConfigKey& key : keys)
    DEEPPCR_RETURN_IF_ERROR(problems.Add(ReadKey(object, key, config)));
  if (!problems.empty()) {
    const absl::Status first = problems.status();
    *all = std::move(problems);
    return first;
  }
  if (config.model_type == "resnet" && !object.contains("residual_scale")) {
    config.residual_scale = 1.0 / std::sqrt(static_cast<double>(config.num_layers));
  }
  DEEPPCR_RETURN_IF_ERROR(CheckParameters(config));
  return config;
}

}  // namespace deeppcr
