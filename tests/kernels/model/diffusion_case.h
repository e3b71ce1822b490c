// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_MODEL_DIFFUSION_CASE_H_
#define DEEPPCR_TESTS_KERNELS_MODEL_DIFFUSION_CASE_H_

// Small diffusion models, for the tests of their loader.

#include <string>
#include <vector>

#include "kernels/model/diffusion.h"
#include "tests/testing/diffusion_tensors.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {

inline constexpr int64_t kState = 2;
inline constexpr int64_t kHidden = 3;
inline constexpr int64_t kBlocks = 2;
inline constexpr int64_t kEmbedding = 4;

inline ModelConfig Config(DenoiserKind denoiser = DenoiserKind::kResidualMlp) {
  ModelConfig config;
  config.model_type = "diffusion";
  config.output_dim = config.state_dim = kState;
  config.activation = Activation::kGelu;
  config.denoiser = denoiser;
  config.hidden_dim = kHidden;
  config.num_blocks = kBlocks;
  config.time_embedding_dim = kEmbedding;
  config.num_inference_steps = {9, 4};
  return config;
}

// A config with everything that a model may have.
inline ModelConfig Full(DenoiserKind denoiser, bool classes) {
  ModelConfig config = Config(denoiser);
  (classes ? config.num_classes : config.conditioning_dim) = 5;
  config.input_dim = config.conditioning_dim;
  config.decoder_widths = {7, 6};
  config.output_dim = 8;
  return config;
}

inline SchedulerConfig Scheduler() {
  SchedulerConfig scheduler;
  scheduler.scheduler_class = SchedulerClass::kDdim;
  scheduler.num_train_timesteps = 20;
  scheduler.clip_sample_range = 2.5;
  return scheduler;
}

inline absl::Status LoadInto(const std::vector<NamedTensor>& tensors, const ModelLimits& limits,
                             Model& model) {
  const std::string bytes = SerializeSafetensors(tensors);
  const absl::StatusOr<Tensors> parsed = ParseSafetensors(bytes);
  if (!parsed.ok()) return parsed.status();
  const absl::Status status = LoadDiffusionScheduler(limits, model);
  return status.ok() ? LoadDiffusion(*parsed, limits, model) : status;
}

inline absl::StatusOr<Model> Load(const std::vector<NamedTensor>& tensors,
                                  const ModelConfig& config, const ModelLimits& limits = {}) {
  Model model;
  model.config = config;
  model.scheduler = Scheduler();
  const absl::Status status = LoadInto(tensors, limits, model);
  if (!status.ok()) return status;
  return model;
}

inline absl::StatusOr<Model> Load(const ModelConfig& config) {
  return Load(DiffusionTensors(config), config);
}

// The same tensors under names that begin with `prefix`.
inline std::vector<NamedTensor> WithPrefix(std::string_view prefix,
                                           std::vector<NamedTensor> tensors) {
  for (NamedTensor& tensor : tensors) tensor.name.insert(0, prefix);
  return tensors;
}

inline void ExpectRefused(const std::vector<NamedTensor>& tensors, const ModelConfig& config,
                          const std::string& message_part) {
  ExpectError(Load(tensors, config), absl::StatusCode::kInvalidArgument, message_part);
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_KERNELS_MODEL_DIFFUSION_CASE_H_
