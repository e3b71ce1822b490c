// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_DIFFUSION_TENSORS_H_
#define DEEPPCR_TESTS_TESTING_DIFFUSION_TENSORS_H_

// The tensors of a diffusion model, for tests that need one.

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/model/config.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {

// A tensor of values in [-0.5, 0.5] that no other position and no other `seed` repeats.
inline NamedTensor WavyTensor(std::string name, std::vector<int64_t> shape, size_t seed) {
  NamedTensor tensor{std::move(name), std::move(shape), {}};
  size_t size = 1;
  for (const int64_t extent : tensor.shape) size *= static_cast<size_t>(extent);
  for (size_t i = 0; i < size; ++i) {
    const auto phase = static_cast<double>(1000 * seed + i);
    tensor.values.push_back(static_cast<float>(0.5 * std::sin(1.0 + 0.7 * phase)));
  }
  return tensor;
}

// Appends tensors in the order of kernels/model/diffusion.h.
class DiffusionTensorMaker {
 public:
  explicit DiffusionTensorMaker(const ModelConfig& config) : config_(config) {}

  std::vector<NamedTensor> Make() && {
    const int64_t H = config_.hidden_dim;
    AddDense("input_proj", H, config_.state_dim);
    AddDense("time_embed.mlp.0", H, config_.time_embedding_dim);
    AddDense("time_embed.mlp.2", H, H);
    if (config_.num_classes > 0) Add("class_embed.weight", {config_.num_classes, H});
    if (config_.conditioning_dim > 0) AddDense("cond_embed", H, config_.conditioning_dim);
    AddDense("final_layer.linear", (config_.learned_variance ? 2 : 1) * config_.state_dim, H);
    for (int64_t i = 0; i < config_.num_blocks; ++i) AddBlock("res_blocks." + std::to_string(i));
    if (config_.denoiser == DenoiserKind::kAdaLnMlp) {
      AddDense("final_layer.adaLN_modulation.1", 2 * H, H);
    }
    AddDecoder();
    return std::move(tensors_);
  }

 private:
  void Add(std::string name, std::vector<int64_t> shape) {
    tensors_.push_back(WavyTensor(std::move(name), std::move(shape), tensors_.size()));
  }
  void AddDense(const std::string& prefix, int64_t rows, int64_t cols) {
    Add(prefix + ".weight", {rows, cols});
    Add(prefix + ".bias", {rows});
  }
  void AddBlock(const std::string& prefix) {
    const int64_t H = config_.hidden_dim;
    if (config_.denoiser == DenoiserKind::kResidualMlp) {
      AddDense(prefix + ".linear", H, H);
      AddDense(prefix + ".modulation", H, H);
      return;
    }
    Add(prefix + ".in_ln.weight", {H});
    Add(prefix + ".in_ln.bias", {H});
    AddDense(prefix + ".mlp.0", H, H);
    AddDense(prefix + ".mlp.2", H, H);
    AddDense(prefix + ".adaLN_modulation.1", 3 * H, H);
  }
  void AddDecoder() {
    std::vector<int64_t> widths = config_.decoder_widths;
    if (widths.empty() && config_.output_dim == config_.state_dim) return;
    widths.push_back(config_.output_dim);
    int64_t cols = config_.state_dim;
    for (size_t j = 0; j < widths.size(); cols = widths[j++]) {
      AddDense("decoder." + std::to_string(j), widths[j], cols);
    }
  }

  const ModelConfig& config_;
  std::vector<NamedTensor> tensors_;
};

// Every tensor that this config needs: a decoder only where it has decoder_widths or where
// output_dim differs from state_dim.
inline std::vector<NamedTensor> DiffusionTensors(const ModelConfig& config) {
  return DiffusionTensorMaker(config).Make();
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_DIFFUSION_TENSORS_H_
