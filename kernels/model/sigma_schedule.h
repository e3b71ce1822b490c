// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_SIGMA_SCHEDULE_H_
#define DEEPPCR_KERNELS_MODEL_SIGMA_SCHEDULE_H_

// Noise levels of the schedulers that go along sigmas, and the times at which their networks are
// evaluated, in double. Semantics: set_timesteps of diffusers'
// src/diffusers/schedulers/scheduling_{euler_discrete,euler_ancestral_discrete,
// dpmsolver_multistep,flow_match_euler_discrete,edm_euler}.py. Thread-safe.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/model/scheduler_config.h"

namespace deeppcr {

struct SigmaSchedule {
  std::vector<double> sigmas;  // [n + 1]: before each step, and after the last
  std::vector<double> times;   // [n]
};

// Sigmas sqrt((1-a) / a) of EulerDiscrete, EulerAncestralDiscrete and DPMSolverMultistep, where a
// is alphas_cumprod, in (0, 1). Errors: kInvalidArgument naming the key, as Timesteps; a choice of
// sigmas that these steps do not have; where rounding a time to an integer depends on float32.
absl::StatusOr<SigmaSchedule> VarianceExplodingSigmas(const SchedulerConfig& config,
                                                      const std::vector<double>& alphas_cumprod,
                                                      int64_t num_inference_steps);

// Sigmas of FlowMatchEulerDiscrete, from 1 to 0, or with invert_sigmas from 0 to 1.
absl::StatusOr<SigmaSchedule> FlowMatchSigmas(const SchedulerConfig& config,
                                              int64_t num_inference_steps);

// Sigmas of EDMEuler.
absl::StatusOr<SigmaSchedule> EdmSigmas(const SchedulerConfig& config, int64_t num_inference_steps);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_SIGMA_SCHEDULE_H_
