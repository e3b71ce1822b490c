// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROBLEM_REVERSE_STEP_H_
#define DEEPPCR_KERNELS_PROBLEM_REVERSE_STEP_H_

// Reverse step in a header of its own, in C++17 with the standard library only, for every backend
// and for nvcc.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace deeppcr {

// What the network says of the noise of a step beside its prediction m: a vector v as long as m
// that follows m in its output.
enum class NoiseScale : uint8_t {
  kFixed,         // nothing: there is no v
  kLearnedRange,  // e^(sigma_v v)
  kLearned,       // sqrt(v), where v is at least kLeastVariance
};
inline constexpr double kLeastVariance = 1e-20;

// What a sampler keeps and takes beside the state z and the prediction m; the same for all of its
// steps.
struct SamplerForm {
  bool carries = false;  // a memory c as large as z; the state of the recurrence is [z, c]
  NoiseScale noise_scale = NoiseScale::kFixed;

  bool operator==(const SamplerForm& other) const {
    return carries == other.carries && noise_scale == other.noise_scale;
  }
  bool operator!=(const SamplerForm& other) const { return !(*this == other); }
};

// One reverse step of a diffusion model: its effect on a state z, element by element, given the
// denoiser's output m at (z, timestep) and standard normal noise, and on a memory c, which is 0
// before the first step:
//
//   x0 = clip(x0_z z + x0_m m, +-clip_range)
//   z' = z_z z + z_m m + z_x0 x0 + z_c c + sigma scale noise
//   c' = c_z z + c_m m + c_x0 x0
//
// where scale is 1, or what the network says (NoiseScale).
// kernels/model/reverse_process.h derives the coefficients, which are finite, also as float32.
struct ReverseStep {
  double timestep = 0;        // the time that the denoiser is evaluated at; finite
  double prev_timestep = -1;  // that of the state z'; -1 if z' is the final sample
  double x0_z = 0.0;
  double x0_m = 0.0;
  double z_z = 0.0;
  double z_m = 0.0;
  double z_x0 = 0.0;
  double sigma = 0.0;
  double z_c = 0.0;
  double c_z = 0.0;
  double c_m = 0.0;
  double c_x0 = 0.0;
  double sigma_v = 0.0;

  bool operator==(const ReverseStep& other) const {
    return timestep == other.timestep && prev_timestep == other.prev_timestep &&
           x0_z == other.x0_z && x0_m == other.x0_m && z_z == other.z_z && z_m == other.z_m &&
           z_x0 == other.z_x0 && sigma == other.sigma && z_c == other.z_c && c_z == other.c_z &&
           c_m == other.c_m && c_x0 == other.c_x0 && sigma_v == other.sigma_v;
  }
};

// State and memory of one element.
struct StateAndMemory {
  double z = 0, c = 0;
};

// One step on one element. Thread-safe.
inline StateAndMemory ApplyReverseStep(const ReverseStep& step, double clip_range,
                                       const StateAndMemory& from, double m, double noise,
                                       double scale = 1) {
  const double z = from.z;
  const double x0 = std::clamp(step.x0_z * z + step.x0_m * m, -clip_range, clip_range);
  return {
      step.z_z * z + step.z_m * m + step.z_x0 * x0 + step.z_c * from.c + step.sigma * scale * noise,
      step.c_z * z + step.c_m * m + step.c_x0 * x0};
}
inline double ApplyReverseStep(const ReverseStep& step, double clip_range, double z, double m,
                               double noise) {
  return ApplyReverseStep(step, clip_range, StateAndMemory{z, 0}, m, noise).z;
}

// The scale of one element's noise, and its slope by v.
inline double NoiseScaleAt(NoiseScale kind, const ReverseStep& step, double v) {
  if (kind == NoiseScale::kFixed) return 1;
  if (kind == NoiseScale::kLearnedRange) return std::exp(step.sigma_v * v);
  return v < kLeastVariance ? std::sqrt(kLeastVariance) : std::sqrt(v);
}
inline double NoiseScaleSlopeAt(NoiseScale kind, const ReverseStep& step, double v) {
  if (kind == NoiseScale::kFixed) return 0;
  const double scale = NoiseScaleAt(kind, step, v);
  if (kind == NoiseScale::kLearnedRange) return step.sigma_v * scale;
  return v < kLeastVariance ? 0 : 0.5 / scale;
}

// Terms of a step, each in the form of a reverse step of an operand z without memory, for code that
// puts a sampler's form together from reverse steps.
enum class StepPart : uint8_t {
  kState,   // z' without memory, with noise of scale 1
  kMean,    // the same without noise
  kNoise,   // sigma noise
  kRecall,  // z_c c, of c for z
  kMemory,  // c'
  kSpread,  // sigma_v v, of v for z
};
inline constexpr int kNumStepParts = 6;
constexpr const char* NameOf(StepPart part) {
  constexpr const char* kNames[] = {"state", "mean", "noise", "recall", "memory", "spread"};
  return kNames[static_cast<int>(part)];
}

inline ReverseStep PartOf(const ReverseStep& step, StepPart part) {
  ReverseStep of;
  of.timestep = step.timestep;
  of.prev_timestep = step.prev_timestep;
  switch (part) {
    case StepPart::kState:
    case StepPart::kMean:
      of.x0_z = step.x0_z;
      of.x0_m = step.x0_m;
      of.z_z = step.z_z;
      of.z_m = step.z_m;
      of.z_x0 = step.z_x0;
      of.sigma = part == StepPart::kState ? step.sigma : 0.0;
      return of;
    case StepPart::kNoise:
      of.sigma = step.sigma;
      return of;
    case StepPart::kRecall:
      of.z_z = step.z_c;
      return of;
    case StepPart::kMemory:
      of.x0_z = step.x0_z;
      of.x0_m = step.x0_m;
      of.z_z = step.c_z;
      of.z_m = step.c_m;
      of.z_x0 = step.c_x0;
      return of;
    case StepPart::kSpread:
      of.z_z = step.sigma_v;
      return of;
  }
  return of;
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

// The same of a memory: c' from z and x0, and what z' has of c.
struct MemoryHold {
  HoldCoefficients next;
  float recall;
};
inline MemoryHold MemoryHoldOf(const ReverseStep& s) {
  return {HoldOf(PartOf(s, StepPart::kMemory)), static_cast<float>(s.z_c)};
}

// Largest number of denoiser evaluations of a coarse guess; CoarseStride: reverse steps from one
// evaluation to the next where there are L of them.
constexpr int64_t kCoarseEvaluations = 16;
constexpr int64_t CoarseStride(int64_t num_steps) {
  return (num_steps - 1) / kCoarseEvaluations + 1;
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_PROBLEM_REVERSE_STEP_H_
