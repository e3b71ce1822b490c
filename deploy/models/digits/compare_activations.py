#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains digits-resnet with other activations and gains and tabulates accuracy and Newton K."""

import argparse
import dataclasses
import pathlib
import tempfile

import numpy as np
import torch

import checks
import data
import forward
import networks
import newton
import training

GAINS = (0.1, 0.5)    # factors of the starting layer weights
TRAINING_STEPS = 300       # enough to tell them apart
SAMPLES = 50               # held-out digits that K is counted on

_HEADER = """# Activations for digits-resnet

Written by `deploy/models/digits/compare_activations.py`; do not edit. The training of digits-resnet
with other activations and gains of the starting weights, cut to {steps} steps. K: median (most)
over {samples} held-out digits of the Newton iterations from z_0 everywhere, by shooting interval C.

| activation | gain | held-out accuracy | {intervals} |
|---|---|---|{rules}"""


def parse_arguments():
    cards = pathlib.Path(__file__).resolve().parent.parent / "cards"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=cards / "activations.md")
    return parser.parse_args()


def measure(spec, digits):
    """Accuracy, and K [SAMPLES] by interval."""
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory)
        training.export(training.train(spec, digits), digits, path)
        model = forward.load(path)
    trajectory = model.trajectory(digits.held_out_inputs)
    labels = model.decode(trajectory[-1]).argmax(axis=1)
    part, counts = trajectory[:, :SAMPLES], []
    for interval in checks.INTERVALS:
        system = newton.ShootingSystem(model, interval)
        guess = newton.constant_guess(system, part[0])
        counts.append(newton.count_iterations(system, guess, part))
    return float((labels == digits.held_out_labels).mean()), counts


def row(spec, digits):
    """One line of the table; a training that diverged says so."""
    try:
        accuracy, counts = measure(spec, digits)
    except ValueError as error:    # weights that are not finite
        return f"| {spec.activation} | {spec.gain:g} | {error} |" + " |" * len(checks.INTERVALS)
    cells = [f"{np.median(k):g} ({k.max()})" for k in counts]
    return f"| {spec.activation} | {spec.gain:g} | {accuracy:.2%} | " + " | ".join(cells) + " |"


def main():
    arguments = parse_arguments()
    torch.set_num_threads(1)
    digits = data.load()
    intervals = " | ".join(f"K, C = {c}" for c in checks.INTERVALS)
    lines = [_HEADER.format(samples=SAMPLES, steps=TRAINING_STEPS, intervals=intervals,
                            rules="---|" * len(checks.INTERVALS))]
    for activation in networks.ACTIVATIONS:
        for gain in GAINS:
            spec = dataclasses.replace(networks.RESNET, activation=activation, gain=gain,
                                       training_steps=TRAINING_STEPS)
            lines.append(row(spec, digits))
            print(lines[-1], flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
