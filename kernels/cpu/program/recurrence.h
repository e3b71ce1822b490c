// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_RECURRENCE_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_RECURRENCE_H_

#include <array>
#include <cstdint>

#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/dense_chain.h"
#include "kernels/cpu/diffusion/recurrence.h"
#include "kernels/cpu/diffusion/step_noise.h"
#include "kernels/cpu/program/condition_rows.h"
#include "kernels/cpu/program/executor.h"
#include "kernels/cpu/program/system.h"
#include "kernels/cpu/recurrence.h"

namespace deeppcr::cpu {

// The family `diffusion` with a step program. Step l = 1..L is reverse step l - 1 of the
// specification. A step runs its instructions one after another for all rows and tangents: nothing
// is recorded, and tangents read the values that are there. There is no diagonal linearization, as
// in DiffusionRecurrence.
class ProgramRecurrence final : public Recurrence {
 public:
  explicit ProgramRecurrence(const PackedProgramSystem& model);
  static int64_t Bytes(const PackedProgramSystem& model);
  bool ok() const;

  void SetTeam(Team* team) override { sharing_.team = team; }
  void Encode(int32_t sample, const SampleInput& input, float* z) override;
  void Decode(const float* z, float* outputs) override { decoder_.Apply(z, outputs); }
  double OutputAmplification(const float* z) override { return decoder_.Amplification(z); }
  int64_t Advance(float* states, int32_t n, int64_t begin, int64_t end,
                  float* const* trajectories) override;
  PassCount Propagate(const IntervalPass& pass) override;
  PassCount GuessCoarse(int64_t interval, int64_t stride, float* states,
                        const CancelToken* token) override;

 private:
  // Intervals that are propagated together, and their tangents.
  struct Block {
    int64_t first, count;
    int64_t probes, columns;  // of each interval: its probes, then the D of its matrix, if wanted
  };
  static constexpr int64_t kRows = std::max(kDiffusionGroup, kStatesTogether);

  const Sharing* sharing() const { return sharing_.team == nullptr ? nullptr : &sharing_; }
  void EncodeCondition(int32_t sample, const SampleInput& input);
  RowContext ContextOf(int32_t sample, int64_t step) const;
  float* State(int64_t row) { return step_.Row(model_.program.state_input, row); }
  float* Next(int64_t row) { return step_.Row(model_.program.output, row); }
  int64_t PropagateBlock(const IntervalPass& pass, const Block& block);
  void StepTangents(const Block& block, int64_t count);
  void FinishBlock(const IntervalPass& pass, const Block& block) const;

  const PackedProgramSystem& model_;
  const int64_t dim_, num_steps_;
  const int64_t width_;        // W: width of the states outside
  const int64_t state_width_;  // X: width of the states inside
  Sharing sharing_;
  DenseChain decoder_;
  StepNoise noise_;
  AlignedBuffer<float> inputs_;      // [group, input_dim], if rows are per sample
  AlignedBuffer<float> conditions_;  // [group, condition_floats], if rows are per sample
  std::array<const float*, kDiffusionGroup> rows_ = {};  // of the condition of each sample
  std::array<int32_t, kDiffusionGroup> labels_ = {};
  std::array<bool, kDiffusionGroup> complete_ = {};  // not stopped halfway
  AlignedBuffer<float> states_;                      // [kStatesTogether, X]
  AlignedBuffer<float> tangents_;                    // [tangents of a block, X]
  AlignedBuffer<float> prediction_;                  // [X]
  std::array<RowContext, kRows> contexts_ = {};
  ConditionRows condition_;
  Executor step_;
};

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_RECURRENCE_H_
