// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/model.h"

#include <utility>

#include "kernels/base/file.h"
#include "kernels/base/sha256.h"
#include "kernels/base/shape.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/registry.h"

namespace deeppcr {
namespace {

constexpr std::string_view kConfigFile = "config.json";
constexpr std::string_view kWeightsFile = "model.safetensors";
constexpr std::string_view kCalibrationFile = "calibration.safetensors";
constexpr std::string_view kCalibrationTensor = "inputs";
constexpr int64_t kMaxCalibrationSamples = 4096;

std::string PathOf(const std::string& directory, std::string_view file) {
  return StrCat(directory, "/", file);
}

absl::Status ReadConfig(const std::string& directory, const ModelLimits& limits, Model& model) {
  DEEPPCR_ASSIGN_OR_RETURN(model.config_json,
                           ReadFile(PathOf(directory, kConfigFile), limits.max_config_bytes));
  absl::StatusOr<ModelConfig> config = ParseConfig(model.config_json);
  DEEPPCR_RETURN_IF_ERROR(WithContext(config.status(), kConfigFile));
  model.config = *std::move(config);
  return absl::OkStatus();
}

absl::Status ReadWeights(const std::string& directory, const ModelLimits& limits, Model& model) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::string bytes,
                           ReadFile(PathOf(directory, kWeightsFile), limits.max_weights_bytes));
  const absl::StatusOr<Tensors> tensors = ParseSafetensors(bytes);
  DEEPPCR_RETURN_IF_ERROR(WithContext(tensors.status(), kWeightsFile));
  const ModelFamily* family = FindModelFamily(model.config.model_type);
  if (family == nullptr) {
    return Internal("no family \"", model.config.model_type, "\" for an accepted model_type");
  }
  DEEPPCR_RETURN_IF_ERROR(WithContext(family->load(*tensors, limits, model), kWeightsFile));
  DEEPPCR_ASSIGN_OR_RETURN(model.weights_sha256, Sha256Hex(bytes));
  return absl::OkStatus();
}

absl::Status UseCalibration(const Tensors& tensors, Model& model) {
  const TensorEntry* inputs = tensors.Find(kCalibrationTensor);
  if (inputs == nullptr || tensors.entries().size() != 1) {
    return InvalidArgument("expected one tensor \"", kCalibrationTensor, "\", got ",
                           tensors.entries().size(), " tensors");
  }
  const std::vector<int64_t>& shape = inputs->shape;
  if (shape.size() != 2 || shape[0] < 1 || shape[0] > kMaxCalibrationSamples ||
      shape[1] != model.config.input_dim) {
    return InvalidArgument("tensor \"", kCalibrationTensor, "\": expected shape [1 .. ",
                           kMaxCalibrationSamples, ", ", model.config.input_dim, "], got ",
                           ShapeString(shape));
  }
  DEEPPCR_ASSIGN_OR_RETURN(model.calibration_inputs, ToFloat(*inputs));
  model.num_calibration = shape[0];
  return absl::OkStatus();
}

absl::Status ReadCalibration(const std::string& directory, const ModelLimits& limits,
                             Model& model) {
  const absl::StatusOr<std::string> bytes =
      ReadFile(PathOf(directory, kCalibrationFile), limits.max_weights_bytes);
  if (absl::IsNotFound(bytes.status())) return absl::OkStatus();
  DEEPPCR_RETURN_IF_ERROR(bytes.status());
  const absl::StatusOr<Tensors> tensors = ParseSafetensors(*bytes);
  DEEPPCR_RETURN_IF_ERROR(WithContext(tensors.status(), kCalibrationFile));
  return WithContext(UseCalibration(*tensors, model), kCalibrationFile);
}

}  // namespace

absl::StatusOr<Model> ReadModel(const std::string& directory, const ModelLimits& limits) {
  Model model;
  DEEPPCR_RETURN_IF_ERROR(ReadConfig(directory, limits, model));
  DEEPPCR_RETURN_IF_ERROR(ReadWeights(directory, limits, model));
  DEEPPCR_RETURN_IF_ERROR(ReadCalibration(directory, limits, model));
  return model;
}

}  // namespace deeppcr
