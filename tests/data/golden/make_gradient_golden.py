#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes gradients.json: gradients of whole sampling runs of the demo models, by PyTorch autograd.

Usage: tests/data/golden/make_gradient_golden.py [--output_dir DIR]

PyTorch 1.13 or later, in float64 (`apt-get install python3-torch`), and no diffusers: the reverse
steps are DDPM's and DDIM's, written down below. The denoisers are digits-ddpm, 1000 steps, and
digits-class, 100 steps, x0 clipped to a range that many elements reach. A run gives the states,
which are rounded to float32; the gradient is that of these rounded states: each step goes back at
its own, from the cotangent of the outputs through the decoder. It writes the same bytes when run
again with the same versions.
"""

import argparse
import json
import pathlib
import struct

import torch

from torch_denoisers import Denoiser

MODELS = pathlib.Path(__file__).resolve().parents[3] / "deploy/models/repository"
STEP_NOISE_ROWS = 25  # gradients by step noise that the file has, at equal distances


def read_tensors(path):
    """The float32 tensors of a safetensors file, in float64."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + at for at in entry["data_offsets"])
        assert entry["dtype"] == "F32"
        flat = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32)
        tensors[name] = flat.reshape(entry["shape"]).double()
    return tensors


def read_model(name):
    config = json.loads((MODELS / name / "1/config.json").read_text())
    tensors = read_tensors(MODELS / name / "1/model.safetensors")
    classes = config.get("num_classes", 0)
    denoiser = Denoiser(config["denoiser"], config["activation"], config["state_dim"],
                        config["hidden_dim"], config["num_blocks"], config["time_embedding_dim"],
                        "class" if classes else "none", class_count=classes)
    decoder = {k[len("decoder."):]: v for k, v in tensors.items() if k.startswith("decoder.")}
    denoiser.load_state_dict({k: v for k, v in tensors.items() if not k.startswith("decoder.")})
    return denoiser.double(), decoder


def decode(decoder, z):
    h = torch.nn.functional.silu(decoder["0.weight"] @ z + decoder["0.bias"])
    return decoder["1.weight"] @ h + decoder["1.bias"]


class ReverseProcess:
    """Steps by timestep, `leading` spacing, epsilon prediction, linear betas 1e-4 .. 0.02."""

    def __init__(self, kind, steps, clip_range):
        betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
        self.alphas_cumprod = torch.cumprod(1 - betas, 0)
        self.kind, self.clip_range, self.stride = kind, clip_range, 1000 // steps
        self.timesteps = [i * self.stride for i in reversed(range(steps))]

    def step(self, denoiser, label, t, z, noise):
        """The next state, and the share of x0 that is clipped."""
        one = torch.tensor(1.0, dtype=torch.float64)
        a = self.alphas_cumprod[t]
        before = self.alphas_cumprod[t - self.stride] if t >= self.stride else one
        epsilon = denoiser(z, t, label, None)
        x0 = (z - (1 - a).sqrt() * epsilon) / a.sqrt()
        clipped = x0.clamp(-self.clip_range, self.clip_range)
        share = (clipped != x0).double().mean().item()
        if self.kind == "DDIM":
            return before.sqrt() * clipped + (1 - before).sqrt() * epsilon, share
        alpha = a / before
        mean = (before.sqrt() * (1 - alpha) * clipped + alpha.sqrt() * (1 - before) * z) / (1 - a)
        variance = ((1 - before) / (1 - a) * (1 - alpha)).clamp(min=1e-20)
        return mean + (variance.sqrt() * noise if t > 0 else 0), share

    def sigma(self, t):
        if self.kind == "DDIM" or t == 0:
            return 0.0
        a, before = self.alphas_cumprod[t], self.alphas_cumprod[t - self.stride]
        return ((1 - before) / (1 - a) * (1 - a / before)).clamp(min=1e-20).sqrt().item()


def short(values):
    """Numbers that are float32's as float32's, others with 12 digits."""
    return [float(f"{x:.12g}") for x in values]


def floats(values):
    return [float(f"{x:.9g}") for x in values]


def make_run(model, kind, steps, clip_range, label, seed):
    torch.manual_seed(seed)
    denoiser, decoder = read_model(model)
    process = ReverseProcess(kind, steps, clip_range)
    z = torch.randn(16).double()
    states, shares = [z], []
    with torch.no_grad():
        for t in process.timesteps:
            z, share = process.step(denoiser, label, t, states[-1], torch.randn(16).double())
            states.append(z.float().double())
            shares.append(share)
    of_outputs = torch.randn(64).double()
    last = states[-1].clone().requires_grad_()
    (g,) = torch.autograd.grad(of_outputs @ decode(decoder, last), last)
    of_last, by_noise = g, []
    for i in reversed(range(steps)):
        t = process.timesteps[i]
        by_noise.append(process.sigma(t) * g)
        at = states[i].clone().requires_grad_()
        step, _ = process.step(denoiser, label, t, at, torch.zeros(16, dtype=torch.float64))
        (g,) = torch.autograd.grad(g @ step, at)
    by_noise.reverse()
    share = sum(shares) / len(shares)
    assert share > 0.05, share
    print(f"{model} {kind} {steps}: {100 * share:.1f} % of x0 clipped, |g_0| {g.abs().max():.3g}")
    every = steps // STEP_NOISE_ROWS
    return {
        "model": model, "scheduler": f"{kind}Scheduler", "steps": steps, "clip_range": clip_range,
        "label": label, "clipped_share": float(f"{share:.4g}"),
        "states": [floats(state.tolist()) for state in states],
        "of_outputs": floats(of_outputs.tolist()),
        "by_final_state": short(of_last.tolist()),
        "by_initial_state": short(g.tolist()),
        "step_noise_every": every,
        "by_step_noise": [short(row.tolist()) for row in by_noise[::every]],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("--output_dir", type=pathlib.Path, default=here)
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    runs = [make_run("digits-ddpm", "DDPM", 1000, 0.75, 0, 1),
            make_run("digits-class", "DDIM", 100, 0.75, 3, 2)]
    text = json.dumps({"runs": runs}, separators=(",", ":"))
    (arguments.output_dir / "gradients.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
