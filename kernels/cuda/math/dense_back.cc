// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/math/dense_back.h"

#include "kernels/base/status_macros.h"

namespace deeppcr::cuda {

int64_t DenseBack::Floats(const DeviceChain& chain, const LaunchLimits& limits, int64_t samples,
                          int64_t columns) {
  int64_t floats = chain.ScratchFloats(limits);
  for (const DenseView& layer : chain.views()) {
    floats += columns * layer.rows;
    if (&layer != &chain.views().front()) floats += (1 + columns) * layer.cols;
  }
  return samples * floats;
}

absl::Status DenseBack::Allocate(Device& device, int64_t samples, int64_t columns) {
  const auto take = [&](DeviceBuffer<float>* buffer, MemoryKind kind, int64_t size) {
    auto made = DeviceBuffer<float>::New(device, kind, samples * size);
    if (made.ok()) *buffer = *std::move(made);
    return made.status();
  };
  const std::span<const DenseView> layers = chain_.views();
  if (layers.empty()) return absl::OkStatus();
  for (size_t i = 0; i + 1 < layers.size(); ++i) {
    const int64_t between = layers[i].rows;
    DEEPPCR_RETURN_IF_ERROR(take(&values_.emplace_back(), MemoryKind::kDevice, between));
    DEEPPCR_RETURN_IF_ERROR(
        take(&cotangents_.emplace_back(), MemoryKind::kDevice, columns * between));
    DEEPPCR_RETURN_IF_ERROR(take(&deltas_.emplace_back(), MemoryKind::kDevice, columns * between));
  }
  DEEPPCR_RETURN_IF_ERROR(
      take(&scratch_, MemoryKind::kDevice, chain_.ScratchFloats(device.limits())));
  return take(&last_deltas_, MemoryKind::kDevice, columns * layers.back().rows);
}

void DenseBack::Launch(Stream& stream, int32_t num_samples, int32_t columns,
                       const Vectors& vectors) const {
  const std::span<const DenseView> layers = chain_.views();
  const auto inputs_of = [&](size_t i) {
    return i == 0 ? vectors.inputs : static_cast<const float*>(values_[i - 1].data());
  };
  const auto stride_of = [&](size_t i) {
    return i == 0 ? vectors.input_stride : int64_t{layers[i].cols};
  };
  for (size_t i = 0; i + 1 < layers.size(); ++i) {
    DenseChainArgs args = chain_.args();
    args.layers += i;
    args.num_layers = 1;
    args.input_dim = layers[i].cols;
    args.output_dim = layers[i].rows;
    args.inputs = inputs_of(i);
    args.input_stride = stride_of(i);
    args.outputs = values_[i].data();
    args.output_stride = layers[i].rows;
    args.scratch = scratch_.data();
    stream.Launch(args, num_samples);
  }
  const size_t count = layers.empty() ? 1 : layers.size();
  for (size_t i = count; i-- > 0;) {
    const bool first = i == 0, last = i + 1 == count;
    stream.Launch(
        DenseBackArgs{
            .layer = layers.empty() ? chain_.OnlyLayer() : layers[i],
            .num_columns = columns,
            .inputs = inputs_of(i),
            .input_stride = layers.empty() ? 0 : stride_of(i),
            .of_outputs = last ? vectors.of_outputs : cotangents_[i].data(),
            .of_outputs_stride = last ? vectors.of_outputs_stride : int64_t{layers[i].rows},
            .beside = first ? vectors.beside : nullptr,
            .beside_dim = first ? vectors.beside_dim : 0,
            .deltas = last ? last_deltas_.data() : deltas_[i].data(),
            .of_inputs = first ? vectors.of_inputs : cotangents_[i - 1].data(),
            .of_inputs_stride = first ? vectors.of_inputs_stride : int64_t{layers[i].cols}},
        num_samples);
  }
}

}  // namespace deeppcr::cuda
