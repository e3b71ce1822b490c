// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_MODEL_CONFIG_CASE_H_
#define DEEPPCR_TESTS_KERNELS_MODEL_CONFIG_CASE_H_

// JSON texts of config.json, for the tests of its parser.

#include <string>
#include <string_view>

#include "kernels/base/json.h"
#include "kernels/base/strings.h"
#include "kernels/model/config.h"

namespace deeppcr::testing {

inline nlohmann::json MinimalConfig(std::string_view model_type = "mlp") {
  nlohmann::json object = {{"model_type", model_type}, {"output_dim", 2}, {"state_dim", 4}};
  if (model_type != "stack") object["activation"] = "tanh";
  if (model_type == "diffusion") {
    object.update({{"denoiser", "adaln_mlp"},
                   {"hidden_dim", 8},
                   {"num_blocks", 3},
                   {"time_embedding_dim", 6},
                   {"num_inference_steps", 10}});
  } else {
    object.update({{"input_dim", 3}, {"num_layers", 16}});
  }
  return object;
}

// The minimal config of a model type, with one key set to this JSON text.
inline std::string ConfigWith(std::string_view key, std::string_view value,
                              std::string_view type = "mlp") {
  nlohmann::json object = MinimalConfig(type);
  object.erase(std::string(key));
  std::string text = object.dump();
  text.pop_back();
  return StrCat(text, ",\"", key, "\":", value, "}");
}

// The smallest config of a denoiser from a file, with one key more.
inline std::string ProgramConfigWith(std::string_view key, std::string_view value) {
  nlohmann::json object = MinimalConfig("diffusion");
  object["denoiser"] = "onnx";
  for (const ConfigKey& row : ConfigKeys()) {
    if (row.denoiser == ConfigKey::Denoiser::kNamed) object.erase(std::string(row.name));
  }
  object.erase(std::string(key));
  std::string text = object.dump();
  text.pop_back();
  return StrCat(text, ",\"", key, "\":", value, "}");
}

// A model type that accepts the key.
inline std::string TypeFor(const ConfigKey& key) {
  if (key.families == "all") return "mlp";
  return std::string(key.families.substr(0, key.families.find(',')));
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_KERNELS_MODEL_CONFIG_CASE_H_
