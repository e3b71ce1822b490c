// SPDX-License-Identifier: Apache-2.0
// The parser of config.json. An accepted config is checked against the limits written down here,
// and against what a plain JSON parser makes of the text.

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "kernels/model/config.h"
#include "tests/fuzz/fuzz_target.h"

namespace deeppcr::fuzz {
namespace {

#if defined(DEEPPCR_FUZZ_PLANTED_BUG)
// The range of one key is forgotten: num_layers takes any integer.
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

void RequireLimits(const ModelConfig& config) {
  Require(config.model_type == "mlp" || config.model_type == "resnet", "model_type is a family");
  Require(Within(config.input_dim, 65536), "input_dim is in range");
  Require(Within(config.output_dim, 65536), "output_dim is in range");
  Require(Within(config.state_dim, 4096), "state_dim is in range");
  Require(Within(config.num_layers, 1 << 20), "num_layers is in range");
  Require(Within(config.max_batch_size, 4096), "max_batch_size is in range");
  const float scale = static_cast<float>(config.residual_scale);
  Require(std::isfinite(scale) && scale != 0.0F, "residual_scale is finite and not 0");
  Require(config.model_type == "resnet" || scale == 1.0F, "an mlp has no residual_scale");
  Require(config.labels.empty() || std::cmp_equal(config.labels.size(), config.output_dim),
          "labels name every output or none");
  const double parameters = static_cast<double>(config.num_layers) *
                            static_cast<double>(config.state_dim) *
                            static_cast<double>(config.state_dim);
  Require(parameters <= 0x1p33, "parameters are bounded");
}

// What a parser with other habits (the last of two equal keys wins) reads from the text.
void RequireSameReading(const ModelConfig& config, std::string_view text) {
  size_t num_keys = 0;
  const auto count_keys = [&](int, nlohmann::json::parse_event_t event, nlohmann::json&) {
    num_keys += event == nlohmann::json::parse_event_t::key ? 1 : 0;
    return true;
  };
  const nlohmann::json object = nlohmann::json::parse(text, count_keys, /*allow_exceptions=*/false);
  Require(object.is_object(), "an accepted text is a JSON object");
  Require(object.size() == num_keys, "no key is given twice");
  Require(object["model_type"] == config.model_type, "model_type is as given");
  Require(object["input_dim"] == config.input_dim, "input_dim is as given");
  Require(object["output_dim"] == config.output_dim, "output_dim is as given");
  Require(object["state_dim"] == config.state_dim, "state_dim is as given");
  Require(object["num_layers"] == config.num_layers, "num_layers is as given");
  Require(object["activation"] == std::string(NameOf(config.activation)), "activation is as given");
  Require(object.value("max_batch_size", 64) == config.max_batch_size,
          "max_batch_size is as given or 64");
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
