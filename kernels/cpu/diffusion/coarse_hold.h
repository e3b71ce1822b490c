// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_DIFFUSION_COARSE_HOLD_H_
#define DEEPPCR_KERNELS_CPU_DIFFUSION_COARSE_HOLD_H_

#include <cstdint>
#include <span>

#include "kernels/cpu/diffusion/step_noise.h"
#include "kernels/problem/reverse_step.h"

namespace deeppcr::cpu {

// The part of a coarse guess between two evaluations of the denoiser.
struct CoarseHold {
  std::span<const ReverseCoefficients> coefficients;  // [L]
  std::span<const HoldCoefficients> holds;            // [L]
  std::span<const MemoryHold> memory_holds;           // [L], or empty for no memory
  float clip_range;
  int64_t dim, width;        // of z, and W of the states outside
  int64_t interval, stride;  // of the guess: see Recurrence::GuessCoarse

  // Takes the state [z, c] of sample 0 through steps [begin, end) with the x0 that the denoiser's
  // output m [dim], which is overwritten, gives at step `begin`, and with noise times `scale`
  // [dim], or null for 1. Elements that would not be finite stay as they were: a guess may be
  // wrong, but not useless.
  void Advance(int64_t begin, int64_t end, const StepNoise& noise, const float* scale, float* z,
               float* m, float* states) const;
};

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_DIFFUSION_COARSE_HOLD_H_
