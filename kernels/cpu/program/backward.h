// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_BACKWARD_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_BACKWARD_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/backward_recurrence.h"
#include "kernels/cpu/diffusion/step_noise.h"
#include "kernels/cpu/outer_backward.h"
#include "kernels/cpu/program/executor.h"
#include "kernels/cpu/program/system.h"

namespace deeppcr::cpu {

// The backward pass of a recurrence whose step is a program. The states are known, so that the
// values of many steps are computed together; cotangents then go back through them step by step.
class ProgramBackward final : public BackwardRecurrence {
 public:
  ProgramBackward(const PackedProgramSystem& model, const BackwardLimits& limits);
  static int64_t Bytes(const PackedProgramSystem& model, const BackwardLimits& limits);
  bool ok() const;

  void SetTeam(Team* team) override { sharing_.team = team; }
  void Begin(int32_t sample, const BackwardSample& taken, float* g) override;
  int64_t Retreat(const RetreatPass& pass) override;
  void Finish(int32_t sample, const BackwardSample& taken, const float* g) override;

 private:
  // Columns [first_column, first_column + columns) of consecutive samples: all columns, unless
  // there is one sample only. Cotangent j of the b-th sample has index b columns + j.
  struct Rows {
    int32_t first_sample, num_samples;
    int64_t first_column, columns;
    int64_t count() const { return num_samples * columns; }
  };

  const Sharing* sharing() const { return sharing_.team == nullptr ? nullptr : &sharing_; }
  int64_t RetreatRows(const RetreatPass& pass, const Rows& rows, float* g);
  void TakeCondition(int32_t sample, const SampleInput& input);
  void RunMixed(const Rows& rows, int64_t begin, int64_t end);
  void RunForwards(const RetreatPass& pass, const Rows& rows, int64_t begin, int64_t end);
  void Back(const RetreatPass& pass, const Rows& rows, int64_t step, int64_t row, float* g);
  void GiveStepNoise(const RetreatPass& pass, const Rows& rows, int64_t step);
  void GiveStateCotangents(const RetreatPass& pass, const Rows& rows, int64_t step,
                           const float* g) const;
  void BackMixed(const Rows& rows, int64_t row, const CotangentRows& of_condition);
  void FinishCondition(int32_t sample, const BackwardSample& taken);

  const PackedProgramSystem& model_;
  const int64_t dim_, num_steps_;
  const int64_t width_;        // W
  const int64_t state_width_;  // X
  const int64_t capacity_;     // cotangents at a time
  Sharing sharing_;
  OuterBackward encode_, decode_;
  StepNoise noise_;  // of a process whose derivatives depend on it; else of no steps
  Executor state_;
  std::vector<RowContext> contexts_;  // by row of the tape
  // With conditions that each sample brings: the rows that they give, of which those that depend on
  // the step are made for the steps at hand only, and the sums of cotangents.
  std::unique_ptr<Executor> condition_, mixed_;
  AlignedBuffer<float> condition_rows_;  // [samples, row of the condition]
  AlignedBuffer<float> mixed_rows_;      // [rows of the tape, row of the mixed section]
  AlignedBuffer<float> condition_sums_;  // [samples, m, row of the condition]
  AlignedBuffer<float> mixed_sums_;      // [capacity, row of the mixed section]
  std::vector<RowContext> mixed_contexts_;
  std::vector<const float*> rows_;  // by sample: its condition's rows
};

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_BACKWARD_H_
