// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/stack/stack_model.h"

#include <algorithm>

#include "kernels/backend/common.h"
#include "kernels/base/strings.h"

namespace deeppcr::cuda {

absl::Status CheckStateDim(int64_t state_dim) {
  if (state_dim <= kMaxStateDim) return absl::OkStatus();
  return absl::UnimplementedError(StrCat("state_dim: the cuda backend of this version takes 1 .. ",
                                         kMaxStateDim, ", got ", state_dim,
                                         "; --backend cpu can run this model"));
}

std::vector<float> Padded(std::span<const float> rows, int64_t dim, int64_t width) {
  const int64_t count = static_cast<int64_t>(rows.size()) / dim;
  std::vector<float> padded(count * width);
  for (int64_t r = 0; r < count; ++r)
    std::copy_n(rows.data() + r * dim, dim, padded.data() + r * width);
  return padded;
}

absl::Status DenseStackModel::UploadChains(Device& device, const DenseStackSpec& spec, int width,
                                           const PackingLimits& limits) {
  DEEPPCR_RETURN_IF_ERROR(CheckStateDim(spec.state_dim));
  shape_ = ShapeOf(spec);
  width_ = width;
  const int64_t layer = int64_t{width} * (width + 1);
  DEEPPCR_RETURN_IF_ERROR(
      CheckPackedBytes(spec.num_steps * layer * int64_t{sizeof(float)}, limits));
  if (Fired(limits.token)) return absl::CancelledError("the model was not wanted any more");
  DEEPPCR_ASSIGN_OR_RETURN(encode_,
                           DeviceChain::Upload(device, spec.input_dim(), {&spec.encode, 1}));
  DEEPPCR_ASSIGN_OR_RETURN(decode_, DeviceChain::Upload(device, spec.state_dim, {&spec.decode, 1}));
  return absl::OkStatus();
}

absl::Status DenseStackModel::SetGuess(Device& device, const AffineGuess& guess) {
  const std::vector<float> map = Padded(guess.coefficients, shape_.state_dim, width_);
  DEEPPCR_ASSIGN_OR_RETURN(map_, DeviceBuffer<float>::Of(device, map));
  guess_ = {.states = nullptr, .map = map_.data(), .stride = guess.stride, .count = guess.count};
  return absl::OkStatus();
}

}  // namespace deeppcr::cuda
