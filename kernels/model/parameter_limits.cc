// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/parameter_limits.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/model/denoiser_tensors.h"

namespace deeppcr {
namespace {

constexpr int64_t kMaxParameters = int64_t{1} << 33;
constexpr int64_t kMaxModulationValues = int64_t{1} << 27;
// Products of the time embeddings of all steps: some ten seconds.
constexpr int64_t kMaxTimeProducts = int64_t{1} << 35;
constexpr int64_t kMaxProductsOnDemand = int64_t{1} << 34;

absl::StatusOr<int64_t> NumParameters(std::span<const LayersExtent> all) {
  int64_t sum = 0;
  for (const LayersExtent& layers : all) {
    DEEPPCR_ASSIGN_OR_RETURN(const int64_t product,
                             CheckedProduct({layers.count, layers.rows, layers.cols}));
    if (__builtin_add_overflow(sum, product, &sum)) {
      return InvalidArgument("the number of parameters overflows 64 bits");
    }
  }
  return sum;
}

absl::Status CheckStack(const ModelConfig& config) {
  // The layers of a stack of blocks are as block.onnx says.
  const int64_t own_layers = config.model_type == "stack" ? 0 : config.num_layers;
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t parameters,
                           NumParameters(std::array<LayersExtent, 3>{
                               {{own_layers, config.state_dim, config.state_dim + 1},
                                {1, config.state_dim, config.input_dim + 1},
                                {1, config.output_dim, config.state_dim + 1}}}));
  if (parameters <= kMaxParameters) return absl::OkStatus();
  return InvalidArgument("num_layers ", config.num_layers, " x state_dim ", config.state_dim,
                         ": expected at most ", kMaxParameters, " parameters, got ", parameters);
}

// Values that the time and the condition contribute to one step.
int64_t ModulationDim(const ModelConfig& config) {
  const DenoiserSpec denoiser{
      .kind = config.denoiser, .hidden_dim = config.hidden_dim, .num_blocks = config.num_blocks};
  return denoiser.modulation_dim();
}

std::vector<LayersExtent> DiffusionLayers(const ModelConfig& config) {
  std::vector<LayersExtent> all;
  if (!config.denoiser_program) all = DenoiserLayers(config);
  int64_t cols = config.state_dim;
  for (const int64_t rows : config.decoder_widths) {
    all.push_back({1, rows, cols + 1});
    cols = rows;
  }
  all.push_back({1, config.output_dim, cols + 1});
  return all;
}

// Products that the time embedding of one step takes.
int64_t TimeProducts(const ModelConfig& config) {
  return config.hidden_dim * (config.time_embedding_dim + config.hidden_dim);
}

// A backend keeps the modulation of every step of every number of steps.
absl::Status CheckModulation(const ModelConfig& config) {
  const int64_t per_step = ModulationDim(config);
  int64_t steps = 0;
  for (const int64_t count : config.num_inference_steps) steps += count;
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t values, CheckedProduct({steps, per_step}));
  if (values > kMaxModulationValues)
    return InvalidArgument("num_inference_steps: expected at most ", kMaxModulationValues,
                           " modulation values, got ", values, ": ", steps, " steps in all x ",
                           per_step, " values of num_blocks ", config.num_blocks,
                           " and hidden_dim ", config.hidden_dim);
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t products, CheckedProduct({steps, TimeProducts(config)}));
  if (products <= kMaxTimeProducts) return absl::OkStatus();
  return InvalidArgument("num_inference_steps: expected at most ", kMaxTimeProducts,
                         " products for the time embedding, got ", products, ": ", steps,
                         " steps in all x hidden_dim ", config.hidden_dim,
                         " x (time_embedding_dim ", config.time_embedding_dim, " + hidden_dim)");
}

absl::Status CheckDiffusion(const ModelConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t parameters, NumParameters(DiffusionLayers(config)));
  if (parameters > kMaxParameters) {
    return InvalidArgument("hidden_dim, num_blocks, num_classes, decoder_widths: expected at most ",
                           kMaxParameters, " parameters, got ", parameters);
  }
  return config.denoiser_program ? absl::OkStatus() : CheckModulation(config);
}

}  // namespace

absl::Status CheckParameters(const ModelConfig& config) {
  return config.model_type == "diffusion" ? CheckDiffusion(config) : CheckStack(config);
}

int64_t MaxStepsOnDemand(const ModelConfig& config) {
  const int64_t values = ModulationDim(config);
  return std::min(kMaxModulationValues / values,
                  kMaxProductsOnDemand / (TimeProducts(config) + values * config.hidden_dim));
}

}  // namespace deeppcr
