// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/diffusion/model.h"

#include <algorithm>

#include "kernels/backend/common.h"
#include "kernels/base/strings.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/stack/stack_model.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {
namespace {

// Lower bound of the bytes that the layers, the time embeddings and the modulation take.
int64_t NetworkBytes(const DiffusionSpec& spec) {
  const DenoiserSpec& d = spec.denoiser;
  const int64_t copies = PanelWidth(d.hidden_dim) >= kWideLayer ? 2 : 1;
  const int64_t layers =
      copies * (d.kind == DenoiserKind::kAdaLnMlp ? 2 * d.num_blocks : d.num_blocks);
  const int64_t rows = layers * d.hidden_dim + d.modulation_dim() + spec.num_steps();
  return rows * d.hidden_dim * int64_t{sizeof(float)};
}

// Padded width of hidden layers: one that resident layers have tiles for, where there is one.
int HiddenWidth(const DenoiserSpec& spec) {
  const int resident = ResidentWidth(spec.hidden_dim);
  return spec.kind == DenoiserKind::kResidualMlp && resident > 0 ? resident
                                                                 : PanelWidth(spec.hidden_dim);
}

// Rows of a step; 0 where a block has too little memory. Tangents of wide denoisers need no rows.
int RowsPerStep(const DiffusionModel& model, const LaunchLimits& limits) {
  if (!model.is_wide()) return StepRows(model.view(), limits);
  return CoarseBytes(model.view()) <= limits.shared_bytes ? 1 : 0;
}

}  // namespace

absl::Status DiffusionModel::UploadNetwork(Device& device, const DiffusionSpec& spec) {
  const DenoiserSpec& d = spec.denoiser;
  const int64_t hidden = d.hidden_dim, padded = HiddenWidth(d);
  const int64_t state = PanelWidth(width_), dim = spec.state_dim;
  DEEPPCR_ASSIGN_OR_RETURN(input_, DevicePanels::Upload(device, 1, hidden, dim, padded, state,
                                                        d.input.weight, d.input.bias));
  DEEPPCR_ASSIGN_OR_RETURN(output_, DevicePanels::Upload(device, 1, dim, hidden, state, padded,
                                                         d.output.weight, d.output.bias));
  DEEPPCR_ASSIGN_OR_RETURN(
      first_, DevicePanels::Upload(device, d.num_blocks, hidden, hidden, padded, padded,
                                   d.first_weight, d.first_bias));
  if (d.kind == DenoiserKind::kAdaLnMlp) {
    DEEPPCR_ASSIGN_OR_RETURN(
        second_, DevicePanels::Upload(device, d.num_blocks, hidden, hidden, padded, padded,
                                      d.second_weight, d.second_bias));
  }
  view_.denoiser = {.ada_ln = d.kind == DenoiserKind::kAdaLnMlp,
                    .activation = d.activation,
                    .state_dim = static_cast<int32_t>(dim),
                    .state_cols = static_cast<int32_t>(state),
                    .hidden_dim = static_cast<int32_t>(hidden),
                    .hidden_width = static_cast<int32_t>(padded),
                    .num_blocks = static_cast<int32_t>(d.num_blocks),
                    .input = input_.layer(),
                    .output = output_.layer(),
                    .first = first_.layer(),
                    .second = second_.layer(),
                    .clip_range = static_cast<float>(spec.clip_range),
                    .norm_epsilon = static_cast<float>(kNormEpsilon)};
  std::vector<ReverseCoefficients> coefficients;
  std::vector<HoldCoefficients> holds;
  for (const ReverseStep& step : spec.steps) {
    coefficients.push_back(ToFloat(step));
    holds.push_back(HoldOf(step));
  }
  DEEPPCR_ASSIGN_OR_RETURN(coefficients_,
                           DeviceBuffer<ReverseCoefficients>::Of(device, coefficients));
  DEEPPCR_ASSIGN_OR_RETURN(holds_, DeviceBuffer<HoldCoefficients>::Of(device, holds));
  initial_scale_ = spec.initial_scale;
  view_.num_steps = spec.num_steps();
  view_.state_dim = static_cast<int32_t>(dim);
  view_.width = width_;
  view_.coefficients = coefficients_.data();
  view_.holds = holds_.data();
  return absl::OkStatus();
}

absl::Status DiffusionModel::UploadHalves(Device& device, const DiffusionSpec& spec) {
  const DenoiserSpec& d = spec.denoiser;
  const int64_t hidden = d.hidden_dim, padded = view_.denoiser.hidden_width;
  const int64_t dim = spec.state_dim, state = view_.denoiser.state_cols;
  DEEPPCR_ASSIGN_OR_RETURN(
      halves_.input, DeviceHalves::Upload(device, 1, hidden, dim, padded, state, d.input.weight));
  DEEPPCR_ASSIGN_OR_RETURN(
      halves_.output, DeviceHalves::Upload(device, 1, dim, hidden, state, padded, d.output.weight));
  DEEPPCR_ASSIGN_OR_RETURN(halves_.first, DeviceHalves::Upload(device, d.num_blocks, hidden, hidden,
                                                               padded, padded, d.first_weight));
  view_.denoiser.halves = {.input = halves_.input.layer(),
                           .output = halves_.output.layer(),
                           .first = halves_.first.layer()};
  return absl::OkStatus();
}

absl::Status DiffusionModel::UploadMatrices(Device& device, const DiffusionSpec& spec) {
  const DenoiserSpec& d = spec.denoiser;
  const int64_t hidden = d.hidden_dim, padded = view_.denoiser.hidden_width;
  const int64_t dim = spec.state_dim, state = view_.denoiser.state_cols;
  DEEPPCR_ASSIGN_OR_RETURN(matrices_.input, DeviceMatrices::Upload(device, 1, hidden, dim, padded,
                                                                   state, d.input.weight));
  DEEPPCR_ASSIGN_OR_RETURN(matrices_.output, DeviceMatrices::Upload(device, 1, dim, hidden, state,
                                                                    padded, d.output.weight));
  DEEPPCR_ASSIGN_OR_RETURN(
      matrices_.first,
      DeviceMatrices::Upload(device, d.num_blocks, hidden, hidden, padded, padded, d.first_weight));
  if (d.kind != DenoiserKind::kAdaLnMlp) return absl::OkStatus();
  DEEPPCR_ASSIGN_OR_RETURN(
      matrices_.second, DeviceMatrices::Upload(device, d.num_blocks, hidden, hidden, padded, padded,
                                               d.second_weight));
  return absl::OkStatus();
}

absl::Status DiffusionModel::UploadModulation(Device& device, const DiffusionSpec& spec) {
  const DenoiserSpec& d = spec.denoiser;
  const std::vector<float> times(spec.time_embedding.begin(), spec.time_embedding.end());
  std::vector<float> biases = ModulationBias(d);
  biases.resize(d.modulation_dim());
  DEEPPCR_ASSIGN_OR_RETURN(time_embedding_, DeviceBuffer<float>::Of(device, times));
  DEEPPCR_ASSIGN_OR_RETURN(modulation_weights_,
                           DeviceBuffer<float>::Of(device, d.modulation.weight));
  DEEPPCR_ASSIGN_OR_RETURN(modulation_biases_, DeviceBuffer<float>::Of(device, biases));
  DEEPPCR_ASSIGN_OR_RETURN(norm_weight_, DeviceBuffer<float>::Of(device, d.norm_weight));
  DEEPPCR_ASSIGN_OR_RETURN(norm_bias_, DeviceBuffer<float>::Of(device, d.norm_bias));
  class_embedding_.assign(spec.class_embedding.begin(), spec.class_embedding.end());
  DEEPPCR_ASSIGN_OR_RETURN(condition_,
                           DeviceChain::Upload(device, spec.input_dim(), {&spec.condition, 1}));
  modulation_ = {.ada_ln = view_.denoiser.ada_ln,
                 .hidden_dim = view_.denoiser.hidden_dim,
                 .hidden_width = view_.denoiser.hidden_width,
                 .num_blocks = view_.denoiser.num_blocks,
                 .num_steps = view_.num_steps,
                 .time_embedding = time_embedding_.data(),
                 .conditions = nullptr,
                 .weights = modulation_weights_.data(),
                 .biases = modulation_biases_.data(),
                 .norm_weight = norm_weight_.data(),
                 .norm_bias = norm_bias_.data(),
                 .tables = nullptr};
  return absl::OkStatus();
}

// Fills one table per class, if the tables fit; a single table without a condition.
absl::Status DiffusionModel::FillTables(Device& device, const PackingLimits& limits,
                                        int64_t max_bytes) {
  const int64_t count = std::max<int64_t>(shape_.num_classes, 1);
  const int64_t bytes = count * table_floats() * int64_t{sizeof(float)};
  if (shape_.input_dim > 0 || (shape_.num_classes > 0 && bytes > max_bytes))
    return absl::OkStatus();
  DEEPPCR_RETURN_IF_ERROR(CheckPackedBytes(bytes, limits));
  DEEPPCR_ASSIGN_OR_RETURN(
      tables_, DeviceBuffer<float>::New(device, MemoryKind::kDevice, count * table_floats()));
  DEEPPCR_ASSIGN_OR_RETURN(const DeviceBuffer<float> classes,
                           DeviceBuffer<float>::Of(device, class_embedding_));
  ModulationArgs args = modulation_;
  args.conditions = classes.data();
  args.tables = tables_.data();
  DEEPPCR_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.NewStream());
  stream->Launch(args, count);
  stream->Wait([] {});
  DEEPPCR_RETURN_IF_ERROR(stream->status());
  view_.tables = tables_.data();
  // The tables replace the tensors that they were made from.
  time_embedding_ = {};
  modulation_weights_ = {};
  modulation_biases_ = {};
  return absl::OkStatus();
}

absl::StatusOr<DiffusionModel> DiffusionModel::Upload(Device& device, const DiffusionSpec& spec,
                                                      const PackingLimits& limits,
                                                      int64_t max_modulation_bytes) {
  DEEPPCR_RETURN_IF_ERROR(CheckStateDim(spec.state_dim));
  DiffusionModel model;
  model.shape_ = ShapeOf(spec);
  model.width_ =
      spec.state_dim <= kMaxWarpStateDim ? WarpWidth(spec.state_dim) : PanelWidth(spec.state_dim);
  DEEPPCR_RETURN_IF_ERROR(CheckPackedBytes(NetworkBytes(spec), limits));
  DEEPPCR_RETURN_IF_ERROR(model.UploadNetwork(device, spec));
  if (Fired(limits.token)) return absl::CancelledError("stopped while the weights were packed");
  model.rows_per_step_ = RowsPerStep(model, device.limits());
  if (model.rows_per_step_ == 0)
    return absl::UnimplementedError(StrCat("hidden_dim: a block of this GPU has no memory for ",
                                           spec.denoiser.hidden_dim,
                                           "; --backend cpu can run this model"));
  model.resident_ = IsResident(model.view(), device.limits());
  if (model.is_wide()) DEEPPCR_RETURN_IF_ERROR(model.UploadMatrices(device, spec));
  if (FitsRegisters(model.view_.denoiser))
    DEEPPCR_RETURN_IF_ERROR(model.UploadHalves(device, spec));
  DEEPPCR_RETURN_IF_ERROR(model.UploadModulation(device, spec));
  DEEPPCR_RETURN_IF_ERROR(model.FillTables(device, limits, max_modulation_bytes));
  DEEPPCR_ASSIGN_OR_RETURN(model.decode_,
                           DeviceChain::Upload(device, spec.state_dim, spec.decoder));
  return model;
}

int64_t DiffusionModel::memory_bytes() const {
  return input_.memory_bytes() + output_.memory_bytes() + first_.memory_bytes() +
         second_.memory_bytes() + halves_.input.memory_bytes() + halves_.output.memory_bytes() +
         halves_.first.memory_bytes() + matrices_.input.memory_bytes() +
         matrices_.output.memory_bytes() + matrices_.first.memory_bytes() +
         matrices_.second.memory_bytes() + coefficients_.bytes() + holds_.bytes() +
         time_embedding_.bytes() + modulation_weights_.bytes() + modulation_biases_.bytes() +
         norm_weight_.bytes() + norm_bias_.bytes() + tables_.bytes() + condition_.memory_bytes() +
         decode_.memory_bytes();
}

}  // namespace deeppcr::cuda
