// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_DIFFUSION_STEP_NOISE_H_
#define DEEPPCR_KERNELS_CPU_DIFFUSION_STEP_NOISE_H_

#include <cstdint>
#include <span>

#include "kernels/backend/backend.h"
#include "kernels/base/aligned_buffer.h"
#include "kernels/cpu/program/kernels.h"

namespace deeppcr::cpu {

// z_0 [width] of a sample: `scale` times the noise that the input brings, or drawn noise.
void EncodeInitialNoise(const SampleInput& input, float scale, int64_t dim, int64_t width,
                        float* z);

// The noise of the steps of some samples, as rows of `width` floats. Not thread-safe.
class StepNoise {
 public:
  // `coefficients` [L] must outlive this.
  StepNoise(std::span<const ReverseCoefficients> coefficients, int64_t dim, int64_t width,
            int64_t samples);
  static int64_t Floats(int64_t num_steps, int64_t width, int64_t samples) {
    return RowsOf(num_steps) * width * samples;
  }
  bool ok() const { return noise_.ok(); }

  // Takes the noise that the input brings, or draws it; unfinished if the input's token has fired.
  void Encode(int32_t sample, const SampleInput& input, const ProgramKernels& kernels);
  // The row of a step; null where its sigma is 0.
  const float* At(int32_t sample, int64_t step) const {
    return coefficients_[step].sigma == 0 ? nullptr : Row(sample, step);
  }

 private:
  // Rows of a sample. An odd number: with an even one those of one step of all samples would
  // compete for some of the sets of the caches, and with a power of two for few.
  static int64_t RowsOf(int64_t num_steps) { return num_steps | 1; }

  const float* Row(int32_t sample, int64_t step) const {
    return noise_.data() + (sample * RowsOf(std::ssize(coefficients_)) + step) * width_;
  }
  void Draw(const SampleInput& input, const ProgramKernels& kernels, int64_t begin, int64_t end,
            float* to);

  const std::span<const ReverseCoefficients> coefficients_;
  const int64_t dim_, width_;
  AlignedBuffer<float> noise_;  // [samples, RowsOf(L), width]
};

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_DIFFUSION_STEP_NOISE_H_
