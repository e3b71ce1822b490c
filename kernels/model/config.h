// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_CONFIG_H_
#define DEEPPCR_KERNELS_MODEL_CONFIG_H_

// config.json, the description of a model. One table of keys drives the parser and the
// documentation.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/problems.h"
#include "kernels/problem/spec.h"

namespace deeppcr {

// Names of the inputs of denoiser.onnx; all empty: by their order.
struct DenoiserInputs {
  std::string state, time, condition;

  bool operator==(const DenoiserInputs&) const = default;
};

struct ModelConfig {
  std::string model_type;  // a name of ModelFamilies()
  int64_t input_dim = 0;   // conditioning_dim for diffusion
  int64_t output_dim = 0;
  int64_t state_dim = 0;   // D; of a sampler that carries a memory: without it
  int64_t num_layers = 0;  // L; 0 for diffusion, see num_inference_steps
  Activation activation = Activation::kIdentity;
  double residual_scale = 1.0;  // s; finite and not 0, also as float32; 1 where the family has none
  int32_t max_batch_size = 64;
  Activation input_activation = Activation::kIdentity;
  std::vector<std::string> labels;  // output_dim labels, or empty

  // Of stacks: initialisers of block.onnx that all layers share.
  std::vector<std::string> shared_weights;

  // Members of diffusion models.
  bool denoiser_program = false;  // denoiser.onnx, in place of a named one
  DenoiserInputs denoiser_inputs;
  DenoiserKind denoiser = DenoiserKind::kResidualMlp;
  int64_t hidden_dim = 0;                    // H
  int64_t num_blocks = 0;                    // N
  int64_t time_embedding_dim = 0;            // E, even
  std::string tensor_prefix;                 // of the names in model.safetensors; may be empty
  std::vector<int64_t> num_inference_steps;  // 1 to 8 distinct numbers, the default first
  int64_t num_classes = 0;                   // at most one of this and conditioning_dim is not 0
  int64_t conditioning_dim = 0;
  // No condition, of models that were trained with and without (classifier-free guidance).
  std::optional<int64_t> null_class;    // in [0, num_classes)
  std::vector<float> null_condition;    // [conditioning_dim], or empty: requests bring it
  std::vector<int64_t> decoder_widths;  // widths of the hidden layers; at most 8
  Activation decoder_activation = Activation::kRelu;
  double eta = 0.0;          // in [0, 1]
  std::optional<double> mu;  // finite
  bool use_clipped_model_output = false;
  bool diffusers_compatible = false;
  std::vector<int64_t> image_shape;  // height, width and maybe channels; or empty
  // Of scheduler_config.json, not of config.json: the denoiser's output is [m, v], of 2 D.
  bool learned_variance = false;

  bool operator==(const ModelConfig&) const = default;
};

// One key that config.json may hold.
struct ConfigKey {
  std::string_view name;
  std::string_view type;           // in words
  std::string_view default_value;  // in words; "required" if the families need the key
  std::string_view families;       // model types that take it, separated by ", "; "all"
  std::string_view meaning;
  int64_t min = 0;  // range of integers, alone or in an array, inclusive
  int64_t max = 0;
  // Checks type and range and stores the value.
  absl::Status (*read)(const nlohmann::json& value, const ConfigKey& key, ModelConfig& config);
  // Of diffusion models: only with a named denoiser, as denoiser.onnx says it itself; only with
  // denoiser.onnx.
  enum class Denoiser : uint8_t { kEither, kNamed, kProgram } denoiser = Denoiser::kEither;
};

// Every key, in the order of the documentation and of reading: a row may rely on those before it.
// Static storage.
std::span<const ConfigKey> ConfigKeys();

// Names the activation, or the allowed ones: kInvalidArgument.
absl::StatusOr<Activation> ParseActivation(std::string_view name);
std::string_view NameOf(Activation activation);
std::string_view NameOf(DenoiserKind denoiser);

// Reads and validates config.json against `keys` and across keys: labels and image_shape against
// output_dim, the number of parameters and of modulation values. The caller limits the size of the
// text. Errors: kInvalidArgument naming the key, what was expected, what came. With `all`, reads on
// after a wrong key and leaves there what was wrong.
absl::StatusOr<ModelConfig> ParseConfig(std::string_view json,
                                        std::span<const ConfigKey> keys = ConfigKeys(),
                                        Problems* all = nullptr);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_CONFIG_H_
