// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/stack/warp_stack_model.h"

#include <span>
#include <vector>

#include "kernels/base/strings.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/stack/panel_sequential_kernel.h"

namespace deeppcr::cuda {
namespace {

// Pads [count, dim, dim] to [count, width, width].
std::vector<float> PaddedSquares(std::span<const float> squares, int64_t dim, int64_t width) {
  const std::vector<float> rows = Padded(squares, dim, width);
  return Padded(rows, dim * width, width * width);
}

}  // namespace

absl::Status StackModel::UploadLayers(Device& device, const DenseStackSpec& spec) {
  const std::vector<float> weights = PaddedSquares(spec.weights, spec.state_dim, width());
  const std::vector<float> biases = spec.biases.empty()
                                        ? std::vector<float>(spec.num_steps * width())
                                        : Padded(spec.biases, spec.state_dim, width());
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
  StackModel model;
  DEEPPCR_RETURN_IF_ERROR(model.UploadChains(device, spec, WarpWidth(spec.state_dim), limits));
  DEEPPCR_RETURN_IF_ERROR(model.UploadLayers(device, spec));
  return model;
}

absl::StatusOr<PanelStackModel> PanelStackModel::Upload(Device& device, const DenseStackSpec& spec,
                                                        const PackingLimits& limits) {
  PanelStackModel model;
  const LaunchLimits& on = device.limits();
  const int width = PanelWidth(spec.state_dim);
  const bool in_sequence = TakesPanelSequence(width, on.shared_bytes, on.max_warps);
  DEEPPCR_RETURN_IF_ERROR(model.UploadChains(device, spec, width, limits));
  DEEPPCR_ASSIGN_OR_RETURN(
      model.panels_,
      DevicePanels::Upload(device, spec.num_steps, spec.state_dim, spec.state_dim, width, width,
                           spec.weights, spec.biases, in_sequence ? kLayersBehind : 0));
  model.view_ = {.num_steps = spec.num_steps,
                 .state_dim = static_cast<int32_t>(spec.state_dim),
                 .width = width,
                 .weights = model.panels_.layer().weights,
                 .biases = model.panels_.layer().bias,
                 .scale = spec.residual_scale,
                 .residual = spec.residual,
                 .activation = spec.activation,
                 .in_sequence = in_sequence};
  model.rows_per_step_ = StepRows(model.view_, device.limits());
  if (model.rows_per_step_ > 0) return model;
  return absl::UnimplementedError(StrCat("state_dim: a block of this GPU has no memory for ",
                                         spec.state_dim, "; --backend cpu can run this model"));
}

}  // namespace deeppcr::cuda
