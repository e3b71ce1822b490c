// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_MODEL_H_
#define DEEPPCR_KERNELS_MODEL_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend/system_spec.h"
#include "kernels/model/config.h"
#include "kernels/model/weights.h"

namespace deeppcr {

struct ModelLimits {
  int64_t max_weights_bytes = int64_t{1} << 30;
  int64_t max_config_bytes = int64_t{1} << 20;
};

// A model as read from its directory: everything validated, everything finite, float32.
// `spec` points into the other members, so a Model moves but is never copied.
struct Model {
  Model() = default;
  Model(Model&&) = default;
  Model& operator=(Model&&) = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  ModelConfig config;
  std::string config_json;     // the file as it is
  std::string weights_sha256;  // of model.safetensors, lower-case hex
  SystemSpec spec;
  // Storage of spec's spans. Recurrent weights that came one tensor per layer are stacked here.
  std::vector<float> weights, biases;
  std::vector<float> encode_weight, encode_bias, decode_weight, decode_bias;
  // Sample inputs [num_calibration, input_dim] from calibration.safetensors; may be empty.
  std::vector<float> calibration_inputs;
  int64_t num_calibration = 0;
};

// Reads <directory>/config.json, model.safetensors and, if there, calibration.safetensors.
// Errors: kNotFound (missing file), kInvalidArgument (names the file and the key or tensor, what
// was expected, what came), kResourceExhausted (larger than the limits).
absl::StatusOr<Model> ReadModel(const std::string& directory, const ModelLimits& limits);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_MODEL_H_
