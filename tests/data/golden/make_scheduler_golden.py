#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes schedulers.json: single reverse steps by diffusers' schedulers, and in float64.

Usage: tests/data/golden/make_scheduler_golden.py [--output_dir DIR]

Needs diffusers 0.31 or later (0.35.2 wrote the committed file), torch (1.13.1) and numpy from PyPI:
put them into a virtual environment outside the repository. It writes the same bytes when run again
with the same versions.

Schema. `vectors` holds `z`, `m` and `noise`, [n] each: states, model outputs and normals, all
representable in float32. `cases` is an array:

  name                  [a-z0-9_]+
  config                scheduler_config.json as the scheduler itself saves it
  num_inference_steps, eta, use_clipped_model_output, diffusers_compatible
  timesteps             the list, descending
  prev_timesteps        what each step goes to; -1 after the last
  diffusers             [steps, n] prev_sample of each step at (z, m, noise), by diffusers in its
                        float32 tables; null where diffusers is wrong, see below
  float64               [steps, n] the same in float64 by the formulas written down here

diffusers_compatible false: the previous timestep is the next entry of the list. Where DDIMScheduler
takes another (timestep - T // n), `diffusers` is null, and a case of the same configuration with
diffusers_compatible true follows, which has both. A last timestep of -1, which trailing spacing has
for some n, is left out of every list, and such a case has no compatible one.

`checksums` is an array over spacings and T: `timestep_spacing`, `num_train_timesteps` (T), and for
n = 1 ... T `values` [T], the sum of (i + 1) * timesteps[i] over diffusers' list without -1, and
`sizes` [T], the length of that list with it.
"""

import argparse
import itertools
import json
import math
import pathlib

import diffusers
import numpy as np
import torch
from diffusers.schedulers import scheduling_ddim, scheduling_ddpm

SAMPLERS = (("ddpm", 0.0), ("ddim", 0.0), ("ddim", 0.5))
PREDICTIONS = ("epsilon", "sample", "v_prediction")
SPACINGS = ("leading", "linspace", "trailing")
CLASSES = {"ddpm": diffusers.DDPMScheduler, "ddim": diffusers.DDIMScheduler,
           "ddim_clipped": diffusers.DDIMScheduler}  # with use_clipped_model_output


# ---- The same formulas in float64, independent of diffusers' code ----


def cosine_betas(count):
    def alpha_bar(time):
        return math.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2

    return np.array([min(1 - alpha_bar((i + 1) / count) / alpha_bar(i / count), 0.999)
                     for i in range(count)])


def rescale_zero_terminal_snr(betas):
    root = np.sqrt(np.cumprod(1.0 - betas))
    first, last = root[0], root[-1]
    root = (root - last) * (first / (first - last))
    bar = root**2
    return 1.0 - np.concatenate([bar[:1], bar[1:] / bar[:-1]])


def betas_of(config):
    start, end, count = (
        config["beta_start"], config["beta_end"], config["num_train_timesteps"])
    if config["trained_betas"] is not None:
        betas = np.array(config["trained_betas"], dtype=np.float64)
    else:
        betas = {
            "linear": lambda: np.linspace(start, end, count),
            "scaled_linear": lambda: np.linspace(start**0.5, end**0.5, count) ** 2,
            "squaredcos_cap_v2": lambda: cosine_betas(count),
            "exp": lambda: np.full(count, min(-np.expm1(-12 / count), 0.999)),
            "sigmoid": lambda: 1 / (1 + np.exp(-np.linspace(-6, 6, count))) * (end - start) + start,
        }[config["beta_schedule"]]()
    rescales = config.get("rescale_betas_zero_snr")
    return rescale_zero_terminal_snr(betas) if rescales else betas


def float64_step(config, eta, alpha_prod, timestep, previous, z, m, noise, clipped=False):
    """prev_sample of one step, as the two schedulers' step() says."""
    ddpm = config["_class_name"] == "DDPMScheduler"
    last = 1.0 if ddpm or config["set_alpha_to_one"] else alpha_prod[0]
    a, p = alpha_prod[timestep], alpha_prod[previous] if previous >= 0 else last
    if config["prediction_type"] == "epsilon":
        x0, eps = (z - (1 - a) ** 0.5 * m) / a**0.5, m
    elif config["prediction_type"] == "sample":
        x0, eps = m, (z - a**0.5 * m) / (1 - a) ** 0.5
    else:
        x0, eps = a**0.5 * z - (1 - a) ** 0.5 * m, a**0.5 * m + (1 - a) ** 0.5 * z
    if config["clip_sample"]:
        x0 = np.clip(x0, -config["clip_sample_range"], config["clip_sample_range"])
    if clipped:
        eps = (z - a**0.5 * x0) / (1 - a) ** 0.5
    variance = (1 - p) / (1 - a) * (1 - a / p)
    if not ddpm:
        sigma = eta * variance**0.5
        return p**0.5 * x0 + (1 - p - sigma**2) ** 0.5 * eps + sigma * noise
    beta = 1 - a / p
    mean = p**0.5 * beta / (1 - a) * x0 + (a / p) ** 0.5 * (1 - p) / (1 - a) * z
    if timestep == 0:
        return mean
    small = config["variance_type"] == "fixed_small"
    return mean + (max(variance, 1e-20) if small else beta) ** 0.5 * noise


# ---- diffusers ----


def diffusers_step(scheduler, sampler, eta, timestep, z, m, noise):
    """prev_sample of one step with this noise in place of a random one."""
    module = scheduling_ddpm if sampler == "ddpm" else scheduling_ddim
    module.randn_tensor = lambda *args, **kwargs: torch.from_numpy(noise)[None]
    arguments = {} if sampler == "ddpm" else {
        "eta": eta, "use_clipped_model_output": sampler == "ddim_clipped"}
    result = scheduler.step(torch.from_numpy(m)[None], timestep, torch.from_numpy(z)[None],
                            **arguments)
    return result.prev_sample[0].numpy()


def short(values):
    """As few digits as float32 needs: diffusers' results are no better."""
    return [float(str(np.float32(value))) for value in values]


def make_case(name, sampler, eta, steps, compatible, vectors, config):
    scheduler = CLASSES[sampler](**config)
    scheduler.set_timesteps(steps)
    saved = json.loads(scheduler.to_json_string())
    alpha_prod = np.cumprod(1.0 - betas_of(saved))
    timesteps = [t for t in scheduler.timesteps.tolist() if t >= 0]
    listed = timesteps[1:] + [-1]
    upstream = listed
    if sampler != "ddpm":
        upstream = [max(t - saved["num_train_timesteps"] // steps, -1) for t in timesteps]
    previous = upstream if compatible else listed
    case = {
        "name": name + ("_compatible" if compatible else ""),
        "config": saved,
        "num_inference_steps": steps,
        "eta": eta,
        "use_clipped_model_output": sampler == "ddim_clipped",
        "diffusers_compatible": compatible,
        "timesteps": timesteps,
        "prev_timesteps": previous,
        "diffusers": None,
        "float64": [
            float64_step(saved, eta, alpha_prod, t, p, *vectors,
                         clipped=sampler == "ddim_clipped").tolist()
            for t, p in zip(timesteps, previous)
        ],
    }
    if upstream == previous:
        case["diffusers"] = [
            short(diffusers_step(scheduler, sampler, eta, t, *vectors)) for t in timesteps]
    return case


def configurations():
    """Yields (name, sampler, eta, steps, config)."""
    grid = itertools.product(SAMPLERS + (("ddim_clipped", 0.0), ("ddim_clipped", 0.5)), PREDICTIONS,
                             SPACINGS, (True, False))
    for (sampler, eta), prediction, spacing, clip in grid:
        name = f"{sampler}{'_eta' if eta else ''}_{prediction}_{spacing}{'_clip' if clip else ''}"
        yield name, sampler, eta, 4, {
            "prediction_type": prediction, "timestep_spacing": spacing, "clip_sample": clip}
    for sampler, eta in SAMPLERS:
        name = f"{sampler}{'_eta' if eta else ''}"
        schedules = ["linear", "scaled_linear", "squaredcos_cap_v2"]
        for schedule in schedules + ["sigmoid"] * (sampler == "ddpm"):
            yield f"{name}_{schedule}", sampler, eta, 5, {
                "beta_schedule": schedule, "beta_start": 0.00085, "beta_end": 0.012,
                "clip_sample_range": 2.5, "timestep_spacing": "trailing"}  # both ends of the table
        yield f"{name}_trained_betas", sampler, eta, 6, {
            "num_train_timesteps": 6, "trained_betas": [0.02, 0.05, 0.125, 0.3, 0.25, 0.5]}
        for spacing in SPACINGS:
            yield f"{name}_seven_{spacing}", sampler, eta, 7, {"timestep_spacing": spacing}
            yield f"{name}_one_{spacing}", sampler, eta, 1, {"timestep_spacing": spacing}
            yield f"{name}_zero_snr_{spacing}", sampler, eta, 4, {
                "timestep_spacing": spacing, "rescale_betas_zero_snr": True,
                "prediction_type": "v_prediction", "beta_schedule": "scaled_linear",
                "clip_sample": False}
        yield f"{name}_steps_offset", sampler, eta, 5, {"steps_offset": 1}
        # Halves: 100 / 8 = 12.5, 9 / 6 = 1.5.
        yield f"{name}_halves", sampler, eta, 8, {
            "num_train_timesteps": 100, "timestep_spacing": "trailing"}
        yield f"{name}_linspace_halves", sampler, eta, 7, {
            "num_train_timesteps": 10, "timestep_spacing": "linspace"}
        yield f"{name}_every_timestep", sampler, eta, 12, {
            "num_train_timesteps": 12, "beta_start": 0.01, "beta_end": 0.2}
    for eta in (0.0, 0.5):
        for offset in (0, 1):
            yield f"ddim_final_alpha_{offset}{'_eta' if eta else ''}", "ddim", eta, 5, {
                "set_alpha_to_one": False, "steps_offset": offset}
    for offset in (0, 1):
        yield f"ddpm_fixed_large_{offset}", "ddpm", 0.0, 5, {
            "variance_type": "fixed_large", "steps_offset": offset}
    yield "stable_diffusion", "ddim", 0.0, 10, {
        "beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012,
        "clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1}


def cases(vectors):
    for name, sampler, eta, steps, config in configurations():
        case = make_case(name, sampler, eta, steps, False, vectors, config)
        yield case
        if case["diffusers"] is None:
            yield make_case(name, sampler, eta, steps, True, vectors, config)


def checksums():
    """Every list of timesteps for two T, each as one number."""
    for spacing, count in itertools.product(SPACINGS, (50, 1000)):
        scheduler = diffusers.DDPMScheduler(count, timestep_spacing=spacing)
        values, sizes = [], []
        for steps in range(1, count + 1):
            scheduler.set_timesteps(steps)
            timesteps = scheduler.timesteps.tolist()
            values.append(sum((i + 1) * t for i, t in enumerate(timesteps) if t >= 0))
            sizes.append(len(timesteps))
        yield {"timestep_spacing": spacing, "num_train_timesteps": count, "values": values,
               "sizes": sizes}


def draw_vectors():
    """Enough spread for clipped and unclipped values at every noise level."""
    random = np.random.Generator(np.random.PCG64(20233))
    scales = {"z": 1.5, "m": 1.0, "noise": 1.0}
    return {
        name: (scale * random.standard_normal(3)).astype(np.float32).astype(np.float64)
        for name, scale in scales.items()
    }


def report(all_cases):
    """How far diffusers' float32 tables lead, relative to the largest element of a step."""
    worst = {}
    for case in all_cases:
        for theirs, exact in zip(case["diffusers"] or (), case["float64"]):
            distance = np.abs(np.subtract(theirs, exact)).max() / np.abs(exact).max()
            worst[case["name"]] = max(worst.get(case["name"], 0.0), float(distance))
    for name in sorted(worst, key=worst.get)[-5:]:
        print(f"{name}: diffusers differs from float64 by {worst[name]:.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    path = parser.parse_args().output_dir / "schedulers.json"
    vectors = draw_vectors()
    all_cases = list(cases(tuple(vectors.values())))
    report(all_cases)
    content = {"vectors": {name: vector.tolist() for name, vector in vectors.items()},
               "cases": all_cases, "checksums": list(checksums())}
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for start in ('{"name"', '{"timestep_spacing"'):
        text = text.replace(start, "\n" + start)
    path.write_text(text + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size} bytes, {len(all_cases)} cases")


if __name__ == "__main__":
    main()
