// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_MODEL_H_
#define DEEPPCR_KERNELS_MODEL_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/cancel_token.h"
#include "kernels/model/config.h"
#include "kernels/model/reverse_process.h"
#include "kernels/model/scheduler_config.h"
#include "kernels/model/weights.h"
#include "kernels/problem/spec.h"

namespace deeppcr {

struct ModelLimits {
  int64_t max_weights_bytes = int64_t{1} << 30;
  int64_t max_config_bytes = int64_t{1} << 20;
  const CancelToken* token = nullptr;  // may be null; fired: kCancelled
};

// Storage of the spans of the systems of a diffusion model. Shapes: DenoiserSpec, DiffusionSpec.
struct DiffusionStorage {
  std::vector<float> input_weight, input_bias, output_weight, output_bias;
  std::vector<float> first_weight, first_bias, second_weight, second_bias;
  std::vector<float> norm_weight, norm_bias;
  std::vector<float> modulation_weight, modulation_bias;
  std::vector<float> class_embedding, condition_weight, condition_bias;
  std::vector<std::vector<float>> decoder_weights, decoder_biases;  // one of each per layer
  std::vector<DenseSpec> decoder;
  // One of each per entry of num_inference_steps; the tables of betas are left out.
  std::vector<ReverseProcess> processes;
  std::vector<std::vector<double>> time_embeddings;
};

// A model as read from its directory: everything validated, everything finite, float32.
// `systems` point into the other members, so a Model moves but is never copied.
struct Model {
  Model() = default;
  Model(Model&&) = default;
  Model& operator=(Model&&) = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  ModelConfig config;
  std::string config_json;     // the file as it is
  SchedulerConfig scheduler;   // for families with a scheduler_config.json
  std::string scheduler_json;  // the file as it is; empty for other families
  std::string weights_sha256;  // SHA-256 of model.safetensors, lower-case hex
  // Systems for backends: a dense stack is one system, a diffusion model one per number of
  // inference steps, the default first.
  std::vector<SystemSpec> systems;
  // Storage of the spans of a dense stack. Recurrent weights that came one tensor per layer are
  // stacked here.
  std::vector<float> weights, biases;
  std::vector<float> encode_weight, encode_bias, decode_weight, decode_bias;
  DiffusionStorage diffusion;
  // Sample inputs [num_calibration, input_dim] from calibration.safetensors; may be empty.
  std::vector<float> calibration_inputs;
  int64_t num_calibration = 0;
};

// Reads <directory>/config.json, model.safetensors, scheduler_config.json if the family has one,
// and, if there, calibration.safetensors. Allocates nothing large for sizes that files only claim.
// Errors: kNotFound (missing file), kInvalidArgument (names the file and the key or tensor, what
// was expected, what came), kResourceExhausted (larger than the limits).
absl::StatusOr<Model> ReadModel(const std::string& directory, const ModelLimits& limits);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_MODEL_H_
