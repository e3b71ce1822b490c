// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/program/packed_panels.h"

#include <algorithm>
#include <cmath>

#include "kernels/backend/common.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/packed_dense.h"

namespace deeppcr::cpu {
namespace {

constexpr int64_t kWidestPanel = 64;
// Inputs per group: the largest number of partial sums.
constexpr int64_t kInputGroup = 4;
// A part of a panel of 64 outputs, 64 inputs, and the next one, which is fetched meanwhile.
constexpr int64_t kPartBytes = 64 * 64 * sizeof(float), kPartsBytes = 2 * kPartBytes;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Packs one row-major matrix [rows, cols] into [width / panel, view.cols, panel].
void PackOne(const PanelView& view, const float* matrix, int64_t cols, float* weights,
             float* spreads) {
  for (int64_t i = 0; i < view.rows; ++i) {
    double squares = 0;
    float* column = weights + i / view.panel * view.panel * view.cols + i % view.panel;
    for (int64_t k = 0; k < cols; ++k) {
      const float w = matrix[i * cols + k];
      column[k * view.panel] = w;
      squares += double{w} * w;
    }
    spreads[i] = RoundingSpread(squares, cols);
  }
}

}  // namespace

int64_t PanelRowWidth(int64_t dim) {
  for (const int64_t width : {16, 32}) {
    if (dim <= width) return width;
  }
  return RoundUp(dim, kWidestPanel);
}

int64_t PanelFloats(int64_t rows, int64_t cols) {
  return PanelRowWidth(rows) * (RoundUp(cols, kInputGroup) + 2);
}

absl::StatusOr<PackedPanels> NewPanels(int64_t layers, int64_t rows, int64_t cols) {
  const int64_t width = PanelRowWidth(rows), padded_cols = RoundUp(cols, kInputGroup);
  const int64_t floats = width * padded_cols;
  PackedPanels packed;
  packed.weights = AlignedBuffer<float>(layers * floats);
  packed.bias = AlignedBuffer<float>(layers * width);
  packed.spreads = AlignedBuffer<float>(layers * width);
  DEEPPCR_RETURN_IF_ERROR(
      CheckAllocated(packed.weights.ok() && packed.bias.ok() && packed.spreads.ok(),
                     layers * PanelFloats(rows, cols)));
  for (int64_t i = 0; i < layers; ++i)
    packed.views.push_back({.rows = rows,
                            .cols = padded_cols,
                            .panel = std::min(width, kWidestPanel),
                            .width = width,
                            .weights = packed.weights.data() + i * floats,
                            .bias = packed.bias.data() + i * width,
                            .spreads = packed.spreads.data() + i * width});
  return packed;
}

void PackLayer(int64_t layer, int64_t cols, std::span<const float> weight,
               std::span<const float> bias, PackedPanels* packed) {
  const PanelView& view = packed->views[static_cast<size_t>(layer)];
  PackOne(view, weight.data(), cols, packed->weights.data() + layer * view.width * view.cols,
          packed->spreads.data() + layer * view.width);
  std::ranges::copy(bias, packed->bias.data() + layer * view.width);
}

void ChooseParts(CacheBytes caches, std::span<PackedPanels> all) {
  int64_t bytes = 0;
  for (const PackedPanels& packed : all) bytes += packed.memory_bytes();
  const bool in_parts = bytes > caches.second / 4 * 3 && caches.first > kPartsBytes;
  for (PackedPanels& packed : all)
    for (PanelView& view : packed.views) view.in_parts = in_parts;
}

absl::StatusOr<PackedPanels> PackPanels(int64_t layers, int64_t rows, int64_t cols,
                                        std::span<const float> weight,
                                        std::span<const float> bias) {
  DEEPPCR_ASSIGN_OR_RETURN(PackedPanels packed, NewPanels(layers, rows, cols));
  for (int64_t i = 0; i < layers; ++i)
    PackLayer(i, cols, weight.subspan(i * rows * cols, rows * cols),
              bias.empty() ? bias : bias.subspan(i * rows, rows), &packed);
  return packed;
}

}  // namespace deeppcr::cpu
