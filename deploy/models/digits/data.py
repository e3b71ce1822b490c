# SPDX-License-Identifier: Apache-2.0
"""The digits of scikit-learn, cut once and for all into a training and a held-out part."""

import dataclasses

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SPLIT_SEED = 2309
HELD_OUT_SHARE = 0.25
PIXEL_MAX = 16.0
IMAGE_SIDE = 8


@dataclasses.dataclass(frozen=True)
class Digits:
    """Inputs are float32 [n, 64], pixel / 16 and so in [0, 1]; labels are int64 [n], 0..9."""

    train_inputs: np.ndarray
    train_labels: np.ndarray
    held_out_inputs: np.ndarray
    held_out_labels: np.ndarray


def load() -> Digits:
    """Reads the data set that scikit-learn carries with it (nothing is fetched) and splits it."""
    bunch = load_digits()
    # Pixels are integers 0..16, so the quotient is exact in float32.
    inputs = (bunch.data / PIXEL_MAX).astype(np.float32)
    labels = bunch.target.astype(np.int64)
    train_x, held_x, train_y, held_y = train_test_split(
        inputs, labels, test_size=HELD_OUT_SHARE, random_state=SPLIT_SEED, stratify=labels)
    return Digits(train_x, train_y, held_x, held_y)
