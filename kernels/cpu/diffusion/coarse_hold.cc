// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/diffusion/coarse_hold.h"

#include <algorithm>
#include <cmath>

namespace deeppcr::cpu {
namespace {

void Set(float& element, float next) {
  if (std::isfinite(next)) element = next;
}

}  // namespace

void CoarseHold::Advance(int64_t begin, int64_t end, const StepNoise& noise, const float* scale,
                         float* z, float* m, float* states) const {
  const ReverseCoefficients& at = coefficients[begin];
  float* x0 = m;
  for (int64_t i = 0; i < dim; ++i) x0[i] = at.x0_z * z[i] + at.x0_m * m[i];
  for (int64_t l = begin; l < end; ++l) {
    const HoldCoefficients& hold = holds[l];
    const float* of_step = noise.At(0, l);
    for (int64_t i = 0; i < dim; ++i) {
      const float clipped = std::clamp(x0[i], -clip_range, clip_range);
      const auto held = [&](const HoldCoefficients& by) {
        return by.z * z[i] + by.raw * x0[i] + by.clipped * clipped;
      };
      float next = held(hold);
      if (of_step != nullptr)
        next += hold.sigma * (scale == nullptr ? of_step[i] : scale[i] * of_step[i]);
      if (!memory_holds.empty()) {
        float& c = z[dim + i];
        next += memory_holds[l].recall * c;
        Set(c, held(memory_holds[l].next));
      }
      Set(z[i], next);
    }
    if ((l + 1) % interval == 0 || l + 1 == std::ssize(coefficients))
      std::copy_n(z, width, states + (l / interval + 1) * stride);
  }
}

}  // namespace deeppcr::cpu
