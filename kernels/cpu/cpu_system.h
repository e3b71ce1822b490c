// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_CPU_SYSTEM_H_
#define DEEPPCR_KERNELS_CPU_CPU_SYSTEM_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/kernels.h"

namespace deeppcr::cpu {

// Padded width of a state of dimension D: 4, 8, 16, 32, 64 or the next multiple of 32.
int64_t PaddedWidth(int64_t state_dim);

// A dense layer packed column by column: weights [cols, width(rows)], bias [width(rows)].
struct PackedDense {
  int64_t rows = 0;  // 0: the identity
  int64_t cols = 0;
  int64_t width = 0;
  AlignedBuffer<float> weights, bias;
  Activation activation = Activation::kIdentity;
  double row_sum = 0;  // largest sum of absolute weights in a row: the max-norm of the matrix
};

// Everything that the spaces of one system share.
struct PackedSystem {
  int64_t num_steps = 0, state_dim = 0, width = 0;
  int64_t input_dim = 0, output_dim = 0;
  AlignedBuffer<float> weights, biases, lane_mask;
  AlignedBuffer<uint32_t> probe_seeds;
  float scale = 1;
  bool residual = false;
  Activation activation = Activation::kIdentity;
  PackedDense encode, decode;
  AffineGuess guess;
  Kernels kernels = {};         // for `width`
  Kernels encode_kernels = {};  // for the padded widths of the outer layers
  Kernels decode_kernels = {};

  LayersView View() const;
};

// Errors: kResourceExhausted with the bytes that could not be had.
absl::StatusOr<std::unique_ptr<System>> NewCpuSystem(const SystemSpec& spec,
                                                     Kernels (*kernels)(int64_t width));

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_CPU_SYSTEM_H_
