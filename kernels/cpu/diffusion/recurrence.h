// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_DIFFUSION_RECURRENCE_H_
#define DEEPPCR_KERNELS_CPU_DIFFUSION_RECURRENCE_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/dense_chain.h"
#include "kernels/cpu/diffusion/step_noise.h"
#include "kernels/cpu/diffusion/system.h"
#include "kernels/cpu/recurrence.h"

namespace deeppcr::cpu {

// Intervals whose states pass through the network together, at most.
inline constexpr int64_t kStatesTogether = 16;

// The family `diffusion`. Step l = 1..L is the reverse step l - 1 of the specification, with the
// noise of that index. There is no diagonal linearization: the diagonal of a network's Jacobian
// costs as much as the whole Jacobian, so `quasi_newton` is refused before (IntervalPass::diagonal
// is never set).
class DiffusionRecurrence final : public Recurrence {
 public:
  explicit DiffusionRecurrence(const PackedDiffusion& model);
  static int64_t Bytes(const PackedDiffusion& model);
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
  struct Block;
  // States of a step: those of samples that advance, or of intervals.
  static constexpr int64_t kRows = std::max(kDiffusionGroup, kStatesTogether);

  const Sharing* sharing() const { return sharing_.team == nullptr ? nullptr : &sharing_; }
  StepRow RowOf(int32_t sample, int64_t step) const;
  void Step(int64_t count, bool tapes, bool sizes);
  void TakeStates(const float* from, int64_t stride, int64_t count);
  void GiveStates(float* to, int64_t stride, int64_t count) const;
  void EncodeCondition(int32_t sample, const SampleInput& input);
  int64_t PropagateBlock(const IntervalPass& pass, const Block& block);
  void StartTangents(const Block& block);
  void FinishBlock(const IntervalPass& pass, const Block& block);

  const PackedDiffusion& model_;
  const int64_t dim_, num_steps_;
  const int64_t width_;        // W: width of the states outside
  const int64_t state_width_;  // X: width of the states inside
  Sharing sharing_;
  DenseChain decoder_;
  StepNoise noise_;
  AlignedBuffer<float> modulation_;  // [group, L, modulation_floats], if per sample
  AlignedBuffer<float> condition_;   // [H'], then y [kModulationTile, H'], if per sample
  std::array<const float*, kDiffusionGroup> table_ = {};  // modulation of each sample
  std::array<StepRow, kRows> rows_ = {};
  AlignedBuffer<float> states_;       // [kRows, X]
  AlignedBuffer<float> predictions_;  // [kRows, X]
  AlignedBuffer<float> tapes_;        // [kStatesTogether, tape_floats]
  AlignedBuffer<float> tangents_;     // [columns of a block, X]
  AlignedBuffer<float> scratch_;      // scratch of the kernels
};

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_DIFFUSION_RECURRENCE_H_
