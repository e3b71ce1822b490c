// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_RECURRENCE_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_RECURRENCE_H_

#include <array>
#include <cstdint>

#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/dense_chain.h"
#include "kernels/cpu/program/executor.h"
#include "kernels/cpu/program/system.h"
#include "kernels/cpu/recurrence.h"

namespace deeppcr::cpu {

// A recurrence whose step is a program. A step runs its instructions one after another for all rows
// and tangents: nothing is recorded, and tangents read the values that are there. A
// diagonal takes the whole matrix. Families say what a row of a step reads, and where a sample
// starts.
class ProgramRecurrence : public Recurrence {
 public:
  static int64_t Bytes(const PackedProgramSystem& model);
  bool ok() const;

  void SetTeam(Team* team) override { sharing_.team = team; }
  void Decode(const float* z, float* outputs) override { decoder_.Apply(z, outputs); }
  double OutputAmplification(const float* z) override { return decoder_.Amplification(z); }
  int64_t Advance(float* states, int32_t n, int64_t begin, int64_t end,
                  float* const* trajectories) override;
  PassCount Propagate(const IntervalPass& pass) override;

 protected:
  static constexpr int64_t kMostRows = std::max(kDiffusionGroup, kStatesTogether);

  // `model` must outlive this.
  explicit ProgramRecurrence(const PackedProgramSystem& model);

  // What a row of step `step`, counted from 0, reads for a sample.
  virtual RowContext ContextOf(int32_t sample, int64_t step) const = 0;
  const Sharing* sharing() const { return sharing_.team == nullptr ? nullptr : &sharing_; }
  float* State(int64_t row) { return step_.Row(model_.program.state_input, row); }

  const PackedProgramSystem& model_;
  const int64_t dim_, num_steps_;
  const int64_t width_;        // W: width of the states outside
  const int64_t state_width_;  // X: width of the states inside
  Sharing sharing_;
  AlignedBuffer<float> states_;  // [kStatesTogether, X]
  std::array<RowContext, kMostRows> contexts_ = {};
  Executor step_;

 private:
  // Intervals that are propagated together, and their tangents.
  struct Block {
    int64_t first, count;
    int64_t probes, columns;  // of each interval: its probes, then the D of its matrix, if wanted
  };

  float* Next(int64_t row) { return step_.Row(model_.program.output, row); }
  int64_t PropagateBlock(const IntervalPass& pass, const Block& block);
  void StepTangents(const Block& block, int64_t count);
  void FinishBlock(const IntervalPass& pass, const Block& block) const;

  DenseChain decoder_;
  AlignedBuffer<float> tangents_;  // [tangents of a block, X]
};

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_RECURRENCE_H_
