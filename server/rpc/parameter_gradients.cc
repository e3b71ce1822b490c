// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/parameter_gradients.h"

#include <algorithm>
#include <utility>

#include "deeppcr/v1/deeppcr.pb.h"
#include "server/rpc/call.h"

namespace deeppcr {
namespace {

// A quarter of a message is left for names, shapes and numbers.
size_t MostValues(int64_t max_message_bytes) {
  const int64_t bytes = std::min(ParameterPieces::kMostBytes, max_message_bytes / 4 * 3);
  return static_cast<size_t>(std::max<int64_t>(bytes / int64_t{sizeof(float)}, 1));
}

}  // namespace

ParameterGradients::ParameterGradients(const ModelInfo& info, int64_t num_samples,
                                       int64_t num_steps)
    : input_dim_(info.input_dim),
      output_dim_(info.output_dim),
      state_dim_(info.state_dim),
      num_steps_(num_steps),
      form_(info.parameter_form) {
  for (const TensorShape& parameter : info.parameters) {
    size_t size = 1;
    for (const int64_t extent : parameter.extents) size *= static_cast<size_t>(extent);
    tensors_.push_back({parameter.name, parameter.extents, std::vector<float>(size)});
  }
  of_steps_.resize(static_cast<size_t>(num_samples * num_steps_ * state_dim_));
  if (info.has_input_layer) encode_deltas_.resize(static_cast<size_t>(num_samples * state_dim_));
}

void ParameterGradients::Attach(BackwardItem* item) {
  (form_ == ParameterForm::kLayers ? item->deltas : item->state_cotangents) = of_steps_;
  item->encode_deltas = encode_deltas_;
}

absl::Status ParameterGradients::Sum(const LoadedSystem& system, const BackwardItem& item,
                                     const CancelToken* token,
                                     absl::FunctionRef<void(double)> pause) {
  const std::vector<float> zeros(item.of_outputs.empty() ? static_cast<size_t>(output_dim_) : 0);
  std::vector<ParameterSample> samples;
  for (int64_t i = 0; i < item.samples.num_samples; ++i) {
    const float* const of_steps = of_steps_.data() + i * num_steps_ * state_dim_;
    const SampleInput input = InputOf(item.samples, i, nullptr);
    samples.push_back(
        {.inputs = input.inputs,
         .label = input.label,
         .states = item.states.data() + i * (num_steps_ + 1) * state_dim_,
         .deltas = form_ == ParameterForm::kLayers ? of_steps : nullptr,
         .state_cotangents = form_ == ParameterForm::kProgram ? of_steps : nullptr,
         .encode_delta = encode_deltas_.empty() ? nullptr : encode_deltas_.data() + i * state_dim_,
         .decode_delta =
             item.of_outputs.empty() ? zeros.data() : item.of_outputs.data() + i * output_dim_,
         .step_noise = input.step_noise,
         .seed = input.seed,
         .sample = input.sample});
  }
  std::vector<float*> sums;
  for (ParameterGradient& tensor : tensors_) sums.push_back(tensor.values.data());
  return system.AddParameterGradients(samples, sums, token, pause);
}

ParameterPieces::ParameterPieces(std::vector<ParameterGradient> tensors, int64_t max_message_bytes)
    : tensors_(std::move(tensors)), most_values_(MostValues(max_message_bytes)) {
  for (const ParameterGradient& tensor : tensors_)
    bytes_ += std::ssize(tensor.values) * int64_t{sizeof(float)};
}

bool ParameterPieces::Next(grpc::ByteBuffer* message) {
  if (tensor_ == tensors_.size()) return false;
  const ParameterGradient& from = tensors_[tensor_];
  const size_t count = std::min(most_values_, from.values.size() - offset_);
  v1::StreamGradientResponse event;
  v1::ParameterPiece& piece = *event.mutable_piece();
  piece.set_name(from.name);
  piece.mutable_shape()->Add(from.shape.begin(), from.shape.end());
  piece.set_offset(static_cast<int64_t>(offset_));
  piece.set_total(std::ssize(from.values));
  piece.set_data(from.values.data() + offset_, count * sizeof(float));
  grpc::ByteBuffer bytes = Serialize(event);
  message->Swap(&bytes);
  offset_ += count;
  if (offset_ < from.values.size()) return true;
  ++tensor_;
  offset_ = 0;
  return true;
}

}  // namespace deeppcr
