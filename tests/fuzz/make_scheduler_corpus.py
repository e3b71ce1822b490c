#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the corpus of scheduler: tests/fuzz/make_scheduler_corpus.py (no arguments, no packages)."""

import json

import corpus_files

# Configs as diffusers saves them.
DDPM = {"_class_name": "DDPMScheduler", "_diffusers_version": "0.35.2", "beta_end": 0.02,
        "beta_schedule": "linear", "beta_start": 0.0001, "clip_sample": True,
        "clip_sample_range": 1.0, "dynamic_thresholding_ratio": 0.995, "num_train_timesteps": 1000,
        "prediction_type": "epsilon", "rescale_betas_zero_snr": False, "sample_max_value": 1.0,
        "steps_offset": 0, "thresholding": False, "timestep_spacing": "leading",
        "trained_betas": None, "variance_type": "fixed_small"}
DDIM = {"_class_name": "DDIMScheduler", "_diffusers_version": "0.6.0", "beta_end": 0.012,
        "beta_schedule": "scaled_linear", "beta_start": 0.00085, "clip_sample": False,
        "num_train_timesteps": 1000, "set_alpha_to_one": False, "skip_prk_steps": True,
        "steps_offset": 1, "trained_betas": None}
SMALL = {"_class_name": "DDIMScheduler", "num_train_timesteps": 50}
EULER = {"_class_name": "EulerDiscreteScheduler", "num_train_timesteps": 50}
DPM = {"_class_name": "DPMSolverMultistepScheduler", "num_train_timesteps": 50, "solver_order": 1}
MULTISTEP = {**DPM, "solver_order": 2}
FLOW = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 50}
EDM = {"_class_name": "EDMEulerScheduler", "num_train_timesteps": 50}
HEUN = {"_class_name": "HeunDiscreteScheduler", "num_train_timesteps": 50}
LCM = {"_class_name": "LCMScheduler", "num_train_timesteps": 50}


def scheduler(base=SMALL, **changes):
    return json.dumps({**base, **changes}).encode()


def appended(text):
    return scheduler()[:-1] + text


CORPUS = {
    "accepted-ddpm": json.dumps(DDPM, indent=2).encode(),
    "accepted-stable-diffusion": json.dumps(DDIM, indent=2).encode(),
    "accepted-minimal": b'{"_class_name":"DDPMScheduler"}',
    "accepted-small": scheduler(steps_offset=1),
    "accepted-trained-betas": scheduler(num_train_timesteps=3, trained_betas=[0.125, 0.25, 1]),
    "accepted-trailing": scheduler(timestep_spacing="trailing", set_alpha_to_one=False),
    "accepted-linspace": scheduler(timestep_spacing="linspace", prediction_type="sample"),
    "accepted-zero-snr": scheduler(
        rescale_betas_zero_snr=True, timestep_spacing="trailing", prediction_type="v_prediction"),
    "accepted-zero-snr-epsilon": scheduler(rescale_betas_zero_snr=True),
    "accepted-cosine": scheduler(beta_schedule="squaredcos_cap_v2"),
    "accepted-sigmoid": scheduler(
        DDPM, num_train_timesteps=20, beta_schedule="sigmoid", variance_type="fixed_large"),
    "accepted-defaulted": scheduler(
        thresholding=True, beta_end=7, _use_default_values=["thresholding", "beta_end", "x"]),
    "accepted-unknown": scheduler(skip_prk_steps=True, variance_type="learned", _private=[{}]),
    "accepted-euler": scheduler(EULER, use_karras_sigmas=True, sigma_min=0.03, sigma_max=None),
    "accepted-beta-sigmas": scheduler(HEUN, use_beta_sigmas=True),
    "accepted-dynamic-shifting": scheduler(
        FLOW, use_dynamic_shifting=True, time_shift_type="linear", use_beta_sigmas=True),
    "accepted-euler-continuous": scheduler(
        EULER, timestep_type="continuous", prediction_type="v_prediction",
        interpolation_type="log_linear", final_sigmas_type="sigma_min"),
    "accepted-ancestral": scheduler(
        _class_name="EulerAncestralDiscreteScheduler", rescale_betas_zero_snr=True,
        prediction_type="v_prediction", timestep_spacing="trailing"),
    "accepted-dpm": scheduler(
        DPM, algorithm_type="sde-dpmsolver", final_sigmas_type="sigma_min", euler_at_final=True),
    "accepted-dpm-infinity": scheduler(DPM, lambda_min_clipped=float("-inf")),
    "accepted-dpm-flow": scheduler(
        DPM, use_flow_sigmas=True, flow_shift=3.0, prediction_type="flow_prediction"),
    "accepted-dpm-lu": scheduler(DPM, use_lu_lambdas=True, lambda_min_clipped=-5.1),
    "accepted-flow": scheduler(
        FLOW, shift=3.0, shift_terminal=0.1, use_exponential_sigmas=True, stochastic_sampling=True),
    "accepted-flow-inverted": scheduler(FLOW, invert_sigmas=True),
    "accepted-edm": scheduler(EDM, sigma_schedule="exponential", rho=3.5, sigma_data=1.0),
    "accepted-edm-extreme": scheduler(EDM, sigma_min=1e-300, sigma_max=1e300, sigma_data=1e-300),
    "accepted-lcm": scheduler(LCM, original_inference_steps=25, timestep_scaling=0.5),
    "refused-clipped-output": scheduler(use_clipped_model_output=True),
    "refused-unknown": scheduler(use_better_sigmas=False),
    "accepted-multistep": scheduler(MULTISTEP, timestep_spacing="trailing"),
    "accepted-multistep-heun": scheduler(
        MULTISTEP, algorithm_type="sde-dpmsolver", final_sigmas_type="sigma_min",
        solver_type="heun", lower_order_final=False, euler_at_final=True),
    "accepted-multistep-flow": scheduler(
        MULTISTEP, use_flow_sigmas=True, prediction_type="flow_prediction", solver_type="bh2"),
    "accepted-heun": scheduler(HEUN, clip_sample=True, clip_sample_range=0.5),
    "accepted-heun-karras": scheduler(
        HEUN, use_karras_sigmas=True, prediction_type="v_prediction", timestep_spacing="trailing"),
    "accepted-heun-exp": scheduler(HEUN, beta_schedule="exp", use_exponential_sigmas=True),
    "accepted-learned": scheduler(DDPM, num_train_timesteps=30, variance_type="learned"),
    "accepted-learned-range": scheduler(
        DDPM, num_train_timesteps=30, variance_type="learned_range", beta_end=1e-300),
    "refused-order": scheduler(DPM, solver_order=3),
    "refused-solver-type": scheduler(MULTISTEP, solver_type="euler"),
    "refused-exp-of-ddim": scheduler(beta_schedule="exp"),
    "refused-learned-of-dpm": scheduler(DPM, variance_type="learned"),
    "refused-dpm-exponential": scheduler(DPM, use_exponential_sigmas=True),
    "refused-two-sigmas": scheduler(EULER, use_karras_sigmas=True, use_exponential_sigmas=True),
    "refused-beta-sigmas": scheduler(DPM, use_beta_sigmas=True),
    "refused-mu": scheduler(FLOW, use_dynamic_shifting=True, mu=1.15),
    "refused-sample-of-edm": scheduler(EDM, prediction_type="sample"),
    "refused-lcm-steps": scheduler(LCM, original_inference_steps=51),
    "accepted-underflow": scheduler(beta_start=1.0, beta_end=1e-300),
    "accepted-largest": scheduler(num_train_timesteps=100000, steps_offset=99999),
    "refused-empty": b"",
    "refused-array": b"[]",
    "refused-no-class": b"{}",
    "refused-class": scheduler(_class_name="PNDMScheduler"),
    "refused-class-defaulted": scheduler(_use_default_values=["_class_name"]),
    "refused-defaults-number": scheduler(_use_default_values=[1]),
    "refused-defaults-string": scheduler(_use_default_values="beta_end"),
    "refused-duplicate": appended(b',"beta_end":0.1,"beta_end":0.2}'),
    "refused-thresholding": scheduler(thresholding=True),
    "refused-variance": scheduler(DDPM, variance_type="fixed_small_log"),
    "refused-laplace": scheduler(beta_schedule="laplace"),
    "refused-sigmoid-of-ddim": scheduler(beta_schedule="sigmoid"),
    "refused-zero": scheduler(num_train_timesteps=0),
    "refused-large": scheduler(num_train_timesteps=100001),
    "refused-huge": scheduler(num_train_timesteps=2**64),
    "refused-negative": scheduler(steps_offset=-1),
    "refused-offset": scheduler(steps_offset=100000),
    "refused-float": scheduler(num_train_timesteps=50.0),
    "refused-beta-zero": scheduler(beta_start=0),
    "refused-beta-above": scheduler(beta_end=1.5),
    "refused-beta-overflow": appended(b',"beta_end":1e999}'),
    "refused-beta-nan": appended(b',"beta_end":NaN}'),
    "refused-beta-string": scheduler(beta_end="0.02"),
    "refused-betas-few": scheduler(trained_betas=[0.5]),
    "refused-betas-type": scheduler(num_train_timesteps=1, trained_betas=["0.5"]),
    "refused-clip-range": scheduler(clip_sample_range=-1.0),
    "refused-null": scheduler(clip_sample=None),
    "refused-deep": appended(b',"x":' + b"[" * 64),
    "refused-trailing": scheduler() + b"x",
    "refused-nul": scheduler() + b"\0",
    "refused-not-utf8": appended(b',"x":"\xff"}'),
}


if __name__ == "__main__":
    corpus_files.write("scheduler", CORPUS)
