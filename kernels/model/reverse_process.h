// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_REVERSE_PROCESS_H_
#define DEEPPCR_KERNELS_MODEL_REVERSE_PROCESS_H_

// The reverse process of a diffusion model: its timesteps, and the effect of one step on a state z
// given the model's output m at (z, timestep) and standard normal noise. A step acts on every
// element of a sample by itself; only the denoiser couples the elements
// (kernels/problem/reverse_step.h):
//
//   x0 = clip(x0_z z + x0_m m, +-clip_range)
//   z' = z_z z + z_m m + z_x0 x0 + z_c c + sigma noise
//
// Sources: Ho et al. 2020 (DDPM, arXiv 2006.11239), Song et al. 2021 (DDIM, arXiv 2010.02502),
// Salimans and Ho 2022 (v_prediction, arXiv 2202.00512), Lin et al. 2023 (spacings and zero SNR,
// arXiv 2305.08891); semantics of diffusers, src/diffusers/schedulers/scheduling_{ddpm,ddim}.py.
//
// With a = alphas_cumprod[timestep], p = alphas_cumprod[prev_timestep], and after the last step
// p = 1 (DDPM; DDIM with set_alpha_to_one) or alphas_cumprod[0] (DDIM without):
//
//   prediction_type  x0 = x0_z z + x0_m m         eps = eps_z z + eps_m m
//   epsilon          (z - sqrt(1-a) m) / sqrt(a)  m
//   sample           m                            (z - sqrt(a) m) / sqrt(1-a)
//   v_prediction     sqrt(a) z - sqrt(1-a) m      sqrt(1-a) z + sqrt(a) m
//
// DDPM (Ho et al., equations 6 and 7, between any two timesteps): beta = 1 - a/p,
//   z_x0 = sqrt(p) beta / (1-a),  z_z = sqrt(a/p) (1-p) / (1-a),  z_m = 0,
//   sigma^2 = max((1-p) / (1-a) beta, 1e-20) with fixed_small, beta with fixed_large; 0 at
//   timestep 0; with learned and learned_range see below. So noise is drawn in the last step too
//   where the last timestep is not 0 (steps_offset, trailing with few training steps per step): as
//   diffusers does.
//
// With a learned variance (Nichol and Dhariwal 2021, arXiv 2102.09672, equation 15) the network's
// output is [m, v]: learned: sigma sqrt(v), sigma = 1, where diffusers has NaN for v < 0, here v is
// 1e-20 at least; learned_range: sigma e^(sigma_v v), between the logarithms of the two variances,
// sigma = (small large)^1/4, sigma_v = log(large / small) / 4. Clips are of m's x0.
//
// DDIM (Song et al., equations 12 and 16): sigma^2 = eta^2 (1-p) / (1-a) (1 - a/p),
//   direction = sqrt(1 - p - sigma^2),  z_x0 = sqrt(p),
//   z_z = direction eps_z,  z_m = direction eps_m.
//   eps is the model's, before x0 is clipped, but with use_clipped_model_output that of the clipped
//   x0, (z - sqrt(a) x0) / sqrt(1-a), whatever the prediction:
//   z_z = direction / sqrt(1-a),  z_m = 0,  z_x0 = sqrt(p) - z_z sqrt(a).
//
// samplers.h has the steps of the other classes.
//
// Everything is computed in double. diffusers computes its tables in float32, where 1 - a cancels:
// its samples differ from these by some 1e-6 of their size per step, and by up to 3e-4 in the steps
// between the first few timesteps.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/model/scheduler_config.h"
#include "kernels/problem/reverse_step.h"

namespace deeppcr {

struct ReverseProcessOptions {
  int64_t num_inference_steps = 0;  // n, in [1, MostInferenceSteps]
  double eta = 0.0;                 // in [0, 1]; 0 for all but DDIM, which have no eta
  // k in [0, n): the process begins at z_k, as with set_begin_index of diffusers' schedulers. The
  // state is given as it is, and nothing is known of the steps that are left out.
  int64_t first_step = 0;

  // The argument of diffusers' set_timesteps, by which the times of flow matching are shifted.
  // Needed by FlowMatchEulerDiscrete with use_dynamic_shifting, allowed by DPMSolverMultistep with
  // it. e^mu, or mu if that is the shift, is finite and above 0.
  std::optional<double> mu;

  // DDIM: whether eps is computed again from the clipped x0; false for other classes.
  bool use_clipped_model_output = false;

  // DDIMScheduler takes timestep - T / n (integers) for the previous timestep, which is not the
  // next entry of its own list with `linspace`, nor with the others where n does not divide T
  // (diffusers issues 12633, 11347, 9261). false: the next entry of the list; true: as upstream.
  bool diffusers_compatible = false;
};

struct ReverseProcess {
  std::vector<double> betas;           // [T], in (0, 1]; of a class without betas empty
  std::vector<double> alphas_cumprod;  // [T], descending, in [0, 1]; or empty
  std::vector<ReverseStep> steps;      // [n - k]
  double clip_range = 0.0;             // above 0; infinity if samples are not clipped
  double initial_scale = 1.0;          // of the noise that z_0 is; finite as float32, above 0
  SamplerForm form;
};

// The largest number of inference steps of a scheduler.
int64_t MostInferenceSteps(const SchedulerConfig& config);

// What a scheduler's steps keep and take, whatever their number.
SamplerForm FormOf(const SchedulerConfig& config);

// True if the network sees samples times a number that differs between the steps, so that what is
// known of the sample is not what is known of a state.
bool ScalesStates(const SchedulerConfig& config);

// Checks the coefficients of steps that come from a file: finite as float32.
// Errors: kInvalidArgument naming step and column, or initial_scale. Thread-safe.
absl::Status CheckSteps(std::span<const ReverseStep> steps, double initial_scale);

// Leaves out the first k < n steps. Errors: kInvalidArgument where the next one takes a memory of
// those before it, as every second one of HeunDiscrete. Thread-safe.
absl::Status LeaveOut(int64_t first_step, std::vector<ReverseStep>* steps);

// Builds the process of a `config` that ParseSchedulerConfig returned. Thread-safe.
// Errors: kInvalidArgument naming the key or option, what was expected and what came: those of
// timesteps.h and sigma_schedule.h; eta out of range; those of LeaveOut; betas that cannot be
// rescaled; alphas_cumprod of 0 or 1 where a step would divide by 0 (epsilon prediction at zero
// SNR, products that underflow).
absl::StatusOr<ReverseProcess> BuildReverseProcess(const SchedulerConfig& config,
                                                   const ReverseProcessOptions& options);

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_REVERSE_PROCESS_H_
