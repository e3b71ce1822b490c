// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/math/dense_chain.h"

#include <algorithm>

namespace deeppcr::cuda {

absl::Status DeviceChain::Add(Device& device, const DenseSpec& layer) {
  DEEPPCR_ASSIGN_OR_RETURN(auto weights, DeviceBuffer<float>::Of(device, layer.weight));
  const std::vector<float> zeros(layer.bias.empty() ? layer.rows : 0);
  DEEPPCR_ASSIGN_OR_RETURN(
      auto biases, DeviceBuffer<float>::Of(device, layer.bias.empty() ? zeros : layer.bias));
  views_.push_back({.weights = weights.data(),
                    .biases = biases.data(),
                    .rows = static_cast<int32_t>(layer.rows),
                    .cols = static_cast<int32_t>(layer.cols),
                    .activation = layer.activation});
  weights_.push_back(std::move(weights));
  biases_.push_back(std::move(biases));
  args_.output_dim = static_cast<int32_t>(layer.rows);
  args_.widest = std::max(args_.widest, args_.output_dim);
  return absl::OkStatus();
}

absl::StatusOr<DeviceChain> DeviceChain::Upload(Device& device, int64_t input_dim,
                                                std::span<const DenseSpec> layers) {
  DeviceChain chain;
  chain.args_.input_dim = static_cast<int32_t>(input_dim);
  chain.args_.output_dim = chain.args_.widest = chain.args_.input_dim;
  for (const DenseSpec& layer : layers) {
    if (layer.rows > 0) DEEPPCR_RETURN_IF_ERROR(chain.Add(device, layer));
  }
  DEEPPCR_ASSIGN_OR_RETURN(chain.layers_, DeviceBuffer<DenseView>::Of(device, chain.views_));
  chain.args_.layers = chain.layers_.data();
  chain.args_.num_layers = static_cast<int32_t>(chain.views_.size());
  return chain;
}

int64_t DeviceChain::memory_bytes() const {
  int64_t bytes = layers_.bytes();
  for (const DeviceBuffer<float>& buffer : weights_) bytes += buffer.bytes();
  for (const DeviceBuffer<float>& buffer : biases_) bytes += buffer.bytes();
  return bytes;
}

int64_t DeviceChain::ScratchFloats(const LaunchLimits& limits) const {
  const int64_t floats = DenseChainFloats(args_.widest);
  return floats * sizeof(float) <= limits.shared_bytes ? 0 : floats;
}

}  // namespace deeppcr::cuda
