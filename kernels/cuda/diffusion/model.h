// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_MODEL_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_MODEL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/cuda/diffusion/kernel.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/math/dense_chain.h"
#include "kernels/cuda/math/device_halves.h"
#include "kernels/cuda/math/device_matrices.h"
#include "kernels/cuda/math/device_panels.h"
#include "kernels/cuda/runtime/device_buffer.h"
#include "kernels/problem/spec.h"

namespace deeppcr::cuda {

// A reverse process of the plain form and its denoiser in a device's memory. Other forms are step
// programs (program/model.h).
class DiffusionModel {
 public:
  // `device` must outlive the result. Errors: kUnimplemented for a D or H that a block of threads
  // cannot hold, naming an alternative that can run the model; else as Backend::NewSystem.
  static absl::StatusOr<DiffusionModel> Upload(Device& device, const DiffusionSpec& spec,
                                               const PackingLimits& limits,
                                               int64_t max_modulation_bytes = kMaxModulationBytes);

  const SystemShape& shape() const { return shape_; }
  int width() const { return width_; }
  int64_t memory_bytes() const;
  const DeviceChain& decode() const { return decode_; }
  // View without the members of samples: noise, table_of, and tables where each sample has its own.
  const DiffusionView& view() const { return view_; }
  float initial_scale() const { return initial_scale_; }
  // Rows that a block takes through a step together.
  int rows_per_step() const { return rows_per_step_; }

  // True for a denoiser so wide that tangents are multiplied with whole layers (WidePropagation),
  // by cuBLAS.
  bool is_wide() const { return view_.denoiser.hidden_width >= kWideLayer; }
  // True for a denoiser whose layers a block keeps while it propagates intervals
  // (resident_propagation.h).
  bool is_resident() const { return resident_; }
  struct Matrices {
    DeviceMatrices input, output, first, second;
  };
  const Matrices& matrices() const { return matrices_; }  // for a wide denoiser only

  // True if each sample has modulation rows of its own, made from conditions [n, H], the images of
  // inputs or the embeddings of classes.
  bool tables_per_sample() const { return tables_.size() == 0; }
  int64_t table_floats() const { return shape_.num_steps * view_.denoiser.modulation_floats(); }
  const ModulationArgs& modulation() const { return modulation_; }
  const DeviceChain& condition() const { return condition_; }
  std::span<const float> class_embedding() const { return class_embedding_; }

 private:
  absl::Status UploadNetwork(Device& device, const DiffusionSpec& spec);
  absl::Status UploadHalves(Device& device, const DiffusionSpec& spec);
  absl::Status UploadMatrices(Device& device, const DiffusionSpec& spec);
  absl::Status UploadModulation(Device& device, const DiffusionSpec& spec);
  absl::Status FillTables(Device& device, const PackingLimits& limits, int64_t max_bytes);

  SystemShape shape_;
  int width_ = 0, rows_per_step_ = 0;
  bool resident_ = false;
  float initial_scale_ = 1.0F;
  DiffusionView view_ = {};
  ModulationArgs modulation_ = {};
  std::vector<float> class_embedding_;  // [num_classes, H]
  DevicePanels input_, output_, first_, second_;
  struct Halves {
    DeviceHalves input, output, first;
  };
  Halves halves_;  // where FitsRegisters
  Matrices matrices_;
  DeviceBuffer<ReverseCoefficients> coefficients_;
  DeviceBuffer<HoldCoefficients> holds_;
  DeviceBuffer<float> time_embedding_, modulation_weights_, modulation_biases_, norm_weight_,
      norm_bias_, tables_;
  DeviceChain condition_, decode_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_MODEL_H_
