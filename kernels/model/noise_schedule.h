// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_NOISE_SCHEDULE_H_
#define DEEPPCR_KERNELS_MODEL_NOISE_SCHEDULE_H_

// The noise that a denoiser was trained with, timestep by timestep, in double. Semantics:
// diffusers, whose schedulers make the same tables in float32. Thread-safe.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/model/scheduler_config.h"

namespace deeppcr {

// The num_train_timesteps betas of beta_schedule or trained_betas, rescaled to zero SNR if
// rescale_betas_zero_snr says so. Errors: kInvalidArgument if they cannot be rescaled.
absl::StatusOr<std::vector<double>> Betas(const SchedulerConfig& config);

// The products of 1 - beta up to every timestep: alphas_cumprod.
std::vector<double> CumulativeProduct(const std::vector<double>& betas);

// numpy's linspace, by its floating-point operations.
std::vector<double> Linspace(double first, double last, int64_t count);

// The nearest integer, a half to the even one, as numpy's round.
int64_t RoundHalfToEven(double value);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_NOISE_SCHEDULE_H_
