// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/diffusion/system.h"

#include <algorithm>
#include <utility>

#include "kernels/backend/common.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/diffusion/recurrence.h"

namespace deeppcr::cpu {
namespace {

template <class T>
int64_t BytesOf(const AlignedBuffer<T>& buffer) {
  return buffer.size() * static_cast<int64_t>(sizeof(T));
}

// Packs [rows, dim] into rows of `width` floats.
template <class T>
absl::StatusOr<AlignedBuffer<float>> PackRows(std::span<const T> matrix, int64_t dim,
                                              int64_t width) {
  const int64_t rows = static_cast<int64_t>(matrix.size()) / dim;
  AlignedBuffer<float> packed(rows * width);
  DEEPPCR_RETURN_IF_ERROR(CheckAllocated(packed.ok(), rows * width));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < dim; ++i)
      packed[r * width + i] = static_cast<float>(matrix[r * dim + i]);
  return packed;
}

// Lower bound of the floats that the layers and the time embeddings take.
int64_t NetworkFloats(const DiffusionSpec& spec) {
  const DenoiserSpec& d = spec.denoiser;
  const int64_t rows = d.modulation_dim() / d.hidden_dim +
                       (d.kind == DenoiserKind::kAdaLnMlp ? 2 : 1) * d.num_blocks;
  const auto num_steps = static_cast<int64_t>(spec.steps.size());
  return (rows * d.hidden_dim + num_steps) * PanelRowWidth(d.hidden_dim);
}

absl::Status PackNetwork(const DiffusionSpec& spec, PackedDiffusion* packed) {
  const DenoiserSpec& d = spec.denoiser;
  const int64_t hidden = d.hidden_dim, blocks = d.num_blocks;
  const bool ada_ln = d.kind == DenoiserKind::kAdaLnMlp;
  DEEPPCR_ASSIGN_OR_RETURN(packed->input,
                           PackPanels(1, hidden, spec.state_dim, d.input.weight, d.input.bias));
  DEEPPCR_ASSIGN_OR_RETURN(packed->output,
                           PackPanels(1, spec.state_dim, hidden, d.output.weight, d.output.bias));
  DEEPPCR_ASSIGN_OR_RETURN(packed->first,
                           PackPanels(blocks, hidden, hidden, d.first_weight, d.first_bias));
  DEEPPCR_ASSIGN_OR_RETURN(packed->modulation,
                           PackPanels(d.modulation_dim() / hidden, hidden, hidden,
                                      d.modulation.weight, ModulationBias(d)));
  if (!ada_ln) return absl::OkStatus();
  DEEPPCR_ASSIGN_OR_RETURN(packed->second,
                           PackPanels(blocks, hidden, hidden, d.second_weight, d.second_bias));
  const int64_t width = PanelRowWidth(hidden);
  DEEPPCR_ASSIGN_OR_RETURN(packed->norm_weight, PackRows(d.norm_weight, hidden, width));
  DEEPPCR_ASSIGN_OR_RETURN(packed->norm_bias, PackRows(d.norm_bias, hidden, width));
  return absl::OkStatus();
}

int64_t TapeFloats(const DenoiserView& d) {
  const int64_t rows_per_block = d.ada_ln ? kAdaLnTapeRows : kResidualTapeRows;
  return (rows_per_block * d.num_blocks + 2) * d.hidden_width + kStateTapeRows * d.state_width +
         ((2 * d.num_blocks + 1) / 16 + 1) * 16;
}

void FillView(const DiffusionSpec& spec, PackedDiffusion* packed) {
  const DenoiserSpec& d = spec.denoiser;
  DenoiserView& view = packed->denoiser;
  const int64_t hidden = PanelRowWidth(d.hidden_dim);
  view = {.ada_ln = d.kind == DenoiserKind::kAdaLnMlp,
          .activation = d.activation,
          .state_width = PanelRowWidth(spec.state_dim),
          .hidden_dim = d.hidden_dim,
          .hidden_width = hidden,
          .num_blocks = d.num_blocks,
          .modulation_floats = d.modulation_dim() / d.hidden_dim * hidden,
          .input = packed->input.views.data(),
          .output = packed->output.views.data(),
          .first = packed->first.views.data(),
          .second = packed->second.views.data(),
          .modulation = packed->modulation.views.data(),
          .norm_weight = packed->norm_weight.data(),
          .norm_bias = packed->norm_bias.data(),
          .state_mask = packed->state_mask.data(),
          .hidden_mask = packed->hidden_mask.data(),
          .state_seeds = packed->state_seeds.data(),
          .hidden_seeds = packed->hidden_seeds.data(),
          .clip_range = static_cast<float>(spec.clip_range),
          .norm_epsilon = static_cast<float>(kNormEpsilon)};
  view.tape_floats = TapeFloats(view);
}

absl::Status PackCondition(const DiffusionSpec& spec, const KernelSet& set,
                           PackedDiffusion* packed) {
  const int64_t dim = spec.denoiser.hidden_dim, width = packed->denoiser.hidden_width;
  DEEPPCR_ASSIGN_OR_RETURN(packed->time_embedding, PackRows(spec.time_embedding, dim, width));
  DEEPPCR_ASSIGN_OR_RETURN(packed->class_embedding, PackRows(spec.class_embedding, dim, width));
  DEEPPCR_ASSIGN_OR_RETURN(packed->condition, PackDense(spec.condition, set.kernels));
  return absl::OkStatus();
}

// Fills one table per class, if the tables fit; a single table without a condition.
absl::Status FillTables(int64_t max_bytes, const PackingLimits& limits, PackedDiffusion* packed) {
  const int64_t classes = packed->shape.num_classes;
  const int64_t floats = std::max<int64_t>(classes, 1) * packed->table_floats();
  const bool fits = floats <= max_bytes / static_cast<int64_t>(sizeof(float));
  if (packed->condition.rows > 0 || (classes > 0 && !fits)) return absl::OkStatus();
  DEEPPCR_RETURN_IF_ERROR(CheckPackedFloats(floats, limits));
  const int64_t width = packed->denoiser.hidden_width;
  AlignedBuffer<float> y(kModulationTile * width);
  packed->tables = AlignedBuffer<float>(floats);
  DEEPPCR_RETURN_IF_ERROR(CheckAllocated(packed->tables.ok() && y.ok(), floats));
  for (int64_t i = 0; i < std::max<int64_t>(classes, 1); ++i) {
    const float* condition = classes > 0 ? packed->class_embedding.data() + i * width : nullptr;
    packed->Modulate(condition, y.data(), packed->tables.data() + i * packed->table_floats(),
                     limits.token);
  }
  if (Fired(limits.token)) return absl::CancelledError("stopped while the weights were packed");
  // The tables replace the tensors that they were made from.
  packed->time_embedding = {};
  packed->class_embedding = {};
  packed->modulation = {};
  packed->denoiser.modulation = nullptr;
  return absl::OkStatus();
}

}  // namespace

int64_t PackedDiffusion::memory_bytes() const {
  int64_t bytes = BytesOf(time_embedding) + BytesOf(class_embedding) + BytesOf(tables) +
                  BytesOf(norm_weight) + BytesOf(norm_bias) + BytesOf(state_mask) +
                  BytesOf(hidden_mask) + BytesOf(state_seeds) + BytesOf(hidden_seeds) +
                  condition.memory_bytes() + input.memory_bytes() + output.memory_bytes() +
                  first.memory_bytes() + second.memory_bytes() + modulation.memory_bytes() +
                  static_cast<int64_t>(coefficients.size() * sizeof(ReverseCoefficients) +
                                       holds.size() * sizeof(HoldCoefficients));
  for (const PackedDense& layer : decoder) bytes += layer.memory_bytes();
  return bytes;
}

int64_t PackedDiffusion::RecurrenceBytes() const { return DiffusionRecurrence::Bytes(*this); }

std::unique_ptr<Recurrence> PackedDiffusion::NewRecurrence() const {
  auto recurrence = std::make_unique<DiffusionRecurrence>(*this);
  if (!recurrence->ok()) return nullptr;
  return recurrence;
}

void PackedDiffusion::Modulate(const float* embedding, float* y, float* table,
                               const CancelToken* token) const {
  const int64_t hidden = denoiser.hidden_width;
  for (int64_t begin = 0; begin < shape.num_steps && !Fired(token); begin += kModulationTile) {
    const int64_t rows = std::min(kModulationTile, shape.num_steps - begin);
    std::copy_n(time_embedding.data() + begin * hidden, rows * hidden, y);
    for (int64_t r = 0; embedding != nullptr && r < rows; ++r)
      for (int64_t i = 0; i < denoiser.hidden_dim; ++i) y[r * hidden + i] += embedding[i];
    denoiser_kernels.modulate({.denoiser = &denoiser,
                               .y = y,
                               .count = rows,
                               .out = table + begin * denoiser.modulation_floats});
  }
}

absl::StatusOr<std::unique_ptr<PackedSystem>> PackDiffusion(const DiffusionSpec& spec,
                                                            const KernelSet& set,
                                                            const PackingLimits& limits,
                                                            int64_t max_modulation_bytes) {
  auto packed = std::make_unique<PackedDiffusion>();
  packed->shape = ShapeOf(spec);
  packed->width = PaddedWidth(spec.state_dim);
  packed->kernels = set.kernels(packed->width);
  packed->denoiser_kernels = set.denoiser();
  const int64_t state = PanelRowWidth(spec.state_dim);
  const int64_t hidden = PanelRowWidth(spec.denoiser.hidden_dim);
  packed->state_mask = LaneMask(spec.state_dim, state);
  packed->hidden_mask = LaneMask(spec.denoiser.hidden_dim, hidden);
  packed->state_seeds = ProbeSeeds(state);
  packed->hidden_seeds = ProbeSeeds(hidden);
  DEEPPCR_RETURN_IF_ERROR(CheckAllocated(packed->state_mask.ok() && packed->hidden_mask.ok() &&
                                             packed->state_seeds.ok() && packed->hidden_seeds.ok(),
                                         (state + hidden) * kColumns));
  for (const ReverseStep& step : spec.steps) {
    packed->coefficients.push_back(ToFloat(step));
    packed->holds.push_back(HoldOf(step));
  }
  DEEPPCR_RETURN_IF_ERROR(CheckPackedFloats(NetworkFloats(spec), limits));
  DEEPPCR_RETURN_IF_ERROR(PackNetwork(spec, packed.get()));
  FillView(spec, packed.get());
  DEEPPCR_RETURN_IF_ERROR(PackCondition(spec, set, packed.get()));
  DEEPPCR_RETURN_IF_ERROR(FillTables(max_modulation_bytes, limits, packed.get()));
  for (const DenseSpec& layer : spec.decoder) {
    DEEPPCR_ASSIGN_OR_RETURN(PackedDense dense, PackDense(layer, set.kernels));
    packed->decoder.push_back(std::move(dense));
  }
  packed->shares_steps = hidden * hidden >= kSharedProduct;
  packed->shares_passes = hidden * hidden * kTangentTile >= kSharedProduct;
  const int64_t fit = kMaxGroupBytes / (packed->sample_floats() * int64_t{sizeof(float)});
  packed->group = static_cast<int32_t>(std::clamp<int64_t>(fit, kSequentialGroup, kDiffusionGroup));
  return std::unique_ptr<PackedSystem>(std::move(packed));
}

}  // namespace deeppcr::cpu
