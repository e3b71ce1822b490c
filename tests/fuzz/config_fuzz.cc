// SPDX-License-Identifier: Apache-2.0
// The parser of config.json. Accepted configs are checked against limits written down here, and
// against the reading of a plain JSON parser.

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "kernels/model/config.h"
#include "kernels/model/registry.h"
#include "tests/fuzz/fuzz_target.h"

namespace deeppcr::fuzz {
namespace {

#if defined(DEEPPCR_FUZZ_PLANTED_BUG)
// Forgets the range of one key: num_layers takes any integer.
absl::StatusOr<ModelConfig> Parse(std::string_view text) {
  std::vector<ConfigKey> keys(ConfigKeys().begin(), ConfigKeys().end());
  for (ConfigKey& key : keys) {
    if (key.name == "num_layers") key.max = INT64_MAX;
  }
  return ParseConfig(text, keys);
}
#else
absl::StatusOr<ModelConfig> Parse(std::string_view text) { return ParseConfig(text); }
#endif

bool Within(int64_t value, int64_t max) { return value >= 1 && value <= max; }

void RequireStackLimits(const ModelConfig& config) {
  Require(Within(config.input_dim, 65536), "input_dim is in range");
  Require(Within(config.num_layers, 1 << 20), "num_layers is in range");
  const float scale = static_cast<float>(config.residual_scale);
  Require(std::isfinite(scale) && scale != 0.0F, "residual_scale is finite and not 0");
  Require(config.model_type == "resnet" || scale == 1.0F, "nothing else has a residual_scale");
  Require(config.labels.empty() || std::cmp_equal(config.labels.size(), config.output_dim),
          "labels name every output or none");
  // A block says itself how large it is.
  if (config.model_type == "stack") return;
  const double parameters = static_cast<double>(config.num_layers) *
                            static_cast<double>(config.state_dim) *
                            static_cast<double>(config.state_dim);
  Require(parameters <= 0x1p33, "parameters are bounded");
}

void RequireSoundImage(const ModelConfig& config) {
  const std::vector<int64_t>& shape = config.image_shape;
  if (shape.empty()) return;
  Require(shape.size() == 2 || shape.size() == 3, "an image has 2 or 3 extents");
  Require(Within(shape[0], 65536) && Within(shape[1], 65536), "an image's extents are in range");
  const int64_t channels = shape.size() == 3 ? shape[2] : 1;
  Require(channels == 1 || channels == 3, "an image has 1 or 3 channels");
  Require(shape[0] * shape[1] * channels == config.output_dim, "an image is an output");
}

// Bounds the weights of the blocks and of the decoder, and the modulation of all steps.
void RequireBoundedTables(const ModelConfig& config) {
  const bool ada_ln = config.denoiser == DenoiserKind::kAdaLnMlp;
  const auto hidden = static_cast<double>(config.hidden_dim);
  const auto blocks = static_cast<double>(config.num_blocks);
  const double modulation = hidden * (ada_ln ? 3 * blocks + 2 : blocks);
  double parameters = hidden * hidden * blocks * (ada_ln ? 2 : 1) + hidden * modulation;
  double cols = static_cast<double>(config.state_dim);
  for (const int64_t width : config.decoder_widths) {
    parameters += cols * static_cast<double>(width);
    cols = static_cast<double>(width);
  }
  Require(parameters <= 0x1p33, "parameters are bounded");
  double steps = 0;
  for (const int64_t count : config.num_inference_steps) steps += static_cast<double>(count);
  Require(steps * modulation <= 0x1p31, "modulation values are bounded");
}

void RequireDiffusionLimits(const ModelConfig& config) {
  // A denoiser from a file says itself how large it is.
  const bool named = !config.denoiser_program;
  Require(!named || Within(config.hidden_dim, 4096), "hidden_dim is in range");
  Require(!named || Within(config.num_blocks, 64), "num_blocks is in range");
  Require(!named || (Within(config.time_embedding_dim, 4096) && config.time_embedding_dim % 2 == 0),
          "time_embedding_dim is even and in range");
  Require(named ? config.tensor_prefix.size() <= 256 : config.tensor_prefix.empty(),
          "tensor_prefix is bounded, and of named denoisers");
  const std::vector<int64_t>& counts = config.num_inference_steps;
  Require(!counts.empty() && counts.size() <= 8, "there are 1 to 8 numbers of steps");
  Require(std::set<int64_t>(counts.begin(), counts.end()).size() == counts.size(),
          "numbers of steps are distinct");
  for (const int64_t count : counts) Require(Within(count, 65536), "steps are in range");
  Require(config.num_classes >= 0 && config.num_classes <= 65536, "num_classes is in range");
  Require(config.conditioning_dim >= 0 && config.conditioning_dim <= 16384,
          "conditioning_dim is in range");
  Require(config.num_classes == 0 || config.conditioning_dim == 0, "there is one condition");
  Require(config.input_dim == config.conditioning_dim, "the input is the condition");
  Require(config.decoder_widths.size() <= 8, "a decoder has at most 8 hidden layers");
  for (const int64_t width : config.decoder_widths) {
    Require(Within(width, 65536), "decoder_widths are in range");
  }
  Require(config.eta >= 0.0 && config.eta <= 1.0, "eta is in range");
  RequireSoundImage(config);
  RequireBoundedTables(config);
}

void RequireLimits(const ModelConfig& config) {
  Require(Within(config.output_dim, 65536), "output_dim is in range");
  Require(Within(config.state_dim, 4096), "state_dim is in range");
  Require(Within(config.max_batch_size, 4096), "max_batch_size is in range");
  if (config.model_type == "diffusion") return RequireDiffusionLimits(config);
  Require(FindModelFamily(config.model_type) != nullptr, "model_type is a family");
  RequireStackLimits(config);
}

using Integers = std::vector<int64_t>;

void RequireSameStack(const ModelConfig& config, const nlohmann::json& object) {
  Require(object["input_dim"] == config.input_dim, "input_dim is as given");
  Require(object["num_layers"] == config.num_layers, "num_layers is as given");
  Require(object.value("input_activation", "identity") == NameOf(config.input_activation),
          "input_activation is as given or identity");
  Require(object.value("shared_weights", std::vector<std::string>{}) == config.shared_weights,
          "shared_weights are as given or none");
}

void RequireSameDiffusion(const ModelConfig& config, const nlohmann::json& object) {
  Require(object["denoiser"] ==
              (config.denoiser_program ? "onnx" : std::string(NameOf(config.denoiser))),
          "denoiser is as given");
  Require(object.value("hidden_dim", 0) == config.hidden_dim, "hidden_dim is as given");
  Require(object.value("num_blocks", 0) == config.num_blocks, "num_blocks is as given");
  Require(object.value("time_embedding_dim", 0) == config.time_embedding_dim,
          "time_embedding_dim is as given");
  Require(object.value("tensor_prefix", "") == config.tensor_prefix,
          "tensor_prefix is as given or none");
  const nlohmann::json& counts = object["num_inference_steps"];
  Require(counts.is_array() ? counts == config.num_inference_steps
                            : Integers{counts.get<int64_t>()} == config.num_inference_steps,
          "num_inference_steps is as given, in its order");
  Require(object.value("num_classes", 0) == config.num_classes, "num_classes is as given or 0");
  Require(object.value("conditioning_dim", 0) == config.conditioning_dim,
          "conditioning_dim is as given or 0");
  Require(object.value("decoder_widths", Integers{}) == config.decoder_widths,
          "decoder_widths is as given or none");
  Require(object.value("decoder_activation", "relu") == NameOf(config.decoder_activation),
          "decoder_activation is as given or relu");
  Require(object.value("eta", 0.0) == config.eta, "eta is as given or 0");
  Require(object.value("use_clipped_model_output", false) == config.use_clipped_model_output,
          "use_clipped_model_output is as given or false");
  Require(object.contains("mu") == config.mu.has_value(), "mu is as given or none");
  Require(object.value("diffusers_compatible", false) == config.diffusers_compatible,
          "diffusers_compatible is as given or false");
  Require(object.value("image_shape", Integers{}) == config.image_shape,
          "image_shape is as given or none");
}

// Compares with the reading of a parser with other habits: the last of two equal keys wins.
void RequireSameReading(const ModelConfig& config, std::string_view text) {
  size_t num_keys = 0;
  const auto count_keys = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json&) {
    num_keys += depth == 1 && event == nlohmann::json::parse_event_t::key ? 1 : 0;
    return true;
  };
  const nlohmann::json object = nlohmann::json::parse(text, count_keys, /*allow_exceptions=*/false);
  Require(object.is_object(), "an accepted text is a JSON object");
  Require(object.size() == num_keys, "no key is given twice");
  Require(object["model_type"] == config.model_type, "model_type is as given");
  Require(object["output_dim"] == config.output_dim, "output_dim is as given");
  Require(object["state_dim"] == config.state_dim, "state_dim is as given");
  Require(object.value("activation", "identity") == std::string(NameOf(config.activation)),
          "activation is as given, or left to a file");
  Require(object.value("max_batch_size", 64) == config.max_batch_size,
          "max_batch_size is as given or 64");
  if (config.model_type == "diffusion") {
    RequireSameDiffusion(config, object);
  } else {
    RequireSameStack(config, object);
  }
  const absl::StatusOr<ModelConfig> again = Parse(object.dump());
  Require(again.ok() && *again == config, "a config that is written out reads the same");
}

}  // namespace

bool TryInput(std::string_view bytes) {
  const absl::StatusOr<ModelConfig> config = Parse(bytes);
  if (!config.ok()) {
    RequireCleanRefusal(config.status());
    return false;
  }
  RequireLimits(*config);
  RequireSameReading(*config, bytes);
  return true;
}

}  // namespace deeppcr::fuzz
