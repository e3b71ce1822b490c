// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_WARP_STACK_MODEL_H_
#define DEEPPCR_KERNELS_CUDA_STACK_WARP_STACK_MODEL_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/cuda/math/device_panels.h"
#include "kernels/cuda/stack/panel_step.h"
#include "kernels/cuda/stack/stack_model.h"
#include "kernels/cuda/stack/warp_step.h"

namespace deeppcr::cuda {

// A dense stack whose states a warp takes, padded to the width of a kernel: D <= kMaxWarpStateDim.
class StackModel : public DenseStackModel {
 public:
  // `device` must outlive the result. Errors: as Backend::NewSystem.
  static absl::StatusOr<StackModel> Upload(Device& device, const DenseStackSpec& spec,
                                           const PackingLimits& limits);
  const StackView& view() const { return view_; }
  int64_t memory_bytes() const { return weights_.bytes() + biases_.bytes() + surrounding_bytes(); }

 private:
  absl::Status UploadLayers(Device& device, const DenseStackSpec& spec);

  StackView view_ = {};
  DeviceBuffer<float> weights_, biases_;
};

// A dense stack whose states a block takes.
class PanelStackModel : public DenseStackModel {
 public:
  // `device` must outlive the result. Errors: kUnimplemented where D is larger than kMaxStateDim or
  // a block has too little memory for a step; else as Backend::NewSystem.
  static absl::StatusOr<PanelStackModel> Upload(Device& device, const DenseStackSpec& spec,
                                                const PackingLimits& limits);
  const PanelStackView& view() const { return view_; }
  int rows_per_step() const { return rows_per_step_; }
  int64_t memory_bytes() const { return panels_.memory_bytes() + surrounding_bytes(); }

 private:
  PanelStackView view_ = {};
  int rows_per_step_ = 0;
  DevicePanels panels_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_WARP_STACK_MODEL_H_
