// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_LOADED_MODEL_RIG_H_
#define DEEPPCR_TESTS_KERNELS_LOADED_MODEL_RIG_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/engine.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {

using LoadedPtr = std::shared_ptr<const LoadedModel>;

// A small ResNet in a folder of its own, and a cache of plans.
class LoadedModelRig : public ::testing::Test {
 protected:
  static constexpr int64_t kSteps = 64, kWidth = 8;
  static constexpr char kConfig[] =
      R"({"model_type":"resnet","input_dim":8,"output_dim":8,"state_dim":8,"num_layers":64,)"
      R"("activation":"tanh","max_batch_size":2})";

  static std::vector<float> Normal(int64_t count) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0F, 0.3F);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
  }

  void SetUp() override {
    ASSERT_TRUE(
        WriteModel(model_.path(), kConfig,
                   {{"layers.weight", {kSteps, kWidth, kWidth}, Normal(kSteps * kWidth * kWidth)},
                    {"layers.bias", {kSteps, kWidth}, Normal(kSteps * kWidth)}})
            .ok());
  }

  auto NotesProblems() {
    return [this](LoadNews news, std::string_view text) {
      if (news == LoadNews::kProblem) problems_ += std::string(text) + "\n";
    };
  }
  // Loads the model; problems_ then has the problems of the load.
  absl::StatusOr<LoadedPtr> Load(int64_t max_workspace_bytes = int64_t{1} << 28) {
    problems_.clear();
    return LoadWith({.backend = "cpu",
                     .num_threads = 1,
                     .plan_cache_dir = plans_.path(),
                     .max_workspace_bytes = max_workspace_bytes});
  }
  absl::StatusOr<LoadedPtr> LoadWith(const EngineOptions& options,
                                     std::span<const LoadedPtr> loaded = {}) {
    problems_.clear();
    auto engine = Engine::Create(options);
    if (!engine.ok()) return engine.status();
    engines_.push_back(*std::move(engine));
    return engines_.back()->LoadModel(model_.path(), NotesProblems(), token_, loaded);
  }

  TemporaryDirectory model_;
  TemporaryDirectory plans_;
  std::vector<std::unique_ptr<Engine>> engines_;  // engines outlive their models
  std::string problems_;
  const CancelToken* token_ = nullptr;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_KERNELS_LOADED_MODEL_RIG_H_
