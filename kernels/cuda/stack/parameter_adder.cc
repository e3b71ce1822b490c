// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/stack/parameter_adder.h"

#include <algorithm>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {
namespace {

size_t Bytes(int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); }

}  // namespace

absl::StatusOr<std::unique_ptr<ParameterAdder>> ParameterAdder::New(Device& device,
                                                                    const SystemShape& shape) {
  std::unique_ptr<ParameterAdder> adder(new ParameterAdder(device, shape));
  DEEPPCR_RETURN_IF_ERROR(adder->Allocate());
  return adder;
}

absl::Status ParameterAdder::Allocate() {
  const int64_t dim = shape_.state_dim, layers = std::min(kAddedLayers, shape_.num_steps);
  const int64_t inputs = kAddedSamples * std::max(layers * dim, inputs_dim_);
  const int64_t deltas = kAddedSamples * std::max(layers * dim, outputs_dim_);
  const auto take = [&](DeviceBuffer<float>* buffer, MemoryKind kind, int64_t size) {
    auto made = DeviceBuffer<float>::New(device_, kind, size);
    if (made.ok()) *buffer = *std::move(made);
    return made.status();
  };
  DEEPPCR_RETURN_IF_ERROR(take(&gathered_inputs_, MemoryKind::kMapped, inputs));
  DEEPPCR_RETURN_IF_ERROR(take(&gathered_deltas_, MemoryKind::kMapped, deltas));
  DEEPPCR_RETURN_IF_ERROR(take(&inputs_, MemoryKind::kDevice, inputs));
  DEEPPCR_RETURN_IF_ERROR(take(&deltas_, MemoryKind::kDevice, deltas));
  DEEPPCR_RETURN_IF_ERROR(
      take(&weights_, MemoryKind::kDevice,
           std::max({layers * dim * dim, dim * inputs_dim_, dim * outputs_dim_})));
  DEEPPCR_RETURN_IF_ERROR(
      take(&biases_, MemoryKind::kDevice, std::max(layers * dim, outputs_dim_)));
  DEEPPCR_ASSIGN_OR_RETURN(stream_, device_.NewStream());
  return absl::OkStatus();
}

int64_t ParameterAdder::memory_bytes() const {
  return gathered_inputs_.bytes() + gathered_deltas_.bytes() + inputs_.bytes() + deltas_.bytes() +
         weights_.bytes() + biases_.bytes();
}

absl::Status ParameterAdder::Add(std::span<const ParameterSample> samples, int64_t begin,
                                 int64_t end, const ParameterSums& sums) {
  std::lock_guard lock(mutex_);
  const int64_t dim = shape_.state_dim;
  for (int64_t l = begin; l < end; l += kAddedLayers)
    AddLayers(samples,
              {.count = std::min(kAddedLayers, end - l),
               .rows = dim,
               .cols = dim,
               .inputs = [&](const ParameterSample& sample) { return sample.states + l * dim; },
               .deltas = [&](const ParameterSample& sample) { return sample.deltas + l * dim; },
               .weights = sums.weights == nullptr ? nullptr : sums.weights + l * dim * dim,
               .biases = sums.biases == nullptr ? nullptr : sums.biases + l * dim});
  if (begin == 0 && inputs_dim_ > 0)
    AddLayers(samples, {.rows = dim,
                        .cols = inputs_dim_,
                        .inputs = [](const ParameterSample& sample) { return sample.inputs; },
                        .deltas = [](const ParameterSample& sample) { return sample.encode_delta; },
                        .weights = sums.encode_weight,
                        .biases = sums.encode_bias});
  if (begin == 0 && outputs_dim_ > 0)
    AddLayers(samples, {.rows = outputs_dim_,
                        .cols = dim,
                        .inputs =
                            [&](const ParameterSample& sample) {
                              return sample.states + shape_.num_steps * dim;
                            },
                        .deltas = [](const ParameterSample& sample) { return sample.decode_delta; },
                        .weights = sums.decode_weight,
                        .biases = sums.decode_bias});
  return stream_->status();
}

void ParameterAdder::AddLayers(std::span<const ParameterSample> samples, const Layers& layers) {
  if (layers.weights == nullptr && layers.biases == nullptr) return;
  const size_t weights = Bytes(layers.count * layers.rows * layers.cols);
  const size_t biases = Bytes(layers.count * layers.rows);
  if (layers.weights != nullptr) stream_->CopyToDevice(weights_.data(), layers.weights, weights);
  if (layers.biases != nullptr) stream_->CopyToDevice(biases_.data(), layers.biases, biases);
  for (size_t first = 0; first < samples.size(); first += kAddedSamples)
    AddSamples(samples.subspan(first, std::min<size_t>(kAddedSamples, samples.size() - first)),
               layers);
  if (layers.weights != nullptr) stream_->CopyToHost(layers.weights, weights_.data(), weights);
  if (layers.biases != nullptr) stream_->CopyToHost(layers.biases, biases_.data(), biases);
  stream_->Wait([] {});
}

void ParameterAdder::AddSamples(std::span<const ParameterSample> samples, const Layers& layers) {
  const auto n = static_cast<int64_t>(samples.size());
  const int64_t inputs = layers.count * layers.cols, deltas = layers.count * layers.rows;
  for (int64_t b = 0; b < n; ++b) {
    std::copy_n(layers.inputs(samples[b]), inputs, gathered_inputs_.data() + b * inputs);
    std::copy_n(layers.deltas(samples[b]), deltas, gathered_deltas_.data() + b * deltas);
  }
  stream_->CopyToDevice(inputs_.data(), gathered_inputs_.data(), Bytes(n * inputs));
  stream_->CopyToDevice(deltas_.data(), gathered_deltas_.data(), Bytes(n * deltas));
  stream_->Launch(ParameterGradientArgs{.num_layers = layers.count,
                                        .rows = static_cast<int32_t>(layers.rows),
                                        .cols = static_cast<int32_t>(layers.cols),
                                        .num_samples = static_cast<int32_t>(n),
                                        .inputs = inputs_.data(),
                                        .input_stride = inputs,
                                        .deltas = deltas_.data(),
                                        .weights = weights_.data(),
                                        .biases = biases_.data()});
  stream_->Wait([] {});  // the next samples are gathered in the same memory
}

}  // namespace deeppcr::cuda
