// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_SERVER_MODELS_MODEL_STORE_RIG_H_
#define DEEPPCR_TESTS_SERVER_MODELS_MODEL_STORE_RIG_H_

// A store over a repository of fake models.

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "server/models/model_store.h"
#include "tests/testing/fake_engine.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {

class ModelStoreRig : public ::testing::Test {
 protected:
  ModelStoreRig()
      : engine_([this](const std::string& directory) { return Load(directory); }),
        metrics_({"sequential"}, "v", "d", "b"),
        logger_(LogFormat::kText, LogLevel::kDebug,
                [this](std::string_view line) { log_ += line; }),
        store_(
            {.repository = repository_.path(), .unload_patience = std::chrono::milliseconds(200)},
            engine_, metrics_, logger_) {}

  // Writes a model directory for the fake engine: the config is the error of loading it, or empty.
  void Write(const std::string& name, const std::string& version, const std::string& error = "") {
    const std::filesystem::path directory =
        std::filesystem::path(repository_.path()) / name / version;
    std::filesystem::create_directories(directory);
    std::ofstream(directory / "config.json") << error;
  }

  absl::StatusOr<std::shared_ptr<const LoadedModel>> Load(const std::string& directory) {
    std::ifstream file(std::filesystem::path(directory) / "config.json");
    std::string error;
    if (fault_ != absl::StatusCode::kOk) {
      return absl::Status(fault_, "cannot open " + directory + "/config.json");
    }
    if (!refusal_.ok()) return refusal_;
    if (!file.is_open()) return absl::NotFoundError("config.json is not there");
    if (std::getline(file, error)) return absl::InvalidArgumentError(error);
    auto model = std::make_shared<FakeModel>();
    if (change_) change_(model.get());
    return model;
  }

  TemporaryDirectory repository_;
  std::function<void(FakeModel*)> change_;          // applied to every model that is loaded
  absl::StatusCode fault_ = absl::StatusCode::kOk;  // error of every load, unless kOk
  absl::Status refusal_;                            // of every load, unless OK
  std::string log_;
  FakeEngine engine_;
  Metrics metrics_;
  Logger logger_;
  ModelStore store_;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_SERVER_MODELS_MODEL_STORE_RIG_H_
