// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_MATH_OWN_PANELS_H_
#define DEEPPCR_KERNELS_CUDA_MATH_OWN_PANELS_H_

// The panels of a layer (panel_layer.h) that a block of a grid has (grid_team.h).

#include <cstdint>

#include "kernels/cuda/math/panel_layer.h"
#include "kernels/cuda/runtime/device_code.h"

namespace deeppcr::cuda {

// Panels of a layer that a block has, of `panels` that are dealt out from the block `first` on.
constexpr int OwnPanelsOf(int panels, int first, int block, int blocks) {
  const int place = block >= first ? block - first : block - first + blocks;
  return (panels - place + blocks - 1) / blocks;
}

// A panel that lies in shared memory, where those of a layer are that a block has, or in global
// memory, where all of them are. Groups of weights (panel_layer.h) are loaded some at a time: a
// warp has a scheduler to itself, and nobody to run while it waits for them.
template <int P, class Context>
class OwnPanels {
 public:
  static_assert(P == 1, "neighbouring panels are in different blocks");
  DEEPPCR_DEVICE OwnPanels(Context& context, const PanelLayer& layer, int panel)
      : context_(context),
        groups_(layer.cols / kPanelCols),
        shared_(context.IsShared(layer.weights)),
        weights_(layer.weights +
                 int64_t{shared_ ? Own(context, panel) : panel} * kPanelRows * layer.cols +
                 context.lane() * 4) {}
  template <class F>
  DEEPPCR_DEVICE void ForGroups(const F& f) const {
    if (shared_) {
      // From the beginning of shared memory, so that the compiler sees that it lies there.
      const float* const memory = SharedFloats(context_);
      const auto at = static_cast<int>(weights_ - memory);
      return ForGroupsBy(
          [&](int j, float(&w)[4]) { context_.LoadFour(memory + at + j * kWarpSize * 4, w); }, f);
    }
    ForGroupsBy(
        [&](int j, float(&w)[4]) { context_.LoadConstants(weights_ + j * kWarpSize * 4, w); }, f);
  }

 private:
  template <class Load, class F>
  DEEPPCR_DEVICE void ForGroupsBy(const Load& load, const F& f) const {
    constexpr int kAhead = 16;
    int j = 0;
    DEEPPCR_AS_WRITTEN
    for (; j + kAhead <= groups_; j += kAhead) {
      float w[kAhead][P][4];
      DEEPPCR_UNROLL
      for (int k = 0; k < kAhead; ++k) load(j + k, w[k][0]);
      DEEPPCR_UNROLL
      for (int k = 0; k < kAhead; ++k) f(j + k, w[k]);
    }
    DEEPPCR_AS_WRITTEN
    for (; j < groups_; ++j) {
      float w[P][4];
      load(j, w[0]);
      f(j, w);
    }
  }
  // Number of a panel among those of this block: the quotient of panel by the number of blocks,
  // which is the warp's number unless there are more panels than warps.
  static DEEPPCR_DEVICE int Own(Context& context, int panel) {
    const int blocks = context.num_blocks();
    int own = context.warp();
    while ((own + 1) * blocks <= panel) own += context.num_threads() / kWarpSize;
    return own;
  }

  Context& context_;
  const int groups_;
  const bool shared_;
  const float* const weights_;
};

// Copies a block's panels of a layer to its shared memory; `team` deals them out. The caller
// commits the copies, waits for them, and synchronises the block.
template <class Team>
DEEPPCR_DEVICE void CopyOwnPanels(const Team& team, const PanelLayer& layer, float* to) {
  auto& context = team.context();
  const int floats = kPanelRows * layer.cols;
  for (int panel = team.place(); panel < layer.rows / kPanelRows;
       panel += context.num_blocks(), to += floats) {
    for (int i = 4 * context.thread(); i < floats; i += 4 * context.num_threads())
      context.template CopyAsync<4>(layer.weights + int64_t{panel} * floats + i, to + i);
  }
}
// The same layer with a block's own panels.
DEEPPCR_DEVICE PanelLayer WithOwnPanels(const float* weights, const PanelLayer& layer) {
  return {weights, layer.bias, layer.spreads, layer.rows, layer.cols};
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_MATH_OWN_PANELS_H_
