// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_PACKED_PANELS_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_PACKED_PANELS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/cache_sizes.h"
#include "kernels/cpu/program/kernels.h"

namespace deeppcr::cpu {

// Padded floats of a row: 16, 32, 64 or the next multiple of 64.
int64_t PanelRowWidth(int64_t dim);

// Floats that one packed layer takes, with its bias and its spreads.
int64_t PanelFloats(int64_t rows, int64_t cols);

// Layers of one shape, cut into panels, one behind the other in memory.
struct PackedPanels {
  AlignedBuffer<float> weights, bias, spreads;
  std::vector<PanelView> views;  // [layers]

  int64_t memory_bytes() const {
    return (weights.size() + bias.size() + spreads.size()) * static_cast<int64_t>(sizeof(float));
  }
};

// Panels of zeros, to be filled by PackLayer.
// Errors: kResourceExhausted with the bytes that could not be had.
absl::StatusOr<PackedPanels> NewPanels(int64_t layers, int64_t rows, int64_t cols);
// Packs weight [rows, cols] and bias [rows] (empty for zero) of one layer.
void PackLayer(int64_t layer, int64_t cols, std::span<const float> weight,
               std::span<const float> bias, PackedPanels* packed);

// Says in all views whether they are taken in parts (PanelView::in_parts): where all layers
// together leave the second-level cache no room for states, and the first has room for two parts of
// a panel.
void ChooseParts(CacheBytes caches, std::span<PackedPanels> all);

// Packs weight [layers, rows, cols] and bias [layers, rows] (empty for zero).
// Errors: kResourceExhausted with the bytes that could not be had.
absl::StatusOr<PackedPanels> PackPanels(int64_t layers, int64_t rows, int64_t cols,
                                        std::span<const float> weight, std::span<const float> bias);

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_PACKED_PANELS_H_
