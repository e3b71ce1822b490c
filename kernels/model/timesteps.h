// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_TIMESTEPS_H_
#define DEEPPCR_KERNELS_MODEL_TIMESTEPS_H_

// Lists of timesteps, descending, as set_timesteps of diffusers' schedulers makes them, with T =
// num_train_timesteps and n = num_inference_steps. Thread-safe.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/model/scheduler_config.h"

namespace deeppcr {

// Refuses n beyond [1, T].
absl::Status CheckNumSteps(const SchedulerConfig& config, int64_t num_inference_steps);

// The list of timesteps of `num_inference_steps` (n) steps, descending, as set_timesteps
// of DDPM and DDIM makes it, with T = num_train_timesteps:
//   leading   i (T / n) + steps_offset, integer division
//   linspace  n values from 0 to T - 1, a half rounded to the even neighbour; 0 alone if n = 1
//   trailing  T - i T / n rounded likewise, less 1. The number of entries is ceil(T / (T / n)) in
//             floating point, which for some pairs (T 1000: n 61, 103, 121 and 59 more) is n + 1
//             with a last entry of -1, which is refused: upstream reads the table's end with it.
// Errors: kInvalidArgument if n is not in [1, T] or an entry is not in [0, T). Thread-safe.
absl::StatusOr<std::vector<int64_t>> Timesteps(const SchedulerConfig& config,
                                               int64_t num_inference_steps);

// The list of DPMSolverMultistep, of timesteps below `last_timestep`:
//   leading   i (last_timestep / (n + 1)) + steps_offset, integer division, from i = n to 1
//   linspace  n + 1 values from 0 to last_timestep - 1, rounded as above, without the 0
//   trailing  last_timestep - i T / n rounded likewise, less 1
// Errors: as Timesteps; trailing does not make n timesteps below last_timestep.
absl::StatusOr<std::vector<int64_t>> DpmTimesteps(const SchedulerConfig& config,
                                                  int64_t last_timestep,
                                                  int64_t num_inference_steps);

// The list of LCM: n of the original_inference_steps timesteps that it was distilled with. Errors:
// kInvalidArgument if n is not in [1, original_inference_steps].
absl::StatusOr<std::vector<int64_t>> LcmTimesteps(const SchedulerConfig& config,
                                                  int64_t num_inference_steps);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_TIMESTEPS_H_
