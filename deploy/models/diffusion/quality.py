#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Judges samples of a diffusion model, wherever they come from: the targets, met or missed.

Needs only NumPy and the figures in deploy/models/data/. Exits 1 if a target is missed.
"""

import argparse
import dataclasses
import pathlib
import sys

import numpy as np

from shared import MODELS, safetensors_file
import swissroll

DIGITS_DATA, SWISSROLL_DATA = "digits_quality.safetensors", "swissroll_quality.safetensors"
MODEL_NAMES = ("digits-class", "digits-ddpm", "digits-ddpm-onnx", "digits-pixels",
               "swissroll-ddpm")
WITH_CLASSES = ("digits-class", "digits-pixels")
MIN_SAMPLES = 128            # with fewer, shares and covariances say nothing

CONFIDENCE = 0.9
COPY_DISTANCE = 1e-3
HALVINGS, HALVING_SEED = 20, 6
FRECHET_SAMPLES = 256        # samples compared at a time: limits shall not depend on their number
CURVE_POINTS = 5001          # points of the noiseless roll, for distances to it
NEAR_CURVE = 3.5             # in standard deviations of the roll's noise
CURVE_PARTS = 10             # equal parts of the angle


@dataclasses.dataclass(frozen=True)
class Limits:
    """What is asked. The checks after training ask for more, other seeds being as good or worse."""

    confident_share: float = 0.7       # at least
    class_share: float = 0.04          # at least, of the rarest digit
    class_accuracy: float = 0.85       # at least
    frechet_ratio: float = 2.0         # at most
    neighbour_ratio: float = 0.5       # at least
    near_share: float = 0.95           # at least
    part_share: float = 0.04           # at least, of the emptiest part of the roll
    twin_share: float = 0.02           # at most


@dataclasses.dataclass(frozen=True)
class Figure:
    """One line of the table; met is None where nothing is asked."""

    what: str
    value: str
    met: bool = None

    def __post_init__(self):
        if self.met is not None:    # NumPy's own False is not False
            object.__setattr__(self, "met", bool(self.met))


def distances(a, b):
    """Euclidean, [len(a), len(b)], in float64."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1) - 2 * a @ b.T
    return np.sqrt(np.maximum(squares, 0))


def _root(matrix):
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


def frechet_distance(a, b):
    """|mean a - mean b|^2 + tr(A + B - 2 (A B)^(1/2)), A and B the covariances; Heusel 2017."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    cov_a, cov_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root_a = _root(cov_a)
    cross = np.linalg.eigvalsh(root_a @ cov_b @ root_a)
    means = ((a.mean(axis=0) - b.mean(axis=0))**2).sum()
    return means + np.trace(cov_a) + np.trace(cov_b) - 2 * np.sqrt(np.maximum(cross, 0)).sum()


def frechet_distances(samples, real, most):
    """(samples to real, real to real), means over random halvings of the real points.

    Each halving gives halves A and B. Some of the samples against B, and as many points of A
    against B: a perfect model scores the same on both. `most` of them, or fewer if there are not
    so many samples or points of A.
    """
    generator = np.random.default_rng(HALVING_SEED)
    half = len(real) // 2
    count = min(len(samples), half, most)
    of_samples, of_real = [], []
    for _ in range(HALVINGS):
        order = generator.permutation(len(real))
        a, b = real[order[:half]], real[order[half:]]
        chosen = samples[generator.permutation(len(samples))[:count]]
        of_samples.append(frechet_distance(chosen, b))
        of_real.append(frechet_distance(a[:count], b))
    return float(np.mean(of_samples)), float(np.mean(of_real))


def _frechet_figures(limits, samples, real, of_what):
    ours, halves = frechet_distances(samples, real, FRECHET_SAMPLES)
    all_ours, all_halves = frechet_distances(samples, real, len(real))
    return [Figure(f"Frechet distance of {of_what} <= {limits.frechet_ratio:g} times that of real "
                   "halves", f"{ours / halves:.2f}", ours <= limits.frechet_ratio * halves),
            Figure("the two distances", f"{ours:.3f}, {halves:.3f}"),
            Figure(f"the ratio with all samples, not {FRECHET_SAMPLES} at a time (stricter the "
                   "more they are)", f"{all_ours / all_halves:.2f}")]


def _silu(a):
    return a * 0.5 * (1 + np.tanh(0.5 * a))


def two_layers(tensors, name, values):
    """Linear, SiLU, linear."""
    hidden = _silu(values @ tensors[f"{name}.0.weight"].T + tensors[f"{name}.0.bias"])
    return hidden @ tensors[f"{name}.1.weight"].T + tensors[f"{name}.1.bias"]


def probabilities(tensors, pixels):
    """[n, 10] of the classifier; pixels are clipped to [0, 1], as they are for drawing."""
    scores = two_layers(tensors, "classifier", np.clip(pixels, 0, 1))
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def _class_figures(limits, labels, asked):
    if asked is not None:
        accuracy = float((labels == asked).mean())
        return [Figure(f"samples of the digit asked for >= {limits.class_accuracy:.0%}",
                       f"{accuracy:.1%}", accuracy >= limits.class_accuracy)]
    shares = np.bincount(labels, minlength=10) / len(labels)
    return [Figure(f"share of the rarest digit >= {limits.class_share:.0%}",
                   f"{shares.min():.1%} (digit {shares.argmin()})",
                   shares.min() >= limits.class_share),
            Figure("share of the commonest digit", f"{shares.max():.1%} (digit {shares.argmax()})")]


def _copy_figures(limits, latents, train, held_out):
    nearest = distances(latents, train).min(axis=1)
    ratio = float(np.median(nearest) / np.median(distances(held_out, train).min(axis=1)))
    return [Figure(f"least distance of a latent to a training point > {COPY_DISTANCE:g}",
                   f"{nearest.min():.3f}", nearest.min() > COPY_DISTANCE),
            Figure(f"median of that distance >= {limits.neighbour_ratio:g} times that of held-out "
                   "digits", f"{ratio:.2f}", ratio >= limits.neighbour_ratio)]


def judge_digits(limits, tensors, pixels, asked=None):
    """Figures of pixels [n, 64]; asked: the digits asked for, [n], if they were."""
    found = probabilities(tensors, pixels)
    confident = float((found.max(axis=1) >= CONFIDENCE).mean())
    latents = two_layers(tensors, "encoder", np.clip(pixels, 0, 1))
    train, held_out = tensors["latents.train"], tensors["latents.held_out"]
    return ([Figure(f"samples that the classifier is sure of (p >= {CONFIDENCE:g}) >= "
                    f"{limits.confident_share:.0%}", f"{confident:.1%}",
                    confident >= limits.confident_share)]
            + _class_figures(limits, found.argmax(axis=1), asked)
            + _frechet_figures(limits, latents, np.concatenate([train, held_out]), "latents")
            + _copy_figures(limits, latents, train, held_out))


def fourier_features(tensors, points):
    """cos(W x + b): moments of points alone know nothing of a spiral."""
    return np.cos(points @ tensors["features.weight"].T + tensors["features.bias"])


def judge_swissroll(limits, tensors, points):
    """Figures of points [n, 2]."""
    angles = np.linspace(swissroll.FIRST_ANGLE, swissroll.LAST_ANGLE, CURVE_POINTS)
    to_curve = distances(points, swissroll.curve(angles))
    near = float((to_curve.min(axis=1) <= NEAR_CURVE * swissroll.STANDARDISED_NOISE).mean())
    parts = to_curve.argmin(axis=1) * CURVE_PARTS // CURVE_POINTS
    shares = np.bincount(parts, minlength=CURVE_PARTS) / len(points)
    apart = distances(points, points)
    np.fill_diagonal(apart, np.inf)
    twins = float((apart.min(axis=1) <= COPY_DISTANCE).mean())
    rms = np.sqrt((to_curve.min(axis=1)**2).mean()) / swissroll.STANDARDISED_NOISE
    features = [fourier_features(tensors, x) for x in (points, tensors["points"])]
    return [Figure(f"samples within {NEAR_CURVE:g} standard deviations of the noiseless roll >= "
                   f"{limits.near_share:.0%}", f"{near:.1%}", near >= limits.near_share),
            Figure("root mean square distance to it, in standard deviations", f"{rms:.2f}"),
            Figure(f"share of the emptiest tenth of the roll >= {limits.part_share:.0%}",
                   f"{shares.min():.1%}", shares.min() >= limits.part_share),
            *_frechet_figures(limits, *features, "random Fourier features"),
            Figure(f"samples within {COPY_DISTANCE:g} of another <= {limits.twin_share:.0%}",
                   f"{twins:.2%}", twins <= limits.twin_share)]


def judge(model, samples, labels=None, data_dir=MODELS / "data", limits=Limits()):
    """Figures of samples [n, output_dim] of the named model."""
    name, width = (SWISSROLL_DATA, 2) if model == "swissroll-ddpm" else (DIGITS_DATA, 64)
    if samples.ndim != 2 or samples.shape[1] != width or len(samples) < MIN_SAMPLES:
        raise ValueError(f"samples: expected [at least {MIN_SAMPLES}, {width}], "
                         f"got {list(samples.shape)}")
    if not np.isfinite(samples).all():
        raise ValueError("samples: expected finite values")
    if (model in WITH_CLASSES) != (labels is not None):
        raise ValueError(f"labels: expected with {' and '.join(WITH_CLASSES)}, and only with them")
    if labels is not None and labels.shape != (len(samples),):
        raise ValueError(f"labels: expected one per sample, got {list(labels.shape)}")
    tensors = safetensors_file.read(data_dir / name)
    if model == "swissroll-ddpm":
        return judge_swissroll(limits, tensors, samples)
    return judge_digits(limits, tensors, samples, labels)


def report(figures) -> bool:
    """Prints the table; true if every target is met."""
    for figure in figures:
        verdict = {None: "", True: "ok", False: "MISSED"}[figure.met]
        print(f"{verdict:<7}{figure.what}: {figure.value}", flush=True)
    return all(figure.met is not False for figure in figures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODEL_NAMES, required=True)
    parser.add_argument("--samples", type=pathlib.Path, required=True,
                        help=".npy, the model's outputs [n, output_dim]")
    parser.add_argument("--labels", type=pathlib.Path,
                        help=".npy, integers [n]: the digits asked for, for models that take them")
    parser.add_argument("--data_dir", type=pathlib.Path, default=MODELS / "data")
    arguments = parser.parse_args()
    samples = np.load(arguments.samples, allow_pickle=False)
    labels = None
    if arguments.labels is not None:
        labels = np.load(arguments.labels, allow_pickle=False)
    try:
        figures = judge(arguments.model, samples, labels, arguments.data_dir)
    except ValueError as error:
        print(f"quality.py: {error}", file=sys.stderr)
        return 2
    return 0 if report(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
