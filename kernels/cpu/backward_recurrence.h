// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_BACKWARD_RECURRENCE_H_
#define DEEPPCR_KERNELS_CPU_BACKWARD_RECURRENCE_H_

// Operations of the backward pass in which the families differ: the transposes of those of
// kernels/cpu/recurrence.h, at states that are known.

#include <cstdint>

#include "kernels/backend/backend.h"
#include "kernels/base/team.h"

namespace deeppcr::cpu {

// A way back of samples first_sample.. first_sample + num_samples - 1 through steps end, .., begin
// + 1. Vectors are padded with zeros to W floats.
struct RetreatPass {
  int32_t first_sample = 0, num_samples = 1;
  int64_t columns = 1;  // m
  int64_t begin = 0, end = 0;
  const BackwardSample* samples = nullptr;  // by sample
  float* g = nullptr;                       // [num_samples, m, W], in and out
  // True: the steps on the way belong to the result: what they give to step noise, deltas and
  // conditions is kept. False: a matrix is formed.
  bool results = true;
};

// The steps of one system backwards, with the memory they need. Not thread-safe. Nothing allocates
// but the constructor.
class BackwardRecurrence {
 public:
  virtual ~BackwardRecurrence() = default;

  virtual void SetTeam(Team* team) { (void)team; }
  // Takes what the steps of a sample depend on beside its states, and g_L [m, W] from the
  // cotangents of its outputs and its final state.
  virtual void Begin(int32_t sample, const BackwardSample& taken, float* g) = 0;
  // Returns the number of dependent steps.
  virtual int64_t Retreat(const RetreatPass& pass) = 0;
  // Gives the sample's results from g_0 [m, W].
  virtual void Finish(int32_t sample, const BackwardSample& taken, const float* g) = 0;
};

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_BACKWARD_RECURRENCE_H_
