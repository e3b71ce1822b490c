// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_BLOCK_STACK_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_BLOCK_STACK_H_

#include <cstdint>

#include "kernels/cpu/program/recurrence.h"

namespace deeppcr::cpu {

// The family `stack`: step l = 1..L is the program with row l - 1 of its stacked constants.
class BlockStack final : public ProgramRecurrence {
 public:
  explicit BlockStack(const PackedProgramSystem& model) : ProgramRecurrence(model) {}

  void Encode(int32_t sample, const SampleInput& input, float* z) override;
  // Places z_0: there is no coarse guess, and requests that ask for it are refused before.
  PassCount GuessCoarse(int64_t interval, int64_t stride, float* states,
                        const CancelToken* token) override;

 private:
  RowContext ContextOf(int32_t, int64_t step) const override {
    return model_.ContextOf(step, nullptr);
  }
};

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_BLOCK_STACK_H_
