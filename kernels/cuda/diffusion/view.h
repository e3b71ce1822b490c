// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_VIEW_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_VIEW_H_

// A denoiser in the device's memory. DenoiserSpec (kernels/problem/spec.h) defines the network.

#include <cstdint>

#include "kernels/cuda/loop/newton_shape.h"
#include "kernels/cuda/math/half_layer.h"
#include "kernels/cuda/math/panel_layer.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"
#include "kernels/problem/activation.h"
#include "kernels/problem/reverse_step.h"

namespace deeppcr::cuda {

// The layers of a small residual denoiser as half-precision numbers, for guesses: see HalfDenoiser.
struct HalfLayers {
  HalfLayer input, output;
  HalfLayer first;  // that of the first block, before those of the others
};

// A modulation row holds, for one step (and condition), H' floats each:
//   residual MLP  per block: the bias of its layer plus its part of mu
//   adaLN MLP     per block: gain  = norm weight (1 + scale)
//                            shift = norm bias (1 + scale) + shift
//                            gate
//                 at the end: gain = 1 + scale, shift
struct DenoiserView {
  bool ada_ln;  // else residual MLP
  Activation activation;
  int32_t state_dim;     // D
  int32_t state_cols;    // floats of a state for the layers: a multiple of kPanelCols
  int32_t hidden_dim;    // H
  int32_t hidden_width;  // H', a multiple of kPanelCols
  int32_t num_blocks;    // N
  PanelLayer input, output;
  PanelLayer first;   // that of the first block, before those of the others
  PanelLayer second;  // the same, adaLN only
  HalfLayers halves;  // where FitsRegisters
  float clip_range;   // may be infinite
  float norm_epsilon;

  constexpr int32_t modulation_floats() const {
    return (ada_ln ? 3 * num_blocks + 2 : num_blocks) * hidden_width;
  }
};

// True where the registers of a block have room for the layers of blocks, as they are (HeldLayers)
// or as half-precision numbers (HalfDenoiser).
constexpr bool FitsRegisters(const DenoiserView& d) {
  return !d.ada_ln && d.hidden_width <= kHeldWidth && d.state_cols <= kMaxWarpStateDim;
}

// Data that a step needs beside its state.
struct StepView {
  ReverseCoefficients coefficients;
  const float* modulation;
  const float* noise;  // [D], or null where sigma is 0
  int64_t draw;        // see DrawOfSigns

  // Step of a row: all rows, a state and its tangents, have the same step.
  DEEPPCR_DEVICE const StepView& Row(int) const { return *this; }
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_VIEW_H_
