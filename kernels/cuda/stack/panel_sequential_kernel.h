// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_STACK_PANEL_SEQUENTIAL_KERNEL_H_
#define DEEPPCR_KERNELS_CUDA_STACK_PANEL_SEQUENTIAL_KERNEL_H_

// The sequential solver of dense stacks whose layers a block of threads takes, a warp for each
// panel of eight rows: z_l = act(W_l z_{l-1} + b_l), or z_{l-1} + scale act(W_l z_{l-1} + b_l).
// States are those of PanelStackStep (panel_step.h), bit for bit. A step waits for the one before,
// so nothing but the state itself stands between two barriers: layers are on their way to shared
// memory several steps ahead, by copies of each lane for itself, and the weights of the next step
// are in registers before it begins.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/loop/block_recurrence.h"
#include "kernels/cuda/math/panel_layer.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/cuda/stack/panel_step.h"
#include "kernels/cuda/stack/sequential_kernel.h"
#include "kernels/cuda/stack/warp_step.h"

namespace deeppcr::cuda {

// The barrier calls of the kernel.
enum PanelSequentialSite : int {
  kAfterPanelState,
  kAfterPanelLayer,
  kNumPanelSequentialSites,
};

// Ring of layers in shared memory, of kGroups groups of 16 columns. A lane's weights of a layer are
// four of each group.
template <int kGroups>
struct PanelRing {
  static constexpr int kWidth = kGroups * kPanelCols, kWarps = kWidth / kPanelRows;
  // Layers of the ring: that which is at hand, and those on their way, for which wide ones leave
  // less room.
  static constexpr int kLayers = kGroups <= 4 ? 8 : kGroups <= 7 ? 4 : 3;
  // Floats of a warp's part of a layer: its weights by group, then the biases; of a warp's ring;
  // and of a block, with two states.
  static constexpr int kLayerFloats = (4 * kGroups + 1) * kWarpSize;
  static constexpr int kFloats = kLayers * kLayerFloats;
  static constexpr int kStateFloats = VectorShape{kWidth, 1}.floats();
  static constexpr size_t kBytes = sizeof(float) * (2 * kStateFloats + kWarps * kFloats);
};
// Layers behind the last one that are copied and never used.
inline constexpr int kLayersBehind = PanelRing<1>::kLayers - 1;

// Calls f(std::integral_constant<int, kGroups>) for states of `width`, one of the widths that the
// kernel is made for, or returns false.
template <class F>
constexpr bool WithPanelGroups(int width, const F& f) {
  const auto is = [&](auto groups) {
    const bool found = width == groups.value * kPanelCols;
    if (found) f(groups);
    return found;
  };
  return is(std::integral_constant<int, 1>()) || is(std::integral_constant<int, 2>()) ||
         is(std::integral_constant<int, 3>()) || is(std::integral_constant<int, 4>()) ||
         is(std::integral_constant<int, 5>()) || is(std::integral_constant<int, 6>()) ||
         is(std::integral_constant<int, 7>()) || is(std::integral_constant<int, 8>());
}
// True where a block has the warps and the memory for states of `width`.
constexpr bool TakesPanelSequence(int width, size_t shared_bytes, int max_warps) {
  bool takes = false;
  WithPanelGroups(width, [&](auto groups) {
    using Ring = PanelRing<groups.value>;
    takes = Ring::kWarps <= max_warps && Ring::kBytes <= shared_bytes;
  });
  return takes;
}

template <int kGroups, class Context, class Rule>
class PanelSequence {
 public:
  DEEPPCR_DEVICE PanelSequence(Context& context, const BlockSequentialArgs<PanelStackView>& args,
                               const Rule& rule)
      : context_(context),
        args_(args),
        rule_(rule),
        row_(context.warp() * kPanelRows + context.lane() / kSegments),
        leads_(context.lane() % kSegments == 0),
        sample_(context.cluster()),
        states_(SharedFloats(context)),
        slots_(states_ + 2 * Ring::kStateFloats + context.warp() * Ring::kFloats),
        weights_(args.process.weights + args.begin * kLayerWeights +
                 (context.warp() * kGroups * kWarpSize + context.lane()) * 4),
        biases_(args.process.biases + args.begin * Ring::kWidth + row_),
        z_(args.states[sample_ * Ring::kWidth + row_]),
        trajectory_(args, args.process, sample_, row_, leads_) {}

  DEEPPCR_DEVICE void Run() {
    Place(0);
    trajectory_.Write(z_);
    DEEPPCR_UNROLL
    for (int k = 0; k + 1 < kLayers; ++k) Fetch(k);
    Layer layer = ReadNext(0);
    context_.SyncBlock(kAfterPanelState);
    int64_t made = 0;
    for (int64_t left = args_.end - args_.begin; left > 0; left -= kLayers) {
      DEEPPCR_UNROLL
      for (int k = 0; k < kLayers; ++k) {
        if (k >= left) break;
        Step(k, &layer);
        ++made;
      }
    }
    context_.template WaitForCopies<0>();  // no copy is to come after the block has gone
    if (leads_) args_.final_states[sample_ * Ring::kWidth + row_] = z_;
    if (sample_ == 0 && context_.thread() == 0) *args_.num_dependent = made;
  }

 private:
  using Ring = PanelRing<kGroups>;
  static constexpr int kLayers = Ring::kLayers, kLayerWeights = Ring::kWidth * Ring::kWidth;
  static constexpr VectorShape Shape() { return {Ring::kWidth, 1}; }
  struct Layer {
    float weights[kGroups][4];
    float bias;
  };

  // Two states take turns; their number goes on where the ring has an odd number of layers.
  DEEPPCR_DEVICE float* State(int which) const {
    return states_ + (which + turn_) % 2 * Ring::kStateFloats;
  }
  DEEPPCR_DEVICE void Place(int which) const {
    if (leads_) State(which)[Shape().Place(0, row_)] = z_;
  }

  // Begins to copy the next layer to slot k of the ring.
  DEEPPCR_DEVICE void Fetch(int k) {
    float* const to = slots_ + k * Ring::kLayerFloats;
    DEEPPCR_UNROLL
    for (int j = 0; j < kGroups; ++j)
      context_.template CopyAsync<4>(weights_ + j * 4 * kWarpSize,
                                     to + (j * kWarpSize + context_.lane()) * 4);
    context_.template CopyAsync<1>(biases_, to + kGroups * 4 * kWarpSize + context_.lane());
    context_.CommitCopies();
    weights_ += kLayerWeights;
    biases_ += Ring::kWidth;
  }
  // The lane's part of the layer in slot k, once it is there: those behind it are not waited for.
  DEEPPCR_DEVICE Layer ReadNext(int k) {
    context_.template WaitForCopies<kLayers - 2>();
    const float* const from = slots_ + k * Ring::kLayerFloats;
    Layer layer;
    DEEPPCR_UNROLL
    for (int j = 0; j < kGroups; ++j)
      context_.LoadFour(from + (j * kWarpSize + context_.lane()) * 4, layer.weights[j]);
    layer.bias = from[kGroups * 4 * kWarpSize + context_.lane()];
    return layer;
  }

  // Makes the step whose layer is in slot k, and leaves the next layer. The sums are those of
  // QuarterSums and SumsOfRow, in their order.
  DEEPPCR_DEVICE void Step(int k, Layer* layer) {
    const float* const x = State(k) + context_.lane() % kSegments * Shape().quarter();
    float fours[kGroups][4];
    DEEPPCR_UNROLL
    for (int j = 0; j < kGroups; ++j) context_.LoadFour(x + j * Shape().stride(), fours[j]);
    float even = 0.0F, odd = 0.0F;
    DEEPPCR_UNROLL
    for (int j = 0; j < kGroups; ++j) AddFour(layer->weights[j], fours[j], &even, &odd);
    const float bias = layer->bias;
    float sum = even + odd;
    sum += context_.ShuffleXor(sum, 1);
    // The slot of the layer before this one is free; copies and loads fill the time of the sum.
    Fetch((k + kLayers - 1) % kLayers);
    *layer = ReadNext((k + 1) % kLayers);
    sum += context_.ShuffleXor(sum, 2);
    z_ = FinishStep(rule_, row_, sum + bias, z_);
    Place(k + 1);
    trajectory_.Write(z_);
    if (kLayers % 2 != 0 && k + 1 == kLayers) turn_ ^= 1;
    context_.SyncBlock(kAfterPanelLayer);
  }

  Context& context_;
  const BlockSequentialArgs<PanelStackView>& args_;
  const Rule rule_;
  const int row_;  // that four lanes share
  const bool leads_;
  const int64_t sample_;
  float* const states_;
  float* const slots_;    // the warp's
  const float* weights_;  // of the layer that is fetched next
  const float* biases_;
  float z_;  // the row's element of the state
  TrajectoryWriter trajectory_;
  int turn_ = 0;
};

// Body of a launch of one block per sample, with PanelRing's warps and bytes of shared memory.
template <int kGroups, class Context>
DEEPPCR_DEVICE void SolvePanelsSequentially(Context& context,
                                            const BlockSequentialArgs<PanelStackView>& args) {
  WithStepRule(args.process, [&](const auto& rule) {
    PanelSequence<kGroups, Context, std::decay_t<decltype(rule)>>(context, args, rule).Run();
  });
}

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_STACK_PANEL_SEQUENTIAL_KERNEL_H_
