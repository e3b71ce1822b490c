// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_STACK_SYSTEM_H_
#define DEEPPCR_KERNELS_CPU_STACK_SYSTEM_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/packed_dense.h"
#include "kernels/cpu/recurrence.h"

namespace deeppcr::cpu {

// A dense stack, layer by layer.
struct PackedStack final : public PackedSystem {
  int64_t memory_bytes() const override;
  int64_t RecurrenceBytes() const override;
  std::unique_ptr<Recurrence> NewRecurrence() const override;
  int64_t BackwardRecurrenceBytes(const BackwardLimits& limits) const override;
  std::unique_ptr<BackwardRecurrence> NewBackwardRecurrence(
      const BackwardLimits& limits) const override;

  int64_t side_bytes() const override { return SideGivesSlope(activation) ? SideBytes(width) : 0; }

  absl::Status AddParameterGradients(std::span<const ParameterSample> samples, int64_t begin,
                                     int64_t end, const ParameterSums& sums) const override;

  absl::Status Repack(const DenseStackSpec& spec, int64_t begin, int64_t end) override;

  LayersView View() const;

  AlignedBuffer<float> weights, biases, lane_mask;
  // For the backward pass: the layers' weights transposed [L, W (column), W], and zeros [W].
  AlignedBuffer<float> transposed, zeros;
  AlignedBuffer<uint32_t> probe_seeds;
  float scale = 1;
  bool residual = false;
  Activation activation = Activation::kIdentity;
  PackedDense encode, decode;
};

// Errors: as Backend::NewSystem.
absl::StatusOr<std::unique_ptr<PackedSystem>> PackStack(const DenseStackSpec& spec,
                                                        Kernels (*kernels)(int64_t width),
                                                        const PackingLimits& limits);

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_STACK_SYSTEM_H_
