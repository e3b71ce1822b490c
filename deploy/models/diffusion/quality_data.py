# SPDX-License-Identifier: Apache-2.0
"""Writes what quality.py judges by: a classifier, an encoder and the latents of real digits, and
points of the swiss roll with the features to compare them in."""

import numpy as np
import torch

import autoencoder
import quality
from shared import safetensors_file
import swissroll
import training

ROLL_SEED = 2310
ROLL_POINTS = 2048
FEATURES = 32
FEATURE_LENGTH = 0.3     # in standardised units, about the distance between windings


def _prefixed(prefix, module):
    return {f"{prefix}.{name}": value for name, value in training.arrays(module).items()}


def export_digits(digits, encoder, classifier, directory) -> None:
    """The latents are the encoder's, of the pixels as they are."""
    with torch.no_grad():
        train, held_out = (autoencoder.apply(encoder, torch.from_numpy(inputs)).numpy()
                           for inputs in (digits.train_inputs, digits.held_out_inputs))
    tensors = {"latents.train": train, "latents.held_out": held_out}
    tensors.update(_prefixed("encoder", encoder))
    tensors.update(_prefixed("classifier", classifier))
    safetensors_file.write(directory / quality.DIGITS_DATA, tensors)


def export_swissroll(directory) -> None:
    """Points drawn like the training points, but with a seed of their own."""
    generator = np.random.default_rng(ROLL_SEED)
    tensors = {
        "points": swissroll.draw(ROLL_POINTS, generator),
        "features.weight": generator.standard_normal((FEATURES, 2)) / FEATURE_LENGTH,
        "features.bias": generator.uniform(0, 2 * np.pi, FEATURES),
    }
    safetensors_file.write(directory / quality.SWISSROLL_DATA,
                           {name: value.astype(np.float32) for name, value in tensors.items()})
