// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_STEP_SHAPE_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_STEP_SHAPE_H_

// What those who launch reverse steps (reverse_step.h) know of them: their rows, their memory and
// their barriers.

#include <cstdint>

#include "kernels/cuda/diffusion/view.h"
#include "kernels/cuda/math/panel_layer.h"

namespace deeppcr::cuda {

// The barrier calls of a step.
enum DenoiserSite : int {
  kAfterInputLayer = 32,  // beyond those of the kernels that make the steps
  kAfterResidualBlock,
  kAfterNorm,
  kAfterModulation,
  kAfterInnerLayer,
  kAfterOuterLayer,
  kAfterPrediction,
  kAfterReverseStep,
  kNumDenoiserSites,
};

// Floats of shared memory for the norm of a state alone, and for steps of `rows` rows.
inline constexpr int kNormFloats = 4;
constexpr int64_t DenoiserFloats(const DenoiserView& d, int rows) {
  const VectorShape state = VectorShape::For(d.state_cols, rows);
  const VectorShape hidden = VectorShape::For(d.hidden_width, rows);
  return 2 * state.floats() + 3 * hidden.floats() + kNormFloats;
}

// Kind of the rows of a step, of which there are at most S.
enum class StepRowsAre : uint8_t {
  kStateAndTangents,  // a state in row 0, then the probes if they are carried, then columns of the
                      // Jacobian
  kStates,            // one state per row, each of another sample, with the step Row(r)
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_STEP_SHAPE_H_
