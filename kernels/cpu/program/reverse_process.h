// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_REVERSE_PROCESS_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_REVERSE_PROCESS_H_

#include <array>
#include <cstdint>

#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/diffusion/step_noise.h"
#include "kernels/cpu/program/condition_rows.h"
#include "kernels/cpu/program/recurrence.h"

namespace deeppcr::cpu {

// The family `diffusion` with a step program: step l = 1..L is reverse step l - 1 of the
// specification.
class ReverseProcess final : public ProgramRecurrence {
 public:
  explicit ReverseProcess(const PackedProgramSystem& model);
  static int64_t Bytes(const PackedProgramSystem& model);
  bool ok() const;

  void Encode(int32_t sample, const SampleInput& input, float* z) override;
  PassCount GuessCoarse(int64_t interval, int64_t stride, float* states,
                        const CancelToken* token) override;

 private:
  void EncodeCondition(int32_t sample, const SampleInput& input);
  // Slots hold what conditions give.
  bool Holds(int32_t slot, const SampleInput& input) const;
  int32_t FreeSlot() const;
  void Fill(int32_t slot, const SampleInput& input);
  RowContext ContextOf(int32_t sample, int64_t step) const override;
  const float* ScaleAt(int64_t step);

  static constexpr int32_t kNoSlot = -1;

  StepNoise noise_;
  // By slot, if rows are per sample.
  AlignedBuffer<float> inputs_;      // [group, input_dim]
  AlignedBuffer<float> conditions_;  // [group, condition_floats]
  std::array<int32_t, kDiffusionGroup> labels_ = {};
  std::array<bool, kDiffusionGroup> complete_ = {};  // not stopped halfway
  // By sample: its slot, which no other condition takes as long as it stands here, and its rows.
  std::array<int32_t, kDiffusionGroup> slots_;
  std::array<const float*, kDiffusionGroup> rows_ = {};
  AlignedBuffer<float> prediction_;  // [width of m]
  ConditionRows condition_;
};

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_REVERSE_PROCESS_H_
