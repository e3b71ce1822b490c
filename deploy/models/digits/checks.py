# SPDX-License-Identifier: Apache-2.0
"""Measures an exported model from its files alone: what the card says and the targets judge."""

import dataclasses
import hashlib
import pathlib

import numpy as np
from sklearn.linear_model import LogisticRegression
import torch

import data
import forward
import networks
import newton
import safetensors_file

INTERVALS = (1, 16, 32)
MAX_WARM_SWEEPS = 6
SAMPLES_AT_A_TIME = 50    # bounds the memory of the Jacobians


@dataclasses.dataclass(frozen=True)
class NewtonCounts:
    """K over the held-out digits for one shooting interval."""

    interval: int
    unknowns: int             # P, the number of intervals
    constant: np.ndarray      # K from z_0 everywhere, [n]
    affine: list              # K from the affine guess after 0, 1, ... warm sweeps, each [n]


@dataclasses.dataclass(frozen=True)
class Results:
    accuracy: float
    train_accuracy: float
    torch_agreement: float        # share of held-out digits labelled alike by PyTorch
    bypass_accuracy: float        # with z_0 straight into the output layer
    movement: np.ndarray          # |z_L - z_0| / |z_0|, Euclid, [n]
    switching_share: float        # units active on some held-out digits but not on nearly all
    probe_accuracy: float         # logistic regression fitted anew on z_0
    pixel_probe_accuracy: float   # logistic regression on the pixels
    smallest_margin: float        # least, between the two largest outputs of a held-out digit
    rounding: np.ndarray          # largest relative state error of float32 against float64, [n]
    newton: list
    weights_sha256: str
    file_bytes: dict


def newton_counts(model, trajectory, calibration, interval) -> NewtonCounts:
    """K of each sample of trajectory [L + 1, n, D]; calibration: that of training inputs."""
    system = newton.ShootingSystem(model, interval)
    fit = newton.fit_affine_guess(system, calibration)
    constant, affine = [], [[] for _ in range(MAX_WARM_SWEEPS + 1)]
    for begin in range(0, trajectory.shape[1], SAMPLES_AT_A_TIME):
        part = trajectory[:, begin:begin + SAMPLES_AT_A_TIME]
        guess = newton.constant_guess(system, part[0])
        constant.append(newton.count_iterations(system, guess, part))
        guess = newton.affine_guess(fit, part[0])
        for counts in affine:
            counts.append(newton.count_iterations(system, guess, part))
            guess = newton.picard_sweep(system, part[0], guess)
    return NewtonCounts(interval, len(system.ends), np.concatenate(constant),
                        [np.concatenate(counts) for counts in affine])


def _accuracy(outputs, labels):
    return float((outputs.argmax(axis=1) == labels).mean())


def _switching_share(model, trajectory):
    """Share of units whose pre-activation is positive on 2 to 98 % of the samples."""
    product = np.matmul(trajectory[:-1], model.tensors["layers.weight"].transpose(0, 2, 1))
    share = (product + model.tensors["layers.bias"][:, None, :] > 0).mean(axis=1)
    return float(((share >= 0.02) & (share <= 0.98)).mean())


def _rounding(model, inputs, trajectory):
    """Float32 states against the same weights in float64."""
    tensors = {name: value.astype(np.float64) for name, value in model.tensors.items()}
    exact = forward.Model(model.config, tensors).trajectory(inputs.astype(np.float64))
    return newton.relative_errors(trajectory.astype(np.float64), exact)


def _torch_labels(spec, model, inputs):
    tensors = {name: torch.from_numpy(value.copy()) for name, value in model.tensors.items()}
    with torch.no_grad():
        return networks.forward(spec, tensors, torch.from_numpy(inputs)).numpy().argmax(axis=1)


def _probe(train, train_labels, held_out, held_out_labels):
    probe = LogisticRegression(max_iter=5000).fit(train, train_labels)
    return float(probe.score(held_out, held_out_labels))


def _files(directory):
    names = "config.json", "model.safetensors", "calibration.safetensors"
    return {name: (directory / name).stat().st_size for name in names}


def run(spec: networks.Spec, directory: pathlib.Path, digits: data.Digits) -> Results:
    """Reloads the files in directory and measures them."""
    model = forward.load(directory)
    inputs, labels = digits.held_out_inputs, digits.held_out_labels
    trajectory = model.trajectory(inputs)
    outputs = model.decode(trajectory[-1])
    first, last = trajectory[0], trajectory[-1]
    calibration_inputs = safetensors_file.read(directory / "calibration.safetensors")["inputs"]
    calibration = model.trajectory(calibration_inputs)
    train_first = model.encode(digits.train_inputs)
    torch_labels = _torch_labels(spec, model, inputs)
    ordered = np.sort(outputs, axis=1)
    weights = (directory / "model.safetensors").read_bytes()
    return Results(
        accuracy=_accuracy(outputs, labels),
        train_accuracy=_accuracy(model.decode(model.trajectory(digits.train_inputs)[-1]),
                                 digits.train_labels),
        torch_agreement=float((torch_labels == outputs.argmax(axis=1)).mean()),
        bypass_accuracy=_accuracy(model.decode(first), labels),
        movement=np.linalg.norm(last - first, axis=1) / np.linalg.norm(first, axis=1),
        switching_share=_switching_share(model, trajectory),
        probe_accuracy=_probe(train_first, digits.train_labels, first, labels),
        pixel_probe_accuracy=_probe(digits.train_inputs, digits.train_labels, inputs, labels),
        smallest_margin=float((ordered[:, -1] - ordered[:, -2]).min()),
        rounding=_rounding(model, inputs, trajectory),
        newton=[newton_counts(model, trajectory, calibration, c) for c in INTERVALS],
        weights_sha256=hashlib.sha256(weights).hexdigest(),
        file_bytes=_files(directory))


def targets(spec: networks.Spec, results: Results) -> list:
    """[(what, figure, met)]: what the project asks of this model."""
    least = 0.95 if spec.model_type == "resnet" else 0.90
    rows = [(f"held-out accuracy >= {least:.0%}", f"{results.accuracy:.2%}",
             results.accuracy >= least),
            ("same labels by PyTorch and NumPy float32", f"{results.torch_agreement:.2%}",
             results.torch_agreement == 1.0)]
    if spec.model_type != "resnet":
        return rows
    movement = float(results.movement.mean())
    constant = max(float(np.median(c.constant)) for c in results.newton)
    affine = max(min(float(np.median(a)) for a in c.affine) for c in results.newton)
    return rows + [
        ("accuracy with the residual stack bypassed <= 50 %", f"{results.bypass_accuracy:.2%}",
         results.bypass_accuracy <= 0.5),
        ("mean of |z_L - z_0| / |z_0| >= 0.5", f"{movement:.2f}", movement >= 0.5),
        ("median Newton K <= 6 from the constant guess, every C", f"{constant:g}", constant <= 6),
        ("median Newton K <= 4 from the affine guess with up to six sweeps, every C", f"{affine:g}",
         affine <= 4),
    ]
