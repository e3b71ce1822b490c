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
#include "kernels/model/registry.h"

namespace deeppcr {
namespace {

constexpr int64_t kMaxDim = 65536;
constexpr int64_t kMaxStateDim = 4096;
constexpr int64_t kMaxLayers = int64_t{1} << 20;
constexpr int64_t kMaxParameters = int64_t{1} << 33;
constexpr int64_t kMaxLabelBytes = 256;

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

// What moves a terminal's cursor or breaks a line of output.
bool IsControl(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

// output_dim is an earlier row, so it is known.
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

constexpr std::array<ConfigKey, 10> kKeys = {{
    {"model_type", "string", "required", "all", "family of the model: `mlp` or `resnet`", 0, 0,
     &ReadModelType},
    {"input_dim", "integer", "required", "all", "values per sample of a request", 1, kMaxDim,
     &ReadInteger<&ModelConfig::input_dim>},
    {"output_dim", "integer", "required", "all", "values per sample of a reply", 1, kMaxDim,
     &ReadInteger<&ModelConfig::output_dim>},
    {"state_dim", "integer", "required", "all", "width D of the state inside the recurrence", 1,
     kMaxStateDim, &ReadInteger<&ModelConfig::state_dim>},
    {"num_layers", "integer", "required", "all", "number L of recurrent layers", 1, kMaxLayers,
     &ReadInteger<&ModelConfig::num_layers>},
    {"activation", "string", "required", "all", "activation of the recurrent layers", 0, 0,
     &ReadActivation<&ModelConfig::activation>},
    {"residual_scale", "number", "1/sqrt(num_layers)", "resnet",
     "factor s of a residual layer, not 0: z + s act(W z + b)", 0, 0, &ReadResidualScale},
    {"max_batch_size", "integer", "64", "all", "most samples of one request", 1, 4096,
     &ReadInteger<&ModelConfig::max_batch_size>},
    {"input_activation", "string", "identity", "all",
     "activation of the input layer; needs `input.weight`", 0, 0,
     &ReadActivation<&ModelConfig::input_activation>},
    {"labels", "array of strings", "none", "all",
     "names of the outputs, output_dim of them, 1 to 256 bytes each, no control characters", 0, 0,
     &ReadLabels},
}};

std::string KeyNames(std::span<const ConfigKey> keys) {
  return StrJoin(keys, ", ", [](const ConfigKey& key) { return key.name; });
}

bool AppliesTo(const ConfigKey& key, std::string_view model_type) {
  if (key.families == "all") return true;
  const std::vector<std::string> families = absl::StrSplit(ToAbsl(key.families), ", ");
  return std::find(families.begin(), families.end(), model_type) != families.end();
}

absl::Status CheckKnown(const nlohmann::json& object, std::span<const ConfigKey> keys) {
  for (const auto& member : object.items()) {
    const auto known = [&](const ConfigKey& key) { return key.name == member.key(); };
    if (std::any_of(keys.begin(), keys.end(), known)) continue;
    return InvalidArgument("unknown key ", Quoted(member.key()), "; the keys are ", KeyNames(keys));
  }
  return absl::OkStatus();
}

// The rows are read in order: model_type comes first, so it is known when the others are read.
absl::Status ReadKey(const nlohmann::json& object, const ConfigKey& key, ModelConfig& config) {
  const auto member = object.find(key.name);
  const bool given = member != object.end();
  if (!given && key.default_value != "required") return absl::OkStatus();
  if (!given) {
    return InvalidArgument(key.name, ": missing; expected ", key.type, " (", key.meaning, ")");
  }
  if (!AppliesTo(key, config.model_type)) {
    return InvalidArgument(key.name, ": only for model_type ", key.families, ", this is ",
                           config.model_type);
  }
  return key.read(*member, key, config);
}

// Bounds what the tensors may ask for before any is looked at. The caps above keep each product in
// int64.
absl::Status CheckParameters(const ModelConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(
      const int64_t recurrent,
      CheckedProduct({config.num_layers, config.state_dim, config.state_dim + 1}));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t input,
                           CheckedProduct({config.state_dim, config.input_dim + 1}));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t output,
                           CheckedProduct({config.output_dim, config.state_dim + 1}));
  if (recurrent <= kMaxParameters - input - output) return absl::OkStatus();
  return InvalidArgument("num_layers ", config.num_layers, " x state_dim ", config.state_dim,
                         ": expected at most ", kMaxParameters, " parameters, got ",
                         recurrent + input + output);
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

absl::StatusOr<ModelConfig> ParseConfig(std::string_view json, std::span<const ConfigKey> keys) {
  const JsonLimits limits{.max_bytes = static_cast<int64_t>(json.size())};
  DEEPPCR_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJson(json, limits));
  if (!object.is_object()) {
    return InvalidArgument("expected an object, got ", DescribeJson(object));
  }
  DEEPPCR_RETURN_IF_ERROR(CheckKnown(object, keys));
  ModelConfig config;
  for (const ConfigKey& key : keys) DEEPPCR_RETURN_IF_ERROR(ReadKey(object, key, config));
  if (config.model_type == "resnet" && !object.contains("residual_scale")) {
    config.residual_scale = 1.0 / std::sqrt(static_cast<double>(config.num_layers));
  }
  DEEPPCR_RETURN_IF_ERROR(CheckParameters(config));
  return config;
}

}  // namespace deeppcr
