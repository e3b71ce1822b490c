// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/stack/system.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/cpu/stack/backward.h"
#include "kernels/cpu/stack/recurrence.h"

namespace deeppcr::cpu {
namespace {

void FillLayers(const DenseStackSpec& spec, int64_t begin, int64_t end, PackedStack* packed) {
  const int64_t dim = spec.state_dim, width = packed->width;
  for (int64_t l = begin; l < end; ++l) {
    PackColumns(spec.weights.subspan(l * dim * dim, dim * dim), dim, dim, width,
                packed->weights.data() + l * width * width);
    if (!spec.biases.empty())
      std::copy_n(spec.biases.data() + l * dim, dim, packed->biases.data() + l * width);
  }
}

// A column of the transposed matrix is a row of the matrix.
void FillTransposed(const DenseStackSpec& spec, int64_t begin, int64_t end, PackedStack* packed) {
  const int64_t dim = spec.state_dim, width = packed->width;
  for (int64_t l = begin; l < end; ++l)
    for (int64_t i = 0; i < dim; ++i)
      std::copy_n(spec.weights.data() + (l * dim + i) * dim, dim,
                  packed->transposed.data() + (l * width + i) * width);
}

absl::Status PackLayers(const DenseStackSpec& spec, const PackingLimits& limits,
                        PackedStack* packed) {
  const int64_t width = packed->width;
  DEEPPCR_RETURN_IF_ERROR(CheckPackedFloats(spec.num_steps * width * (width + 1), limits));
  packed->weights = AlignedBuffer<float>(spec.num_steps * width * width);
  packed->biases = AlignedBuffer<float>(spec.num_steps * width);
  DEEPPCR_RETURN_IF_ERROR(CheckAllocated(packed->weights.ok() && packed->biases.ok(),
                                         spec.num_steps * width * (width + 1)));
  FillLayers(spec, 0, spec.num_steps, packed);
  return absl::OkStatus();
}

absl::Status PackTransposed(const DenseStackSpec& spec, const PackingLimits& limits,
                            PackedStack* packed) {
  const int64_t width = packed->width;
  const int64_t floats = spec.num_steps * width * width;
  DEEPPCR_RETURN_IF_ERROR(CheckPackedFloats(2 * floats, limits));
  packed->transposed = AlignedBuffer<float>(floats);
  packed->zeros = AlignedBuffer<float>(width);
  DEEPPCR_RETURN_IF_ERROR(CheckAllocated(packed->transposed.ok() && packed->zeros.ok(), floats));
  FillTransposed(spec, 0, spec.num_steps, packed);
  packed->has_backward = true;
  return absl::OkStatus();
}

// Samples whose vectors one call multiplies: those of more come from too many places of memory at a
// time.
constexpr size_t kSamplesOfCall = 8;
using SampleVectors = std::array<const float*, kSamplesOfCall>;

void AddOuterLayers(const PackedStack& stack, std::span<const ParameterSample> samples,
                    const ParameterSums& sums) {
  SampleVectors x, y;
  const auto samples_of_call = std::ssize(samples);
  for (size_t b = 0; b < samples.size(); ++b) {
    x[b] = samples[b].encode_delta;
    y[b] = samples[b].inputs;
  }
  if (stack.encode.rows > 0)
    stack.kernels.add_outers({.samples = samples_of_call,
                              .rows = stack.shape.state_dim,
                              .cols = stack.encode.cols,
                              .x = x.data(),
                              .y = y.data(),
                              .matrix = sums.encode_weight,
                              .bias = sums.encode_bias});
  for (size_t b = 0; b < samples.size(); ++b) {
    x[b] = samples[b].decode_delta;
    y[b] = samples[b].states;
  }
  if (stack.decode.rows > 0)
    stack.kernels.add_outers({.samples = samples_of_call,
                              .rows = stack.decode.rows,
                              .cols = stack.shape.state_dim,
                              .x = x.data(),
                              .y = y.data(),
                              .y_offset = stack.shape.num_steps * stack.shape.state_dim,
                              .matrix = sums.decode_weight,
                              .bias = sums.decode_bias});
}

}  // namespace

int64_t PackedStack::memory_bytes() const {
  return (weights.size() + biases.size() + transposed.size()) *
             static_cast<int64_t>(sizeof(float)) +
         encode.memory_bytes() + decode.memory_bytes();
}
int64_t PackedStack::RecurrenceBytes() const { return StackRecurrence::Bytes(*this); }

std::unique_ptr<Recurrence> PackedStack::NewRecurrence() const {
  auto recurrence = std::make_unique<StackRecurrence>(*this);
  if (!recurrence->ok()) return nullptr;
  return recurrence;
}

int64_t PackedStack::BackwardRecurrenceBytes(const BackwardLimits& limits) const {
  return StackBackward::Bytes(*this, limits);
}

std::unique_ptr<BackwardRecurrence> PackedStack::NewBackwardRecurrence(
    const BackwardLimits& limits) const {
  auto backward = std::make_unique<StackBackward>(*this, limits);
  if (!backward->ok()) return nullptr;
  return backward;
}

absl::Status PackedStack::AddParameterGradients(std::span<const ParameterSample> samples,
                                                int64_t begin, int64_t end,
                                                const ParameterSums& sums) const {
  const int64_t dim = shape.state_dim;
  const auto part = [](float* all, int64_t offset) {
    return all == nullptr ? nullptr : all + offset;
  };
  SampleVectors x, y;
  for (size_t first = 0; first < samples.size(); first += kSamplesOfCall) {
    const size_t count = std::min(kSamplesOfCall, samples.size() - first);
    const std::span<const ParameterSample> some = samples.subspan(first, count);
    for (size_t b = 0; b < count; ++b) {
      x[b] = some[b].deltas;
      y[b] = some[b].states;
    }
    for (int64_t l = begin; l < end; ++l)
      kernels.add_outers({.samples = static_cast<int64_t>(count),
                          .rows = dim,
                          .cols = dim,
                          .x = x.data(),
                          .y = y.data(),
                          .x_offset = l * dim,
                          .y_offset = l * dim,
                          .matrix = part(sums.weights, l * dim * dim),
                          .bias = part(sums.biases, l * dim)});
    if (begin == 0) AddOuterLayers(*this, some, sums);
  }
  return absl::OkStatus();
}

absl::Status PackedStack::Repack(const DenseStackSpec& spec, int64_t begin, int64_t end) {
  if (ShapeOf(spec) != shape || spec.encode.rows != encode.rows || spec.decode.rows != decode.rows)
    return absl::InvalidArgumentError("repack: expected a dense stack of the same shape");
  FillLayers(spec, begin, end, this);
  if (has_backward) FillTransposed(spec, begin, end, this);
  if (begin > 0) return absl::OkStatus();
  RepackDense(spec.encode, &encode);
  RepackDense(spec.decode, &decode);
  return absl::OkStatus();
}

LayersView PackedStack::View() const {
  return {.num_steps = shape.num_steps,
          .state_dim = shape.state_dim,
          .width = width,
          .weights = weights.data(),
          .biases = biases.data(),
          .lane_mask = lane_mask.data(),
          .probe_seeds = probe_seeds.data(),
          .scale = scale,
          .residual = residual,
          .activation = activation};
}

absl::StatusOr<std::unique_ptr<PackedSystem>> PackStack(const DenseStackSpec& spec,
                                                        Kernels (*kernels)(int64_t width),
                                                        const PackingLimits& limits) {
  auto packed = std::make_unique<PackedStack>();
  packed->shape = ShapeOf(spec);
  packed->width = PaddedWidth(spec.state_dim);
  packed->kernels = kernels(packed->width);
  packed->group = packed->kernels.most_together;
  packed->group_multiple = packed->kernels.padded_samples;
  packed->scale = spec.residual_scale;
  packed->residual = spec.residual;
  packed->activation = spec.activation;
  packed->lane_mask = LaneMask(spec.state_dim, packed->width);
  packed->probe_seeds = ProbeSeeds(packed->width);
  DEEPPCR_RETURN_IF_ERROR(PackLayers(spec, limits, packed.get()));
  if (limits.backward) DEEPPCR_RETURN_IF_ERROR(PackTransposed(spec, limits, packed.get()));
  DEEPPCR_ASSIGN_OR_RETURN(packed->encode,
                           PackDense(spec.encode, kernels, limits, packed->memory_bytes()));
  DEEPPCR_ASSIGN_OR_RETURN(packed->decode,
                           PackDense(spec.decode, kernels, limits, packed->memory_bytes()));
  return std::unique_ptr<PackedSystem>(std::move(packed));
}

}  // namespace deeppcr::cpu
