#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes diffusion.json: whole sampling runs by PyTorch and diffusers, and in float64.

Usage: tests/data/golden/make_diffusion_golden.py [--output_dir DIR]

Needs what make_scheduler_golden.py beside it needs, and takes from it the float64 reverse step and
the call of diffusers' step with given noise. The schema is in README.md beside this file. It writes
the same bytes when run again with the same versions.
"""

import argparse
import itertools
import json
import math
import pathlib

import numpy as np
import torch

from make_scheduler_golden import (CLASSES, PREDICTIONS, SAMPLERS, SPACINGS, betas_of,
                                   diffusers_step, float64_step, short)
from torch_denoisers import EPSILON, Denoiser

CLASS_COUNT, CONDITION_DIM = 3, 2
MAX_STEPS = 20
# DDIMScheduler goes to timestep - T // n: the next entry of its list for every n with leading and
# for n that divide T with trailing; never with linspace (diffusers_compatible).
STEPS = {"leading": 13, "linspace": 11, "trailing": 10}

# name, kind, activation, state_dim, hidden_dim, num_blocks, frequencies, condition
NETWORKS = (
    ("residual_plain", "residual_mlp", "silu", 2, 5, 2, 6, "none"),
    ("residual_class", "residual_mlp", "gelu", 3, 4, 3, 4, "class"),
    ("residual_vector", "residual_mlp", "tanh", 1, 6, 1, 8, "vector"),
    ("adaln_plain", "adaln_mlp", "gelu_tanh", 1, 5, 3, 6, "none"),
    ("adaln_class", "adaln_mlp", "silu", 3, 4, 2, 4, "class"),
    ("adaln_vector", "adaln_mlp", "relu", 2, 6, 1, 8, "vector"),
)


# ---- The same formulas in float64, independent of PyTorch's modules ----


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def silu(a):
    return a * sigmoid(a)


ACTIVATIONS = {
    "silu": silu,
    "gelu": lambda a: a * 0.5 * np.vectorize(math.erfc)(-a / math.sqrt(2)),
    "tanh": np.tanh,
    "relu": lambda a: np.maximum(a, 0),
    "gelu_tanh": lambda a: 0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))),
}


class Float64Denoiser:
    def __init__(self, network):
        self.network = network
        self.tensors = {
            name: np.array(values, np.float32).astype(np.float64)
            for name, values in network["tensors"].items()}
        self.act = ACTIVATIONS[network["activation"]]

    def linear(self, name, x):
        return self.tensors[name + ".weight"] @ x + self.tensors[name + ".bias"]

    @staticmethod
    def norm(h):
        centred = h - h.mean()
        return centred / np.sqrt((centred**2).mean() + EPSILON)

    def embedding(self, t, label, vector):
        half = self.tensors["time_embed.mlp.0.weight"].shape[1] // 2
        args = t * np.exp(-math.log(10000) * np.arange(half) / half)
        y = self.linear("time_embed.mlp.0", np.concatenate([np.cos(args), np.sin(args)]))
        y = self.linear("time_embed.mlp.2", silu(y))
        if "class_embed.weight" in self.tensors:
            y = y + self.tensors["class_embed.weight"][label]
        if "cond_embed.weight" in self.tensors:
            y = y + self.linear("cond_embed", vector)
        return y

    def residual_mlp(self, h, y):
        for i in range(self.network["num_blocks"]):
            block = f"res_blocks.{i}."
            mu = self.linear(block + "modulation", y)
            h = h + self.act(self.linear(block + "linear", h) + mu)
        return h

    def adaln_mlp(self, h, y):
        for i in range(self.network["num_blocks"]):
            block = f"res_blocks.{i}."
            shift, scale, gate = np.split(self.linear(block + "adaLN_modulation.1", y), 3)
            u = self.norm(h) * self.tensors[block + "in_ln.weight"]
            u = (u + self.tensors[block + "in_ln.bias"]) * (1 + scale) + shift
            h = h + gate * self.linear(block + "mlp.2", self.act(self.linear(block + "mlp.0", u)))
        shift, scale = np.split(self.linear("final_layer.adaLN_modulation.1", y), 2)
        return self.norm(h) * (1 + scale) + shift

    def __call__(self, z, t, label, vector):
        y = silu(self.embedding(t, label, vector))
        blocks = getattr(self, self.network["kind"])
        return self.linear("final_layer.linear", blocks(self.linear("input_proj", z), y))


# ---- Networks and runs ----


def draw(random, scale, *shape):
    return (scale * random.standard_normal(shape)).astype(np.float32)


def make_network(index, row):
    """One network with its inputs, and the module."""
    name, kind, activation, dim, width, blocks, frequencies, condition = row
    random = np.random.Generator(np.random.PCG64(7000 + index))
    module = Denoiser(kind, activation, dim, width, blocks, frequencies, condition, CLASS_COUNT,
                      CONDITION_DIM)
    for key, parameter in module.named_parameters():
        # Layer norms multiply by about 1; all else is large enough to matter everywhere.
        value = draw(random, 0.5, *parameter.shape) + ("in_ln.weight" in key)
        parameter.data = torch.from_numpy(value.astype(np.float32))
    network = {
        "name": name, "kind": kind, "activation": activation, "state_dim": dim,
        "hidden_dim": width, "num_blocks": blocks, "condition": condition,
        "label": 2 if condition == "class" else 0,
        "vector": short(draw(random, 1.0, CONDITION_DIM)) if condition == "vector" else [],
        "initial_noise": short(draw(random, 1.0, dim)),
        "step_noise": [short(row) for row in draw(random, 1.0, MAX_STEPS, dim)],
        "tensors": {key: nested_short(value.numpy()) for key, value in module.state_dict().items()},
    }
    return network, module


def nested_short(array):
    return short(array) if array.ndim == 1 else [nested_short(row) for row in array]


def previous_timesteps(config, sampler, steps, compatible, timesteps):
    """What each step goes to, and a check that diffusers does so too."""
    listed = timesteps[1:] + [-1]
    upstream = listed
    if sampler == "ddim":
        upstream = [max(t - config["num_train_timesteps"] // steps, -1) for t in timesteps]
    previous = upstream if compatible else listed
    assert previous == upstream, (config, steps)
    return previous


def run(step, denoise, network, timesteps, dtype):
    """z_0 .. z_n. `step(i, z, m, noise)` is reverse step i."""
    z = np.array(network["initial_noise"], np.float32).astype(dtype)
    noise = np.array(network["step_noise"], np.float32).astype(dtype)
    vector = np.array(network["vector"], np.float32).astype(dtype)
    states = [z]
    for i, t in enumerate(timesteps):
        z = step(i, z, denoise(z, t, network["label"], vector), noise[i])
        assert z.dtype == dtype
        states.append(z)
    return states


def make_case(name, network, module, sampler, eta, steps, compatible, config):
    scheduler = CLASSES[sampler](**config)
    scheduler.set_timesteps(steps)
    saved = json.loads(scheduler.to_json_string())
    timesteps = scheduler.timesteps.tolist()
    assert min(timesteps) >= 0
    previous = previous_timesteps(saved, sampler, steps, compatible, timesteps)
    alpha_prod = np.cumprod(1.0 - betas_of(saved))

    def torch_denoise(z, t, label, vector):
        with torch.no_grad():
            return module(torch.from_numpy(z), t, label, torch.from_numpy(vector)).numpy()

    def torch_step(i, z, m, noise):
        return diffusers_step(scheduler, sampler, eta, timesteps[i], z, m, noise)

    def exact_step(i, z, m, noise):
        return float64_step(saved, eta, alpha_prod, timesteps[i], previous[i], z, m, noise)

    theirs = run(torch_step, torch_denoise, network, timesteps, np.float32)
    exact = run(exact_step, Float64Denoiser(network), network, timesteps, np.float64)
    return {
        "name": name, "network": network["name"], "config": saved, "num_inference_steps": steps,
        "eta": eta, "diffusers_compatible": compatible,
        "diffusers": [short(z) for z in theirs], "float64": [z.tolist() for z in exact],
    }


def configurations():
    """Yields (name, sampler, eta, steps, diffusers_compatible, config)."""
    for (sampler, eta), prediction, spacing, clip in itertools.product(
            SAMPLERS, PREDICTIONS, SPACINGS, (True, False)):
        name = f"{sampler}{'_eta' if eta else ''}_{prediction}_{spacing}{'_clip' if clip else ''}"
        compatible = sampler == "ddim" and spacing == "linspace"
        yield name, sampler, eta, STEPS[spacing], compatible, {
            "prediction_type": prediction, "timestep_spacing": spacing, "clip_sample": clip}
    for spacing in SPACINGS:
        yield f"ddpm_fixed_large_{spacing}", "ddpm", 0.0, MAX_STEPS, False, {
            "timestep_spacing": spacing, "variance_type": "fixed_large"}
    for sampler, eta in SAMPLERS:
        yield f"{sampler}{'_eta' if eta else ''}_cosine", sampler, eta, STEPS["trailing"], False, {
            "beta_schedule": "squaredcos_cap_v2", "timestep_spacing": "trailing",
            "clip_sample_range": 2.5}


def cases(networks):
    """Every configuration with a network of each kind, the networks of a kind in turn."""
    for i, (name, sampler, eta, steps, compatible, config) in enumerate(configurations()):
        for kind in ("residual_mlp", "adaln_mlp"):
            choice = [pair for pair in networks if pair[0]["kind"] == kind]
            # i // 6 and i // 18: neither sampler nor prediction stays with one network.
            network, module = choice[(i + i // 6 + i // 18) % len(choice)]
            yield make_case(f"{name}_{network['name']}", network, module, sampler, eta, steps,
                            compatible, config)


def report(all_cases):
    worst = {}
    for case in all_cases:
        for theirs, exact in zip(case["diffusers"], case["float64"]):
            distance = np.abs(np.subtract(theirs, exact)).max() / np.abs(exact).max()
            worst[case["name"]] = max(worst.get(case["name"], 0.0), float(distance))
    for name in sorted(worst, key=worst.get)[-8:]:
        print(f"{name}: diffusers differs from float64 by {worst[name]:.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    path = parser.parse_args().output_dir / "diffusion.json"
    torch.set_num_threads(1)
    networks = [make_network(i, row) for i, row in enumerate(NETWORKS)]
    all_cases = list(cases(networks))
    report(all_cases)
    content = {"networks": [network for network, _ in networks], "cases": all_cases}
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    text = text.replace('{"name"', '\n{"name"')
    path.write_text(text + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size} bytes, {len(all_cases)} cases")


if __name__ == "__main__":
    main()
