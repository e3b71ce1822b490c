// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BACKEND_REVERSE_STEP_H_
#define DEEPPCR_KERNELS_BACKEND_REVERSE_STEP_H_

// On its own, with nothing but the standard library and in C++17, for every backend and for nvcc.

#include <algorithm>
#include <cstdint>

namespace deeppcr {

// One reverse step of a diffusion model: what it does to a state z, element by element, given the
// denoiser's output m at (z, timestep) and standard normal noise:
//
//   x0 = clip(x0_z z + x0_m m, +-clip_range)
//   z' = z_z z + z_m m + z_x0 x0 + sigma noise
//
// kernels/model/reverse_process.h derives the coefficients. They are finite, also as float32;
// sigma >= 0.
struct ReverseStep {
  int64_t timestep = 0;        // in [0, T), what the denoiser is asked for
  int64_t prev_timestep = -1;  // in [0, timestep); -1 if z' is the final sample
  double x0_z = 0.0;
  double x0_m = 0.0;
  double z_z = 0.0;
  double z_m = 0.0;
  double z_x0 = 0.0;
  double sigma = 0.0;

  bool operator==(const ReverseStep& other) const {
    return timestep == other.timestep && prev_timestep == other.prev_timestep &&
           x0_z == other.x0_z && x0_m == other.x0_m && z_z == other.z_z && z_m == other.z_m &&
           z_x0 == other.z_x0 && sigma == other.sigma;
  }
};

// One step on one element. Thread-safe.
inline double ApplyReverseStep(const ReverseStep& step, double clip_range, double z, double m,
                               double noise) {
  const double x0 = std::clamp(step.x0_z * z + step.x0_m * m, -clip_range, clip_range);
  return step.z_z * z + step.z_m * m + step.z_x0 * x0 + step.sigma * noise;
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BACKEND_REVERSE_STEP_H_
