// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/packed_layers.h"

#include <bit>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/packed_dense.h"

namespace deeppcr::testing {

const std::vector<KernelSet>& KernelSets() {
  static const std::vector<KernelSet> sets = [] {
    const cpu::InstructionSet newest = cpu::DetectInstructionSet();
    std::vector<KernelSet> all = {{"baseline", &cpu::KernelsBaseline}};
    if (newest >= cpu::InstructionSet::kAvx2) all.push_back({"avx2", &cpu::KernelsAvx2});
    if (newest >= cpu::InstructionSet::kAvx512) all.push_back({"avx512", &cpu::KernelsAvx512});
    return all;
  }();
  return sets;
}

PackedLayers::PackedLayers(const DenseStackSpec& spec) {
  const int64_t steps = spec.num_steps, dim = spec.state_dim, width = cpu::PaddedWidth(dim);
  weights_ = AlignedBuffer<float>(steps * width * width);
  biases_ = AlignedBuffer<float>(steps * width);
  lane_mask_ = AlignedBuffer<float>(width);
  probe_seeds_ = AlignedBuffer<uint32_t>((cpu::kColumns - 1) * width);
  for (int64_t l = 0; l < steps; ++l)
    for (int64_t i = 0; i < dim; ++i) {
      if (!spec.biases.empty()) biases_[l * width + i] = spec.biases[l * dim + i];
      for (int64_t k = 0; k < dim; ++k)
        weights_[(l * width + k) * width + i] = spec.weights[(l * dim + i) * dim + k];
    }
  for (int64_t i = 0; i < dim; ++i) lane_mask_[i] = std::bit_cast<float>(~uint32_t{0});
  for (int64_t i = 0; i < probe_seeds_.size(); ++i)
    probe_seeds_[i] = static_cast<uint32_t>(i + 1) * 0x9E3779B1U;
  view_ = {.num_steps = steps,
           .state_dim = dim,
           .width = width,
           .weights = weights_.data(),
           .biases = biases_.data(),
           .lane_mask = lane_mask_.data(),
           .probe_seeds = probe_seeds_.data(),
           .scale = spec.residual_scale,
           .residual = spec.residual,
           .activation = spec.activation};
}

IntervalBuffers::IntervalBuffers(const cpu::LayersView& layers, int64_t interval)
    : layers_(layers),
      width_(layers.width),
      interval_(interval),
      intervals_((layers.num_steps - 1) / interval + 1),
      states_((intervals_ + 1) * cpu::kColumns * width_),
      propagated_(intervals_ * cpu::kColumns * width_),
      prefixes_(intervals_ * cpu::kColumns * width_),
      jacobians_(intervals_ * width_ * width_),
      scratch_((2 * (width_ + cpu::kColumns) + 4) * width_) {}

cpu::PropagateArgs IntervalBuffers::ToPropagate(Matrices matrices, bool probes) {
  return {.layers = layers_,
          .interval = interval_,
          .first_interval = 0,
          .end_interval = intervals_,
          .states = states_.data(),
          .propagated = propagated_.data(),
          .jacobians = matrices == Matrices::kNone ? nullptr : jacobians_.data(),
          .scratch = scratch_.data(),
          .diagonal = matrices == Matrices::kDiagonal,
          .probes = probes};
}

cpu::UpdateArgs IntervalBuffers::ToUpdate(Matrices matrices, bool probes, double floor) {
  return {.width = layers_.width,
          .inner = layers_.state_dim,
          .num_intervals = intervals_,
          .states = states_.data(),
          .propagated = propagated_.data(),
          .jacobians = matrices == Matrices::kNone ? nullptr : jacobians_.data(),
          .prefix = prefixes_.data(),
          .floor = floor,
          .diagonal = matrices == Matrices::kDiagonal,
          .probes = probes};
}

}  // namespace deeppcr::testing
