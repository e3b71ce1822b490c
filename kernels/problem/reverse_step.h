// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROBLEM_REVERSE_STEP_H_
#define DEEPPCR_KERNELS_PROBLEM_REVERSE_STEP_H_

// Reverse step in a header of its own, in C++17 with the standard library only, for every backend
// and for nvcc.

#include <algorithm>
#include <cstdint>

namespace deeppcr {

// One reverse step of a diffusion model: its effect on a state z, element by element, given the
// denoiser's output m at (z, timestep) and standard normal noise:
//
//   x0 = clip(x0_z z + x0_m m, +-clip_range)
//   z' = z_z z + z_m m + z_x0 x0 + sigma noise
//
// kernels/model/reverse_process.h derives the coefficients, which are finite, also as float32;
// sigma >= 0.
struct ReverseStep {
  double timestep = 0;        // the time that the denoiser is evaluated at; finite
  double prev_timestep = -1;  // that of the state z'; -1 if z' is the final sample
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

// Coefficients of a reverse step as float32, for backends.
struct ReverseCoefficients {
  float x0_z, x0_m, z_z, z_m, z_x0, sigma;
};

inline ReverseCoefficients ToFloat(const ReverseStep& s) {
  return {static_cast<float>(s.x0_z), static_cast<float>(s.x0_m), static_cast<float>(s.z_z),
          static_cast<float>(s.z_m),  static_cast<float>(s.z_x0), static_cast<float>(s.sigma)};
}

// z' = z z + raw x0 + clipped clip(x0) + sigma noise: a reverse step for a given (unclipped) x0
// instead of a network, with the network's output m = (x0 - x0_z z) / x0_m put in.
struct HoldCoefficients {
  float z, raw, clipped, sigma;
};

// Leaves m out where x0 does not depend on m, as m cannot be found from x0 then.
inline HoldCoefficients HoldOf(const ReverseStep& s) {
  const double by_x0 = s.x0_m == 0 ? 0 : s.z_m / s.x0_m;
  return {static_cast<float>(s.z_z - by_x0 * s.x0_z), static_cast<float>(by_x0),
          static_cast<float>(s.z_x0), static_cast<float>(s.sigma)};
}

// Largest number of denoiser evaluations of a coarse guess; CoarseStride: reverse steps from one
// evaluation to the next where there are L of them.
constexpr int64_t kCoarseEvaluations = 16;
constexpr int64_t CoarseStride(int64_t num_steps) {
  return (num_steps - 1) / kCoarseEvaluations + 1;
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PROBLEM_REVERSE_STEP_H_
