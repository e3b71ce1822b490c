# SPDX-License-Identifier: Apache-2.0
"""The swiss roll in two dimensions: a spiral with noise across it. NumPy alone."""

import numpy as np

FIRST_ANGLE, LAST_ANGLE = 1.5 * np.pi, 4.5 * np.pi
NOISE = 0.3              # standard deviation in the units of the raw spiral, radius 4.7 to 14.1
_GRID = 100001           # points of the curve over which mean and scale are taken


def _raw(angles):
    return np.stack([angles * np.cos(angles), angles * np.sin(angles)], axis=-1)


def _standardisation():
    """Mean and one scale for both dimensions; the angle is uniform, the noise included."""
    points = _raw(np.linspace(FIRST_ANGLE, LAST_ANGLE, _GRID))
    return points.mean(axis=0), np.sqrt(points.var(axis=0).mean() + NOISE**2)


MEAN, SCALE = _standardisation()
STANDARDISED_NOISE = NOISE / SCALE


def curve(angles):
    """The points without noise, [..., 2]."""
    return (_raw(angles) - MEAN) / SCALE


def draw(count, generator: np.random.Generator):
    """Points of the roll, float32 [count, 2]."""
    angles = generator.uniform(FIRST_ANGLE, LAST_ANGLE, count)
    noise = STANDARDISED_NOISE * generator.standard_normal((count, 2))
    return (curve(angles) + noise).astype(np.float32)
