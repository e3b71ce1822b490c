// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/diffusion/step_noise.h"

#include <algorithm>

#include "kernels/problem/philox.h"

namespace deeppcr::cpu {
namespace {

// Steps whose noise is drawn together, and drawn once more by philox.h if one normal is uncertain.
constexpr int64_t kDrawnTogether = 64;

}  // namespace

void EncodeInitialNoise(const SampleInput& input, float scale, int64_t dim, int64_t width,
                        float* z) {
  if (input.initial_noise != nullptr) {
    std::copy_n(input.initial_noise, dim, z);
  } else {
    FillNormals(input.seed, input.sample, kInitialNoiseStep, dim, z);
  }
  for (int64_t i = 0; i < dim; ++i) z[i] *= scale;
  std::fill(z + dim, z + width, 0.0F);
}

StepNoise::StepNoise(std::span<const ReverseCoefficients> coefficients, int64_t dim, int64_t width,
                     int64_t samples)
    : coefficients_(coefficients),
      dim_(dim),
      width_(width),
      noise_(Floats(std::ssize(coefficients), width, samples)) {}

void StepNoise::Encode(int32_t sample, const SampleInput& input, const ProgramKernels& kernels) {
  const int64_t num_steps = std::ssize(coefficients_);
  float* noise = noise_.data() + sample * RowsOf(num_steps) * width_;
  const auto draws = [&](int64_t step) { return coefficients_[step].sigma != 0; };
  for (int64_t begin = 0, end = 0; begin < num_steps; begin = std::max(end, begin + 1)) {
    if (Fired(input.token)) return;  // the rest is of no use
    for (end = begin; end < num_steps && end - begin < kDrawnTogether && draws(end);) ++end;
    if (end == begin) continue;
    if (input.step_noise == nullptr) {
      Draw(input, kernels, begin, end, noise + begin * width_);
      continue;
    }
    for (int64_t i = begin; i < end; ++i)
      std::copy_n(input.step_noise + i * dim_, dim_, noise + i * width_);
  }
}

// Draws the noise of steps [begin, end), one row each; elements behind D - 1 are not used.
void StepNoise::Draw(const SampleInput& input, const ProgramKernels& kernels, int64_t begin,
                     int64_t end, float* to) {
  const bool certain = kernels.normals({.seed = input.seed,
                                        .sample = input.sample,
                                        .first_step = static_cast<uint32_t>(begin),
                                        .num_steps = end - begin,
                                        .quads = (dim_ + 3) / 4,
                                        .out = to,
                                        .stride = width_});
  for (int64_t i = begin; !certain && i < end; ++i, to += width_)
    FillNormals(input.seed, input.sample, static_cast<uint32_t>(i), dim_, to);
}

}  // namespace deeppcr::cpu
