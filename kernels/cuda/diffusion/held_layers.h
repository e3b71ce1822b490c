// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_HELD_LAYERS_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_HELD_LAYERS_H_

// Where a reverse step (reverse_step.h) has the layers of its denoiser.

#include <cstdint>

#include "kernels/cuda/diffusion/view.h"
#include "kernels/cuda/math/panel_layer.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/tuning.h"

namespace deeppcr::cuda {

// Layers of the residual denoiser whose weights stay in registers from step to step: those of the
// first blocks. A step of one state takes the time that its weights take to arrive, which held
// weights save. For blocks of threads with a warp for every panel of H' <= kHeldWidth.
struct NoHeldLayers {
  static constexpr int kCount = 0;        // layers in registers
  static constexpr int kStatePanels = 1;  // panels of a product with states
  static constexpr bool kAdaLn = true;    // the kernel has the code of adaLN blocks
  // Weights of the layers of residual blocks, of the input and the output layer, and of the layers
  // of adaLN blocks.
  template <int P, class Context>
  using Panels = StreamedPanels<P, Context>;
  template <int P, class Context>
  using OuterPanels = Panels<P, Context>;
  template <int P, class Context>
  using AdaLnPanels = StreamedPanels<P, Context>;
  DEEPPCR_DEVICE PanelLayer Input(const DenoiserView& d) const { return d.input; }
  DEEPPCR_DEVICE PanelLayer First(const DenoiserView& d, int b) const { return d.first.Next(b); }
  DEEPPCR_DEVICE PanelLayer Second(const DenoiserView& d, int b) const { return d.second.Next(b); }
  DEEPPCR_DEVICE PanelLayer Output(const DenoiserView& d) const { return d.output; }
};
// Layers that lie in shared memory, all of them.
struct ResidentLayers : NoHeldLayers {
  static constexpr int kStatePanels = 2;
  template <int P, class Context>
  using Panels = ResidentPanels<P, Context>;
  template <int P, class Context>
  using OuterPanels = Panels<P, Context>;
};
// With the input and the output layer in shared memory, for states of up to kMaxWarpStateDim: from
// the L2, the two warps that have the output layer would wait for one piece of it after another.
struct HeldLayers : NoHeldLayers {
  static constexpr int kCount = kHeldLayers;
  static constexpr bool kAdaLn = false;
  template <int P, class Context>
  using OuterPanels = ResidentPanels<P, Context>;
  // Floats of a block's shared memory for copies, aligned to 16 bytes.
  static constexpr int64_t Floats(const DenoiserView& d) {
    return int64_t{2} * d.hidden_width * d.state_cols;
  }

  HeldPanel<kHeldWidth / kPanelCols> layers[kCount];
  const float* copies;

  // The caller synchronises the block before the first step.
  template <class Team>
  DEEPPCR_DEVICE void Hold(const Team& team, const DenoiserView& d, float* memory) {
    copies = memory;
    auto& context = team.context();
    const int floats = d.hidden_width * d.state_cols;
    for (int i = 4 * context.thread(); i < floats; i += 4 * context.num_threads()) {
      context.template CopyAsync<4>(d.input.weights + i, memory + i);
      context.template CopyAsync<4>(d.output.weights + i, memory + floats + i);
    }
    context.CommitCopies();
    context.template WaitForCopies<0>();
    DEEPPCR_UNROLL
    for (int b = 0; b < kCount; ++b) {
      if (b < d.num_blocks && team.warp() < d.hidden_width / kPanelRows)
        layers[b].Hold(team.context(), d.first.Next(b), team.warp());
    }
  }
  DEEPPCR_DEVICE PanelLayer Input(const DenoiserView& d) const {
    return {copies, d.input.bias, d.input.spreads, d.input.rows, d.input.cols};
  }
  DEEPPCR_DEVICE PanelLayer Output(const DenoiserView& d) const {
    const float* const weights = copies + d.hidden_width * d.state_cols;
    return {weights, d.output.bias, d.output.spreads, d.output.rows, d.output.cols};
  }
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_HELD_LAYERS_H_
