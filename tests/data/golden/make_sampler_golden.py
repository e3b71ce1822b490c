#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes samplers.json: runs of diffusers' schedulers beside DDIM, and in float64.

Of DDPM those with a learned variance; make_scheduler_golden.py has its others.

Usage: tests/data/golden/make_sampler_golden.py [--output_dir DIR]

Needs the packages of make_scheduler_golden.py, and scipy 1.11.4. It writes the same bytes when run again with the
same versions.

The network is m(z, t) = 0.4 sin(z) + 0.3 cos(t / 100 + k) in element k, and where the variance is
learned v(z) = 0.6 + 0.5 sin(2 z + k) beside it, in float64; what it sees is
what scale_model_input makes of the sample. diffusers computes its tables and some of its steps in
float32; a run in float64 by the formulas written down here stands beside it.

Schema. `noise` [D] and `step_noise` [1000, D]: normals, representable in float32; the initial
sample is the former times init_noise_sigma, row i of the latter the noise of step i, where a step
draws one. `cases` is an array:

  name                  [a-z0-9_]+
  config                scheduler_config.json as the scheduler itself saves it
  num_inference_steps   evaluations of the network: n, with HeunDiscrete 2 n - 1
  first_step            if there: evaluations that are left out; `noise` is what the network then
                        sees first, and what is listed below is counted from there on
  mu                    if there: of set_timesteps
  at                    steps whose network inputs are kept: all, or about ten of many
  times                 [at] the time that the network sees, in float64
  diffusers, float64    `inputs` [at, D], what the network sees, and `sample` [D], the result
"""

import argparse
import inspect
import json
import math
import pathlib

import diffusers
import numpy as np
import scipy.stats
import torch
from diffusers.schedulers import (scheduling_ddpm, scheduling_dpmsolver_multistep,
                                  scheduling_euler_ancestral_discrete, scheduling_lcm)
from make_scheduler_golden import betas_of
from sampler_cases import MOST_STEPS, all_cases

DIMENSIONS = 3


def network(z, time):
    return 0.4 * np.sin(z) + 0.3 * np.cos(time / 100 + np.arange(DIMENSIONS))


def spread(z):
    return 0.6 + 0.5 * np.sin(2 * z + np.arange(DIMENSIONS))


# ---- diffusers ----


class NoiseRows:
    """Hands out rows of noise in place of random numbers, the next at each call."""

    def __init__(self, rows):
        self.rows = rows
        self.step = 0

    def __call__(self, *args, dtype=None, **kwargs):
        return torch.from_numpy(self.rows[self.step])[None].to(dtype or torch.float64)


def run_diffusers(scheduler, steps, noise, step_noise, first, mu):
    rows = NoiseRows(step_noise)
    for module in (scheduling_ddpm, scheduling_dpmsolver_multistep,
                   scheduling_euler_ancestral_discrete, scheduling_lcm):
        module.randn_tensor = rows
    scheduler.set_timesteps(steps, **({} if mu is None else {"mu": mu}))
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(first)
    scale = float(getattr(scheduler, "init_noise_sigma", 1.0))
    if first > 0:
        heun = isinstance(scheduler, diffusers.HeunDiscreteScheduler)
        scale = (float(scheduler.sigmas[first]) ** 2 + 1) ** 0.5 if heun else 1.0
    sample = torch.from_numpy(noise)[None] * scale
    inputs = []
    scaled = hasattr(scheduler, "scale_model_input")
    randn_like = torch.randn_like
    torch.randn_like = lambda like: rows(dtype=like.dtype)
    for i, time in enumerate(scheduler.timesteps[first:]):
        rows.step = first + i
        seen = scheduler.scale_model_input(sample, time) if scaled else sample
        inputs.append(seen[0].to(torch.float64).numpy())
        said = network(inputs[-1], float(time))
        if isinstance(scheduler, diffusers.DDPMScheduler):
            said = np.concatenate([said, spread(inputs[-1])])
        m = torch.from_numpy(said)[None]
        sample = scheduler.step(m, time, sample).prev_sample.to(torch.float64)
    torch.randn_like = randn_like
    return np.array(inputs), sample[0].numpy()


# ---- The same in float64, independent of diffusers' code ----


def karras(low, high, rho, steps):
    ramp = np.linspace(0, 1, steps)
    return (high ** (1 / rho) + ramp * (low ** (1 / rho) - high ** (1 / rho))) ** rho


def exponential(first, last, steps):
    return np.exp(np.linspace(np.log(first), np.log(last), steps))


def beta(first, last, steps):
    shares = scipy.stats.beta.ppf(1 - np.linspace(0, 1, steps), 0.6, 0.6)
    return last + shares * (first - last)


def sigma_table(config):
    alpha_prod = np.cumprod(1 - betas_of(config))
    if config.get("rescale_betas_zero_snr"):
        alpha_prod[-1] = 2.0**-24
    return np.sqrt((1 - alpha_prod) / alpha_prod)


def time_of(sigma, table):
    return np.interp(np.log(sigma), np.log(table), np.arange(len(table)))


def trailing(start, count, steps):
    times = np.arange(start, 0, -count / steps).round() - 1
    return times[times >= 0]


def euler_times(config, steps):
    count = config["num_train_timesteps"]
    if config["timestep_spacing"] == "linspace":
        return np.linspace(0, count - 1, steps)[::-1]
    if config["timestep_spacing"] == "leading":
        return (np.arange(steps) * (count // steps))[::-1] + float(config["steps_offset"])
    return trailing(count, count, steps)


def euler_schedule(config, steps):
    table = sigma_table(config)
    times = euler_times(config, steps)
    sigmas = np.interp(times, np.arange(len(table)), table)
    last = table[0] if config.get("final_sigmas_type") == "sigma_min" else 0.0
    if config.get("interpolation_type") == "log_linear":
        sigmas = exponential(table[-1], table[0], steps + 1)
    low = config.get("sigma_min") or sigmas[-1]
    high = config.get("sigma_max") or sigmas[0]
    if config.get("use_karras_sigmas"):
        sigmas = karras(low, high, 7.0, steps)
        times = time_of(sigmas, table)
    elif config.get("use_exponential_sigmas"):
        sigmas = exponential(high, low, steps)
        times = time_of(sigmas, table)
    elif config.get("use_beta_sigmas"):
        sigmas = beta(high, low, steps)
        times = time_of(sigmas, table)
    sigmas = np.append(sigmas, last)[:steps + 1]
    if config.get("timestep_type") == "continuous" and config["prediction_type"] == "v_prediction":
        times = np.log(sigmas[:-1]) / 4
    largest = sigmas.max()
    leading = config["timestep_spacing"] == "leading"
    return sigmas, times, np.sqrt(largest**2 + 1) if leading else largest


def run_euler(config, steps, noise, step_noise):
    sigmas, times, initial = euler_schedule(config, steps)
    x, inputs = noise * initial, []
    for i, time in enumerate(times):
        sigma, after = sigmas[i], sigmas[i + 1]
        root = np.sqrt(sigma**2 + 1)
        inputs.append(x / root)
        m = network(inputs[-1], time)
        denoised = {"epsilon": x - sigma * m, "sample": m,
                    "v_prediction": x / root**2 - sigma / root * m}[config["prediction_type"]]
        up = 0.0
        if config["_class_name"] == "EulerAncestralDiscreteScheduler":
            up = np.sqrt(after**2 * (sigma**2 - after**2) / sigma**2)
        down = np.sqrt(after**2 - up**2)
        x = x + (x - denoised) / sigma * (down - sigma) + up * step_noise[i]
    return times, inputs, x


def run_heun(config, steps, noise, step_noise, first=0):
    sigmas, times, initial = euler_schedule(config, steps)
    x, inputs, seen = noise * initial, [], []
    begin = first // 2
    if begin > 0:
        x = noise * np.sqrt(sigmas[begin]**2 + 1)

    def slope(x, sigma, time):
        root = np.sqrt(sigma**2 + 1)
        inputs.append(x / root)
        seen.append(time)
        m = network(inputs[-1], time)
        denoised = {"epsilon": x - sigma * m, "sample": m,
                    "v_prediction": x / root**2 - sigma / root * m}[config["prediction_type"]]
        if config["clip_sample"]:
            denoised = denoised.clip(-config["clip_sample_range"], config["clip_sample_range"])
        return (x - denoised) / sigma

    for i in range(begin, len(times)):
        length = sigmas[i + 1] - sigmas[i]
        along = slope(x, sigmas[i], times[i])
        if sigmas[i + 1] > 0:
            along = (along + slope(x + length * along, sigmas[i + 1], times[i + 1])) / 2
        x = x + length * along
    return np.array(seen), inputs, x


def run_edm(config, steps, noise, step_noise):
    low, high, data = config["sigma_min"], config["sigma_max"], config["sigma_data"]
    if config["sigma_schedule"] == "karras":
        sigmas = karras(low, high, config["rho"], steps)
    else:
        sigmas = exponential(low, high, steps)[::-1]
    times = np.log(sigmas) / 4
    sigmas = np.append(sigmas, 0.0 if config["final_sigmas_type"] == "zero" else sigmas[-1])
    x, inputs = noise * np.sqrt(high**2 + 1), []
    for i, time in enumerate(times):
        sigma = sigmas[i]
        root = np.sqrt(sigma**2 + data**2)
        inputs.append(x / root)
        m = network(inputs[-1], time)
        out = sigma * data / root * (1 if config["prediction_type"] == "epsilon" else -1)
        denoised = data**2 / root**2 * x + out * m
        x = x + (x - denoised) / sigma * (sigmas[i + 1] - sigma)
    return times, inputs, x


def dpm_schedule(config, steps, mu):
    table, count = sigma_table(config), config["num_train_timesteps"]
    clip = config["lambda_min_clipped"]
    last = int(np.sum(-np.log(table) >= (-np.inf if clip is None else clip)))
    if config["use_karras_sigmas"]:
        low, high = config.get("sigma_min") or table[0], config.get("sigma_max") or table[-1]
        sigmas = karras(low, high, 7.0, steps)
        times = time_of(sigmas, table).round()
    elif config["use_lu_lambdas"]:
        sigmas = exponential(table[-1], table[0], steps)
        times = time_of(sigmas, table).round()
    elif config["use_flow_sigmas"]:
        shift = config["flow_shift"] if mu is None else math.exp(mu)
        sigmas = 1 - np.linspace(1, 1 / count, steps + 1)[:0:-1]
        sigmas = shift * sigmas / (1 + (shift - 1) * sigmas)
        times = np.trunc(sigmas * count)
    else:
        if config["timestep_spacing"] == "linspace":
            times = np.linspace(0, last - 1, steps + 1).round()[:0:-1]
        elif config["timestep_spacing"] == "leading":
            times = np.arange(steps, 0, -1) * (last // (steps + 1)) + config["steps_offset"]
        else:
            times = trailing(last, count, steps)
        sigmas = table[times.astype(int)]
    after = table[0] if config["final_sigmas_type"] == "sigma_min" else 0.0
    return np.append(sigmas, after), times


def order_of(config, i, steps, first):
    lower = (config["euler_at_final"] or config["final_sigmas_type"] == "zero"
             or (config["lower_order_final"] and steps < 15))
    return 1 if i == first or (i == steps - 1 and lower) else config["solver_order"]


def second_order(config, h, to_a, to_s):
    """Factor of D1, as multistep_dpm_solver_second_order_update says."""
    return {
        ("dpmsolver++", "midpoint"): lambda: -0.5 * to_a * (np.exp(-h) - 1),
        ("dpmsolver++", "heun"): lambda: to_a * ((np.exp(-h) - 1) / h + 1),
        ("dpmsolver", "midpoint"): lambda: -0.5 * to_s * (np.exp(h) - 1),
        ("dpmsolver", "heun"): lambda: -to_s * ((np.exp(h) - 1) / h - 1),
        ("sde-dpmsolver++", "midpoint"): lambda: 0.5 * to_a * (1 - np.exp(-2 * h)),
        ("sde-dpmsolver++", "heun"): lambda: to_a * ((1 - np.exp(-2 * h)) / (-2 * h) + 1),
        ("sde-dpmsolver", "midpoint"): lambda: -to_s * (np.exp(h) - 1),
        ("sde-dpmsolver", "heun"): lambda: -2 * to_s * ((np.exp(h) - 1) / h - 1),
    }[config["algorithm_type"], config["solver_type"]]()


def run_dpm(config, steps, noise, step_noise, first=0, mu=None):
    sigmas, times = dpm_schedule(config, steps, mu)
    if config["use_flow_sigmas"]:
        alphas, roots = 1 - sigmas, sigmas
    else:
        alphas = 1 / np.sqrt(sigmas**2 + 1)
        roots = sigmas * alphas
    with np.errstate(divide="ignore"):
        lambdas = np.log(alphas) - np.log(roots)
    x, inputs, before = noise, [], None
    for i in range(first, len(times)):
        time = times[i]
        a, s, to_a, to_s = alphas[i], roots[i], alphas[i + 1], roots[i + 1]
        inputs.append(x)
        m = network(x, time)
        if config["prediction_type"] == "flow_prediction":
            denoised, eps = x - sigmas[i] * m, None
        else:
            denoised, eps = {"epsilon": ((x - s * m) / a, m),
                             "sample": (m, (x - a * m) / s),
                             "v_prediction": (a * x - s * m, a * m + s * x),
                             }[config["prediction_type"]]
        with np.errstate(divide="ignore"):
            h = np.log(to_a) - np.log(to_s) - np.log(a) + np.log(s)
        found = denoised if config["algorithm_type"].endswith("++") else eps
        second = 0.0
        if order_of(config, i, len(times), first) == 2:
            d1 = h / (lambdas[i] - lambdas[i - 1]) * (found - before)
            second = second_order(config, h, to_a, to_s) * d1
        before = found
        x = second + {
            "dpmsolver++": lambda: to_s / s * x - to_a * np.expm1(-h) * denoised,
            "dpmsolver": lambda: to_a / a * x - to_s * np.expm1(h) * eps,
            "sde-dpmsolver++": lambda: (
                to_s / s * np.exp(-h) * x - to_a * np.expm1(-2 * h) * denoised
                + to_s * np.sqrt(-np.expm1(-2 * h)) * step_noise[i]),
            "sde-dpmsolver": lambda: (
                to_a / a * x - 2 * to_s * np.expm1(h) * eps
                + to_s * np.sqrt(np.expm1(2 * h)) * step_noise[i]),
        }[config["algorithm_type"]]()
    return times[first:], inputs, x


def run_ddpm(config, steps, noise, step_noise):
    alpha_prod = np.cumprod(1 - betas_of(config))
    count = config["num_train_timesteps"]
    if config["timestep_spacing"] == "linspace":
        times = np.linspace(0, count - 1, steps).round()[::-1].astype(int)
    elif config["timestep_spacing"] == "leading":
        times = (np.arange(steps) * (count // steps))[::-1] + config["steps_offset"]
    else:
        times = trailing(count, count, steps).astype(int)
    x, inputs = noise, []
    for i, time in enumerate(times):
        a, p = alpha_prod[time], alpha_prod[times[i + 1]] if i + 1 < steps else 1.0
        inputs.append(x)
        m, v = network(x, time), spread(x)
        denoised = {"epsilon": (x - (1 - a) ** 0.5 * m) / a**0.5, "sample": m,
                    "v_prediction": a**0.5 * x - (1 - a) ** 0.5 * m}[config["prediction_type"]]
        if config["clip_sample"]:
            denoised = denoised.clip(-config["clip_sample_range"], config["clip_sample_range"])
        beta = 1 - a / p
        x = (p**0.5 * beta * denoised + (a / p) ** 0.5 * (1 - p) * x) / (1 - a)
        if time > 0:
            variance = v
            if config["variance_type"] == "learned_range":
                small, share = max((1 - p) / (1 - a) * beta, 1e-20), (v + 1) / 2
                variance = np.exp(share * np.log(beta) + (1 - share) * np.log(small))
            x = x + variance**0.5 * step_noise[i]
    return times.astype(float), inputs, x


def run_lcm(config, steps, noise, step_noise):
    alpha_prod = np.cumprod(1 - betas_of(config))
    original = config["original_inference_steps"]
    listed = np.arange(1, original + 1)[::-1] * (config["num_train_timesteps"] // original) - 1
    times = listed[np.floor(np.linspace(0, original, steps, endpoint=False)).astype(int)]
    x, inputs = noise, []
    for i, time in enumerate(times):
        a = alpha_prod[time]
        inputs.append(x)
        m = network(x, time)
        denoised = {"epsilon": (x - (1 - a) ** 0.5 * m) / a**0.5, "sample": m,
                    "v_prediction": a**0.5 * x - (1 - a) ** 0.5 * m}[config["prediction_type"]]
        if config["clip_sample"]:
            denoised = denoised.clip(-config["clip_sample_range"], config["clip_sample_range"])
        scaled = time * config["timestep_scaling"]
        x = scaled / (scaled**2 + 0.25) ** 0.5 * denoised + 0.25 / (scaled**2 + 0.25) * x
        if i + 1 < steps:
            p = alpha_prod[times[i + 1]]
            x = p**0.5 * x + (1 - p) ** 0.5 * step_noise[i]
    return times, inputs, x


def run_flow(config, steps, noise, step_noise, mu=None):
    count, shift = config["num_train_timesteps"], config["shift"]

    def shifted(sigma):
        return shift * sigma / (1 + (shift - 1) * sigma)

    if config["use_dynamic_shifting"]:
        factor = math.exp(mu) if config["time_shift_type"] == "exponential" else mu
        sigmas = factor / (factor + (1 / np.linspace(1.0, 1 / count, steps) - 1))
    else:
        sigmas = shifted(np.linspace(shifted(1.0), shifted(1 / count), steps))
    if config["shift_terminal"]:
        sigmas = 1 - (1 - sigmas) * (1 - config["shift_terminal"]) / (1 - sigmas[-1])
    low, high = config.get("sigma_min") or sigmas[-1], config.get("sigma_max") or sigmas[0]
    if config["use_karras_sigmas"]:
        sigmas = karras(low, high, 7.0, steps)
    elif config["use_exponential_sigmas"]:
        sigmas = exponential(high, low, steps)
    elif config["use_beta_sigmas"]:
        sigmas = beta(high, low, steps)
    if config["invert_sigmas"]:
        sigmas = 1 - sigmas
    times = sigmas * count
    sigmas = np.append(sigmas, 1.0 if config["invert_sigmas"] else 0.0)
    x, inputs = noise, []
    for i, time in enumerate(times):
        inputs.append(x)
        m = network(x, time)
        if config["stochastic_sampling"]:
            x = (1 - sigmas[i + 1]) * (x - sigmas[i] * m) + sigmas[i + 1] * step_noise[i]
        else:
            x = x + (sigmas[i + 1] - sigmas[i]) * m
    return times, inputs, x


CLASSES = {
    "euler": (diffusers.EulerDiscreteScheduler, run_euler),
    "ancestral": (diffusers.EulerAncestralDiscreteScheduler, run_euler),
    "dpm": (diffusers.DPMSolverMultistepScheduler, run_dpm),
    "lcm": (diffusers.LCMScheduler, run_lcm),
    "ddpm": (diffusers.DDPMScheduler, run_ddpm),
    "flow": (diffusers.FlowMatchEulerDiscreteScheduler, run_flow),
    "edm": (diffusers.EDMEulerScheduler, run_edm),
    "multistep": (diffusers.DPMSolverMultistepScheduler, run_dpm),
    "heun": (diffusers.HeunDiscreteScheduler, run_heun),
}


def make_case(noise, step_noise, name, steps, config, first=0, mu=None):
    scheduler_class, run = CLASSES[name.split("_")[0]]
    # Keys that a class reads though it does not take them.
    foreign = {key: config[key] for key in ("sigma_min", "sigma_max")
               if key in config and key not in inspect.signature(scheduler_class).parameters}
    scheduler = scheduler_class(**{key: config[key] for key in config if key not in foreign})
    scheduler.register_to_config(**foreign)
    saved = json.loads(scheduler.to_json_string())
    if saved.get("lambda_min_clipped") == -np.inf:
        saved["lambda_min_clipped"] = None
    inputs, sample = run_diffusers(scheduler, steps, noise, step_noise, first, mu)
    said = {**({"first": first} if first > 0 else {}), **({} if mu is None else {"mu": mu})}
    times, exact_inputs, exact = run(saved, steps, noise, step_noise, **said)
    # Heun's method evaluates the network twice in all steps but the last.
    evaluations = 2 * steps - 1 if name.startswith("heun") else steps
    steps = evaluations - first
    assert len(times) == steps, (name, len(times))
    theirs = scheduler.timesteps.numpy()[first:][:steps]
    assert np.allclose(theirs, times, rtol=1e-3, atol=2e-2), (name, theirs, times)
    assert np.isfinite(sample).all() and np.isfinite(exact).all(), (name, sample, exact)
    at = sorted({*range(0, steps, max(1, steps // 10)), steps - 1})
    short = [[float(f"{value:.9g}") for value in inputs[i]] for i in at]
    return {
        "name": name, "config": saved, "num_inference_steps": evaluations,
        **({"first_step": first} if first > 0 else {}), **({} if mu is None else {"mu": mu}),
        "at": at,
        "times": [float(times[i]) for i in at],
        "diffusers": {"inputs": short, "sample": [float(f"{value:.9g}") for value in sample]},
        "float64": {"inputs": [exact_inputs[i].tolist() for i in at], "sample": exact.tolist()},
    }


def distance(case):
    worst = 0.0
    pairs = [*zip(case["diffusers"]["inputs"], case["float64"]["inputs"]),
             (case["diffusers"]["sample"], case["float64"]["sample"])]
    for theirs, exact in pairs:
        worst = max(worst, float(np.abs(np.subtract(theirs, exact)).max() / np.abs(exact).max()))
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    path = parser.parse_args().output_dir / "samplers.json"
    random = np.random.Generator(np.random.PCG64(20261))
    noise = random.standard_normal(DIMENSIONS).astype(np.float32).astype(np.float64)
    # Few digits, as there are many rows.
    step_noise = random.standard_normal((MOST_STEPS, DIMENSIONS)).round(2)
    step_noise = step_noise.astype(np.float32).astype(np.float64)
    cases = [make_case(noise, step_noise, *case) for case in all_cases()]
    for case in sorted(cases, key=distance)[-12:]:
        print(f"{case['name']}: diffusers differs from float64 by {distance(case):.1e}")
    content = {"noise": noise.tolist(),
               "step_noise": [[float(str(np.float32(v))) for v in row] for row in step_noise],
               "cases": cases}
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    path.write_text(text.replace('{"name"', '\n{"name"') + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size} bytes, {len(cases)} cases")


if __name__ == "__main__":
    main()
