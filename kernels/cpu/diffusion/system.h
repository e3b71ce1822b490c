// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_DIFFUSION_SYSTEM_H_
#define DEEPPCR_KERNELS_CPU_DIFFUSION_SYSTEM_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/diffusion/packed_panels.h"
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/packed_dense.h"
#include "kernels/cpu/recurrence.h"

namespace deeppcr::cpu {

// Limit on the modulation rows of all classes; beyond it, rows are made for each sample.
inline constexpr int64_t kMaxModulationBytes = int64_t{64} << 20;

// Samples that are advanced together, at most: whole blocks of six rows, and so many that a step
// which reads its weights from memory is bound by its products (measured: layers of 128 and 1024
// gain nothing beyond, with AVX2 and AVX-512 on Zen 4). Fewer, but no fewer than kSequentialGroup,
// where the noise and the modulation rows of so many take more than kMaxGroupBytes.
inline constexpr int64_t kDiffusionGroup = 24;
inline constexpr int64_t kMaxGroupBytes = int64_t{64} << 20;

// A reverse process and its denoiser.
struct PackedDiffusion final : public PackedSystem {
  int64_t memory_bytes() const override;
  int64_t RecurrenceBytes() const override;
  std::unique_ptr<Recurrence> NewRecurrence() const override;

  // True if the modulation rows depend on the sample in a way that no table holds.
  bool modulation_per_sample() const { return tables.size() == 0; }
  int64_t table_floats() const { return shape.num_steps * denoiser.modulation_floats; }
  // Floats of noise and modulation rows that a recurrence keeps for a sample.
  int64_t sample_floats() const {
    return shape.num_steps * denoiser.state_width + (modulation_per_sample() ? table_floats() : 0);
  }
  // Fills table [L, modulation_floats] from time embedding + the condition's embedding [H] (null:
  // none); y [kModulationTile, H'] is scratch. Unfinished if the token has fired.
  void Modulate(const float* embedding, float* y, float* table, const CancelToken* token) const;

  DenoiserKernels denoiser_kernels = {};
  DenoiserView denoiser = {};
  std::vector<ReverseCoefficients> coefficients;  // [L]
  std::vector<HoldCoefficients> holds;            // [L]

  AlignedBuffer<float> time_embedding;   // [L, H']
  AlignedBuffer<float> class_embedding;  // [num_classes, H']
  PackedDense condition;
  AlignedBuffer<float> tables;  // [max(num_classes, 1), L, modulation_floats], or empty
  std::vector<PackedDense> decoder;

  // Storage that `denoiser` points to.
  PackedPanels input, output, first, second, modulation;
  AlignedBuffer<float> norm_weight, norm_bias, state_mask, hidden_mask;
  AlignedBuffer<uint32_t> state_seeds, hidden_seeds;
};

// Rows that Modulate handles at a time.
inline constexpr int64_t kModulationTile = 64;

// Errors: as Backend::NewSystem.
absl::StatusOr<std::unique_ptr<PackedSystem>> PackDiffusion(
    const DiffusionSpec& spec, const KernelSet& set, const PackingLimits& limits = {},
    int64_t max_modulation_bytes = kMaxModulationBytes);

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_DIFFUSION_SYSTEM_H_
