// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_TAPE_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_TAPE_H_

#include <cstdint>

#include "kernels/cuda/diffusion/view.h"
#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// Tape of a step of states for their tangents, which follow in launches of their own: the vectors
// at which the network was linearized. In global memory; elements beyond H and D are undefined.
struct DenoiserTape {
  float* rows = nullptr;  // [rows, Floats(d)]; null: nothing is kept

  static constexpr int64_t Floats(const DenoiserView& d) {
    const int64_t vectors = 1 + (d.ada_ln ? 3 : 2) * int64_t{d.num_blocks};
    return vectors * d.hidden_width + 2 * int64_t{d.state_cols};
  }
  DEEPPCR_DEVICE bool keeps() const { return rows != nullptr; }
  // The tape of rows r, r + 1, ...
  DEEPPCR_DEVICE DenoiserTape From(const DenoiserView& d, int64_t r) const {
    return {keeps() ? rows + r * Floats(d) : nullptr};
  }

  // z before the step, and the network's output at z.
  DEEPPCR_DEVICE float* State(const DenoiserView& d, int r) const { return rows + r * Floats(d); }
  DEEPPCR_DEVICE float* Prediction(const DenoiserView& d, int r) const {
    return State(d, r) + d.state_cols;
  }
  // Input of block b of the network; for b = N, the output of the last block.
  DEEPPCR_DEVICE float* Hidden(const DenoiserView& d, int r, int b) const {
    return Prediction(d, r) + d.state_cols + int64_t{b} * d.hidden_width;
  }
  // Pre-activation of block b.
  DEEPPCR_DEVICE float* PreActivation(const DenoiserView& d, int r, int b) const {
    return Hidden(d, r, d.num_blocks + 1 + b);
  }
  // Vector that the gate of block b multiplies (adaLN).
  DEEPPCR_DEVICE float* Gated(const DenoiserView& d, int r, int b) const {
    return PreActivation(d, r, d.num_blocks + b);
  }
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_TAPE_H_
