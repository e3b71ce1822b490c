// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_SAMPLERS_H_
#define DEEPPCR_KERNELS_MODEL_SAMPLERS_H_

// Reverse steps of diffusers' schedulers beside DDPM and DDIM, a function each, in double.
//
// The steps of Euler methods are affine in a sample x of which the network sees c x (scale_model_
// input), where c depends on the step. Here the state is z = c x itself, and the last state x, so
// that the network sees the state: with x0 = a x + b m and x' = p x + q m + noise,
//
//   x0_z = a / c,  x0_m = b,  z_z = c' p / c,  z_m = c' q,  sigma = c' |noise|,
//
// with c' that of the next step, 1 after the last, and initial_scale = c init_noise_sigma.
//
// A sampler that remembers has a memory c beside z (kernels/problem/reverse_step.h).
//
// Sources: Karras et al. 2022 (EDM, arXiv 2206.00364), Lu et al. 2022 (DPM-Solver++, arXiv
// 2211.01095), Luo et al. 2023 (LCM, arXiv 2310.04378), Esser et al. 2024 (flow matching, arXiv
// 2403.03206); semantics of diffusers, src/diffusers/schedulers/scheduling_{euler_discrete,
// euler_ancestral_discrete,dpmsolver_multistep,lcm,flow_match_euler_discrete,edm_euler,
// heun_discrete}.py.
// Thread-safe.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/model/scheduler_config.h"
#include "kernels/problem/reverse_step.h"

namespace deeppcr {

struct SamplerSteps {
  std::vector<ReverseStep> steps;
  double initial_scale = 1.0;
};

// EulerDiscrete: x' = x + (sigma' - sigma) (x - x0) / sigma.
// EulerAncestralDiscrete: the same to sigma_down, and noise of sigma_up, with
//   sigma_up^2 = sigma'^2 (sigma^2 - sigma'^2) / sigma^2,  sigma_down^2 = sigma'^2 - sigma_up^2.
// In both c = 1 / sqrt(sigma^2 + 1), and x0 by prediction_type:
//   epsilon x - sigma m;  sample m;  v_prediction x / (sigma^2 + 1) - sigma / sqrt(sigma^2 + 1) m.
absl::StatusOr<SamplerSteps> EulerSteps(const SchedulerConfig& config,
                                        const std::vector<double>& alphas_cumprod,
                                        int64_t num_inference_steps);

// EDMEuler: as EulerDiscrete with c = 1 / sqrt(sigma^2 + s^2), s = sigma_data, and
//   x0 = s^2 c^2 x + sigma s c m, with v_prediction -m for m.
absl::StatusOr<SamplerSteps> EdmEulerSteps(const SchedulerConfig& config,
                                           int64_t num_inference_steps);

// DPMSolverMultistep, from (alpha, s) = (1, sigma) / sqrt(sigma^2 + 1) (with use_flow_sigmas
// (1 - sigma, sigma)) to (alpha', s'), with h = lambda' - lambda, lambda = log(alpha / s). Order 1:
//   dpmsolver++      z' = s'/s z + alpha' (1 - e^-h) x0
//   dpmsolver        z' = alpha'/alpha z - s' (e^h - 1) eps
//   sde-dpmsolver++  z' = s'/s e^-h z + alpha' (1 - e^-2h) x0 + s' sqrt(1 - e^-2h) noise
//   sde-dpmsolver    z' = alpha'/alpha z - 2 s' (e^h - 1) eps + s' sqrt(e^2h - 1) noise
// Order 2 adds k (d - e), where d is x0 or eps, e = d of the step before, of which the memory is
// alpha e (or s e, of eps) at the level that the step begins at, and k is
// h / (lambda - lambda of the step before) times half the factor of d above (midpoint), or (heun)
//   alpha' ((e^-h - 1) / h + 1), -s' ((e^h - 1) / h - 1),
//   alpha' ((e^-2h - 1) / 2h + 1), -2 s' ((e^h - 1) / h - 1)  in the order above.
// Step `first_step`, with which the process begins, and those before it are of order 1.
absl::StatusOr<SamplerSteps> DpmSolverSteps(const SchedulerConfig& config,
                                            const std::vector<double>& alphas_cumprod,
                                            int64_t num_inference_steps, int64_t first_step);

// LCM: with t = timestep_scaling * timestep, p = alphas_cumprod of the next timestep,
//   d = t / sqrt(t^2 + 1/4) x0 + 1/4 / (t^2 + 1/4) z,  z' = sqrt(p) d + sqrt(1-p) noise, at last d.
absl::StatusOr<SamplerSteps> LcmSteps(const SchedulerConfig& config,
                                      const std::vector<double>& alphas_cumprod,
                                      int64_t num_inference_steps);

// FlowMatchEulerDiscrete: z' = z + (sigma' - sigma) m; with stochastic_sampling
//   z' = (1 - sigma') (z - sigma m) + sigma' noise.
absl::StatusOr<SamplerSteps> FlowMatchSteps(const SchedulerConfig& config,
                                            int64_t num_inference_steps);

// HeunDiscrete: as EulerDiscrete to x', then half of that step and half of one along the derivative
// at x', with the memory c' (x + (sigma' - sigma) / 2 (x - x0) / sigma) between. A step is two
// rows, the last one, to sigma 0, the first of them only. num_inference_steps counts the rows: 2 n
// - 1 of diffusers' n.
absl::StatusOr<SamplerSteps> HeunSteps(const SchedulerConfig& config,
                                       const std::vector<double>& alphas_cumprod,
                                       int64_t num_inference_steps);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_SAMPLERS_H_
