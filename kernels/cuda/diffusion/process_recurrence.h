// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_DIFFUSION_PROCESS_RECURRENCE_H_
#define DEEPPCR_KERNELS_CUDA_DIFFUSION_PROCESS_RECURRENCE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/diffusion/coarse_guess.h"
#include "kernels/cuda/diffusion/noise_kernel.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/cuda/recurrence.h"

namespace deeppcr::cuda {

// What the reverse processes of all families have: the noise of their samples, and a coarse guess.
template <class Process>
class ReverseProcessRecurrence : public BlockRecurrence<Process> {
 public:
  // initial_scale: of the noise that is z_0.
  ReverseProcessRecurrence(Workspace& work, float initial_scale)
      : BlockRecurrence<Process>(work),
        initial_scale_(initial_scale),
        step_noise_(work.sizes.group) {}

  absl::Status Allocate() override {
    const SpaceSizes& sizes = work_.sizes;
    const int64_t group = sizes.group, dim = sizes.shape.sample_dim();
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&sources_, MemoryKind::kMapped, group));
    DEEPPCR_RETURN_IF_ERROR(work_.Take(&initial_noise_, MemoryKind::kMapped, group * dim));
    DEEPPCR_RETURN_IF_ERROR(
        work_.Take(&noise_, MemoryKind::kDevice, group * sizes.shape.num_steps * dim));
    return work_.Take(&coarse_, MemoryKind::kDevice,
                      sizes.iterative * sizes.intervals * work_.width);
  }

  PassCount GuessCoarse() override {
    work_.guess = {.states = coarse_.data()};
    PassCount cost;
    cost.columns = 1;
    for (int64_t l = 0; l < work_.shape.num_steps; l += CoarseStride(work_.shape.num_steps))
      ++cost.stages;
    return cost;
  }
  // Falls back to the constant guess: no map is fitted for diffusion models.
  void GuessAffine() override { work_.guess = {}; }
  void LaunchGuess(int32_t num_samples) override {
    if (work_.guess.states != coarse_.data() || coarse_.size() == 0) return;
    const Process process = this->ProcessFrom(0);
    work_.stream->Launch(
        CoarseArgs<Process>{.process = process,
                            .num_blocks = ChooseTeams(process, 1, work_.limits).num_blocks,
                            .shooting_interval = static_cast<int32_t>(work_.interval),
                            .num_intervals = static_cast<int32_t>(work_.intervals),
                            .initial_states = work_.initial.data(),
                            .guesses = coarse_.data(),
                            .staged_floats = StagedFloats(process, work_.limits)},
        num_samples);
  }

 protected:
  using BlockRecurrence<Process>::work_;

  // Takes the noise of a sample, whose modulation is in this table.
  void EncodeNoise(int32_t sample, const SampleInput& input, int32_t table) {
    sources_.data()[sample] = {.seed = input.seed,
                               .sample = input.sample,
                               .table = table,
                               .given_initial_noise = input.initial_noise != nullptr,
                               .given_step_noise = input.step_noise != nullptr};
    step_noise_[sample] = input.step_noise;
    const int64_t dim = work_.shape.sample_dim();
    if (input.initial_noise != nullptr)
      std::copy_n(input.initial_noise, dim, initial_noise_.data() + sample * dim);
  }
  // Makes the noise and z_0 of all samples, and `table_of`, which may be null.
  void LaunchNoise(int32_t num_samples, int32_t* table_of) {
    const SystemShape& shape = work_.shape;
    const int64_t floats = shape.num_steps * shape.sample_dim();
    for (int32_t b = 0; b < num_samples; ++b) {
      if (step_noise_[b] != nullptr)
        work_.stream->CopyToDevice(noise_.data() + b * floats, step_noise_[b],
                                   static_cast<size_t>(floats) * sizeof(float));
    }
    work_.stream->Launch(NoiseArgs{.num_samples = num_samples,
                                   .state_dim = static_cast<int32_t>(shape.sample_dim()),
                                   .width = work_.width,
                                   .num_steps = shape.num_steps,
                                   .initial_scale = initial_scale_,
                                   .sources = sources_.data(),
                                   .initial_noise = initial_noise_.data(),
                                   .initial_states = work_.initial.data(),
                                   .noise = noise_.data(),
                                   .table_of = table_of});
  }
  // The noise of samples first, first + 1, ...: [G - first, L, D].
  const float* NoiseFrom(int64_t first) const {
    return noise_.data() + first * work_.shape.num_steps * work_.shape.sample_dim();
  }

 private:
  const float initial_scale_;
  std::vector<const float*> step_noise_;  // the caller's, or null
  // Mapped memory: [G], [G, D].
  DeviceBuffer<NoiseSource> sources_;
  DeviceBuffer<float> initial_noise_;
  // Device memory: [G, L, D], [iterative, P, W].
  DeviceBuffer<float> noise_, coarse_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_DIFFUSION_PROCESS_RECURRENCE_H_
