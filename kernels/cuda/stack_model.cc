// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/stack_model.h"

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/backend/common.h"
#include "kernels/base/strings.h"

namespace deeppcr::cuda {
namespace {

// Rows of `dim` floats as rows of `width`, zeros behind.
std::vector<float> Padded(std::span<const float> rows, int64_t dim, int64_t width) {
  const int64_t count = static_cast<int64_t>(rows.size()) / dim;
  std::vector<float> padded(count * width);
  for (int64_t r = 0; r < count; ++r)
    std::copy_n(rows.data() + r * dim, dim, padded.data() + r * width);
  return padded;
}

// [count, dim, dim] as [count, width, width].
std::vector<float> PaddedSquares(std::span<const float> squares, int64_t dim, int64_t width) {
  const std::vector<float> rows = Padded(squares, dim, width);
  return Padded(rows, dim * width, width * width);
}

}  // namespace

absl::Status StackModel::UploadLayers(Device& device, const DenseStackSpec& spec) {
  const std::vector<float> weights = PaddedSquares(spec.weights, spec.state_dim, width_);
  const std::vector<float> biases = spec.biases.empty()
                                        ? std::vector<float>(spec.num_steps * width_)
                                        : Padded(spec.biases, spec.state_dim, width_);
  DEEPPCR_ASSIGN_OR_RETURN(weights_, DeviceBuffer<float>::Of(device, weights));
  DEEPPCR_ASSIGN_OR_RETURN(biases_, DeviceBuffer<float>::Of(device, biases));
  view_ = {.num_steps = spec.num_steps,
           .state_dim = static_cast<int32_t>(spec.state_dim),
           .weights = weights_.data(),
           .biases = biases_.data(),
           .scale = spec.residual_scale,
           .residual = spec.residual,
           .activation = spec.activation};
  return absl::OkStatus();
}

absl::StatusOr<StackModel> StackModel::Upload(Device& device, const DenseStackSpec& spec,
                                              const PackingLimits& limits) {
  if (spec.state_dim > kMaxStateDim)
    return absl::UnimplementedError(
        StrCat("state_dim: the cuda backend of this version takes 1 .. ", kMaxStateDim, ", got ",
               spec.state_dim, "; --backend cpu can run this model"));
  StackModel model;
  model.shape_ = ShapeOf(spec);
  model.width_ = PaddedWidth(spec.state_dim);
  const int64_t layer = int64_t{model.width_} * (model.width_ + 1);
  DEEPPCR_RETURN_IF_ERROR(
      CheckPackedBytes(spec.num_steps * layer * int64_t{sizeof(float)}, limits));
  DEEPPCR_RETURN_IF_ERROR(model.UploadLayers(device, spec));
  if (Fired(limits.token)) return absl::CancelledError("the model was not wanted any more");
  DEEPPCR_ASSIGN_OR_RETURN(model.encode_,
                           DeviceChain::Upload(device, spec.input_dim(), {&spec.encode, 1}));
  DEEPPCR_ASSIGN_OR_RETURN(model.decode_,
                           DeviceChain::Upload(device, spec.state_dim, {&spec.decode, 1}));
  return model;
}

absl::Status StackModel::SetGuess(Device& device, const AffineGuess& guess) {
  const std::vector<float> map = Padded(guess.coefficients, shape_.state_dim, width_);
  DEEPPCR_ASSIGN_OR_RETURN(map_, DeviceBuffer<float>::Of(device, map));
  guess_ = {.states = nullptr, .map = map_.data(), .stride = guess.stride, .count = guess.count};
  return absl::OkStatus();
}

int64_t StackModel::memory_bytes() const {
  return weights_.bytes() + biases_.bytes() + map_.bytes() + encode_.memory_bytes() +
         decode_.memory_bytes();
}

}  // namespace deeppcr::cuda
