// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu_system.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/backend/scan_tree.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/cpu_space.h"

namespace deeppcr::cpu {
namespace {

static_assert(kColumns == kNumColumns);

// Row-major [rows, cols] to columns of `width` floats.
void PackColumns(std::span<const float> matrix, int64_t rows, int64_t cols, int64_t width,
                 float* to) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t k = 0; k < cols; ++k) to[k * width + i] = matrix[i * cols + k];
}

absl::Status CheckAllocated(bool ok, int64_t floats) {
  if (ok) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "packed weights: ", floats * int64_t{sizeof(float)}, " bytes of memory could not be had"));
}

double LargestRowSum(const DenseSpec& spec) {
  double largest = 0;
  for (int64_t i = 0; i < spec.rows; ++i) {
    double sum = 0;
    for (int64_t k = 0; k < spec.cols; ++k) sum += std::fabs(spec.weight[i * spec.cols + k]);
    largest = std::max(largest, sum);
  }
  return largest;
}

absl::StatusOr<PackedDense> PackDense(const DenseSpec& spec) {
  PackedDense packed;
  if (spec.rows == 0) return packed;
  packed.rows = spec.rows;
  packed.cols = spec.cols;
  packed.width = PaddedWidth(spec.rows);
  packed.activation = spec.activation;
  packed.weights = AlignedBuffer<float>(spec.cols * packed.width);
  packed.bias = AlignedBuffer<float>(packed.width);
  DEEPPCR_RETURN_IF_ERROR(
      CheckAllocated(packed.weights.ok() && packed.bias.ok(), spec.cols * packed.width));
  PackColumns(spec.weight, spec.rows, spec.cols, packed.width, packed.weights.data());
  std::copy(spec.bias.begin(), spec.bias.end(), packed.bias.data());
  packed.row_sum = LargestRowSum(spec);
  return packed;
}

absl::Status PackLayers(const SystemSpec& spec, PackedSystem* packed) {
  const int64_t dim = spec.state_dim, width = packed->width;
  packed->weights = AlignedBuffer<float>(spec.num_steps * width * width);
  packed->biases = AlignedBuffer<float>(spec.num_steps * width);
  DEEPPCR_RETURN_IF_ERROR(CheckAllocated(packed->weights.ok() && packed->biases.ok(),
                                         spec.num_steps * width * (width + 1)));
  for (int64_t l = 0; l < spec.num_steps; ++l) {
    PackColumns(spec.weights.subspan(l * dim * dim, dim * dim), dim, dim, width,
                packed->weights.data() + l * width * width);
    if (!spec.biases.empty())
      std::copy_n(spec.biases.data() + l * dim, dim, packed->biases.data() + l * width);
  }
  return absl::OkStatus();
}

// All ones in the lanes in use; and seeds for the signs of the rounding probes, the same for every
// model.
void PackLanes(PackedSystem* packed) {
  packed->lane_mask = AlignedBuffer<float>(packed->width);
  packed->probe_seeds = AlignedBuffer<uint32_t>(kNumProbes * packed->width);
  for (int64_t i = 0; i < packed->state_dim; ++i)
    packed->lane_mask[i] = std::bit_cast<float>(0xFFFFFFFFU);
  for (int64_t v = 0; v < kNumProbes; ++v)
    for (int64_t i = 0; i < packed->width; ++i)
      packed->probe_seeds[v * packed->width + i] =
          static_cast<uint32_t>(i * kNumProbes + v + 1) * 0x27D4EB2FU;
}

int64_t FloatsOf(const PackedDense& dense) { return dense.weights.size() + dense.bias.size(); }

class CpuSystem final : public System {
 public:
  explicit CpuSystem(std::unique_ptr<PackedSystem> packed) : packed_(std::move(packed)) {}

  int64_t memory_bytes() const override {
    const int64_t floats = packed_->weights.size() + packed_->biases.size() +
                           FloatsOf(packed_->encode) + FloatsOf(packed_->decode) +
                           static_cast<int64_t>(packed_->guess.coefficients.size());
    return floats * int64_t{sizeof(float)};
  }
  int64_t SpaceBytes(const SpaceLimits& limits) const override {
    return CpuSpaceBytes(*packed_, limits);
  }
  absl::StatusOr<std::unique_ptr<SolveSpace>> NewSpace(const SpaceLimits& limits) const override {
    return NewCpuSpace(*packed_, limits);
  }
  void SetAffineGuess(const AffineGuess& guess) override { packed_->guess = guess; }

 private:
  std::unique_ptr<PackedSystem> packed_;
};

}  // namespace

int64_t PaddedWidth(int64_t state_dim) {
  for (const int64_t width : {4, 8, 16, 32, 64}) {
    if (state_dim <= width) return width;
  }
  return (state_dim + 31) / 32 * 32;
}

LayersView PackedSystem::View() const {
  return {.num_steps = num_steps,
          .state_dim = state_dim,
          .width = width,
          .weights = weights.data(),
          .biases = biases.data(),
          .lane_mask = lane_mask.data(),
          .probe_seeds = probe_seeds.data(),
          .scale = scale,
          .residual = residual,
          .activation = activation};
}

absl::StatusOr<std::unique_ptr<System>> NewCpuSystem(const SystemSpec& spec,
                                                     Kernels (*kernels)(int64_t width)) {
  auto packed = std::make_unique<PackedSystem>();
  packed->num_steps = spec.num_steps;
  packed->state_dim = spec.state_dim;
  packed->width = PaddedWidth(spec.state_dim);
  packed->input_dim = spec.input_dim();
  packed->output_dim = spec.output_dim();
  packed->scale = spec.residual_scale;
  packed->residual = spec.residual;
  packed->activation = spec.activation;
  packed->kernels = kernels(packed->width);
  DEEPPCR_RETURN_IF_ERROR(PackLayers(spec, packed.get()));
  PackLanes(packed.get());
  DEEPPCR_ASSIGN_OR_RETURN(packed->encode, PackDense(spec.encode));
  DEEPPCR_ASSIGN_OR_RETURN(packed->decode, PackDense(spec.decode));
  packed->encode_kernels = kernels(packed->encode.width);
  packed->decode_kernels = kernels(packed->decode.width);
  return std::unique_ptr<System>(std::make_unique<CpuSystem>(std::move(packed)));
}

}  // namespace deeppcr::cpu
