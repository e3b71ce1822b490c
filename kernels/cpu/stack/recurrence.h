// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_STACK_RECURRENCE_H_
#define DEEPPCR_KERNELS_CPU_STACK_RECURRENCE_H_

#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/recurrence.h"
#include "kernels/cpu/stack/system.h"

namespace deeppcr::cpu {

// The families `mlp` and `resnet`.
class StackRecurrence final : public Recurrence {
 public:
  explicit StackRecurrence(const PackedStack& stack);
  static int64_t Bytes(const PackedStack& stack);
  bool ok() const { return scratch_.ok(); }

  void Encode(int32_t sample, const SampleInput& input, float* z) override;
  void Decode(const float* z, float* outputs) override;
  double OutputAmplification(const float* z) override;
  void KeepSides(uint8_t* const* sides) override { sides_ = sides; }
  int64_t Advance(float* states, int32_t n, int64_t begin, int64_t end,
                  float* const* trajectories) override;
  PassCount Propagate(const IntervalPass& pass) override;
  PassCount GuessCoarse(int64_t interval, int64_t stride, float* states,
                        const CancelToken* token) override;

 private:
  const PackedStack& stack_;
  const LayersView layers_;
  uint8_t* const* sides_ = nullptr;
  AlignedBuffer<float> scratch_;  // the walker's, then [width of the output layer]
  float* decoded_;
};

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_STACK_RECURRENCE_H_
