#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes parameter_gradients.json: gradients by all tensors of the runs of gradients.json.

Usage: tests/data/golden/make_parameter_golden.py [--output_dir DIR]

PyTorch 1.13 or later, in float64. Each step goes back at its own rounded states, as in
make_gradient_golden.py; what it gives to the weights is summed over the steps. Of every tensor the
file has the norm and the products with three cosines, cos(k (i + 1)) of the element i, k = 0.1, 0.7
and 1.9.
"""

import argparse
import json
import pathlib

import torch

from make_gradient_golden import ReverseProcess, decode, read_model, short

WAVES = (0.1, 0.7, 1.9)


def summary(gradient):
    flat = gradient.flatten()
    places = torch.arange(1, len(flat) + 1, dtype=torch.float64)
    return short([flat.norm().item()] + [(flat @ torch.cos(k * places)).item() for k in WAVES])


def by_parameters(run):
    denoiser, decoder = read_model(run["model"])
    process = ReverseProcess(run["scheduler"][:4], run["steps"], run["clip_range"])
    states = [torch.tensor(state, dtype=torch.float32).double() for state in run["states"]]
    names, tensors = zip(*denoiser.named_parameters())
    of_decoder = {name: tensor.clone().requires_grad_() for name, tensor in decoder.items()}
    last = states[-1].clone().requires_grad_()
    seed = torch.tensor(run["of_outputs"], dtype=torch.float64) @ decode(of_decoder, last)
    g, *by_decoder = torch.autograd.grad(seed, [last, *of_decoder.values()])
    sums = [torch.zeros_like(tensor) for tensor in tensors]
    for i in reversed(range(run["steps"])):
        at = states[i].clone().requires_grad_()
        step, _ = process.step(denoiser, run["label"], process.timesteps[i], at,
                               torch.zeros(16, dtype=torch.float64))
        g_before, *found = torch.autograd.grad(g @ step, [at, *tensors])
        sums = [a + b for a, b in zip(sums, found)]
        g = g_before
    found = dict(zip(names, sums))
    found.update((f"decoder.{name}", by) for name, by in zip(of_decoder, by_decoder))
    return {name: summary(by) for name, by in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("--output_dir", type=pathlib.Path, default=here)
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    golden = json.loads((here / "gradients.json").read_text())
    runs = [{"model": run["model"], "by_parameters": by_parameters(run)} for run in golden["runs"]]
    text = json.dumps({"waves": WAVES, "runs": runs}, indent=1)
    (arguments.output_dir / "parameter_gradients.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
