// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_STACK_BACKWARD_H_
#define DEEPPCR_KERNELS_CPU_STACK_BACKWARD_H_

#include <vector>

#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/backward_recurrence.h"
#include "kernels/cpu/outer_backward.h"
#include "kernels/cpu/stack/system.h"

namespace deeppcr::cpu {

// The backward pass of the families `mlp` and `resnet`.
class StackBackward final : public BackwardRecurrence {
 public:
  StackBackward(const PackedStack& stack, const BackwardLimits& limits);
  static int64_t Bytes(const PackedStack& stack, const BackwardLimits& limits);
  bool ok() const { return scratch_.ok() && encode_.ok() && decode_.ok(); }

  void Begin(int32_t sample, const BackwardSample& taken, float* g) override;
  int64_t Retreat(const RetreatPass& pass) override;
  void Finish(int32_t sample, const BackwardSample& taken, const float* g) override;

 private:
  int64_t RetreatThrough(const RetreatPass& pass);

  const PackedStack& stack_;
  const LayersView layers_;
  OuterBackward encode_, decode_;
  AlignedBuffer<float> scratch_;
  // By sample.
  std::vector<const float*> states_;
  std::vector<const uint8_t*> sides_;
  std::vector<float*> deltas_;
};

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_STACK_BACKWARD_H_
