# SPDX-License-Identifier: Apache-2.0
"""The noise that a server draws for a seed: Philox4x32-10 and Box-Muller.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Sample i of a
request draws from (seed, first_sample + i) alone. NumPy's sines and logarithms are good to an ulp
or so in double: numbers are the server's but for the last bit of a float, about once in 10^7.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

_INITIAL_STEP = 0xFFFFFFFF
_UNIT = 1.0 / 4294967296.0
_TWO_PI = 6.283185307179586476925286766559
_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(32)


def _philox(
    counter: list[npt.NDArray[np.uint64]], key: tuple[int, int]
) -> list[npt.NDArray[np.uint64]]:
    """Words of 32 bits in arrays of 64."""
    key0, key1 = key
    for _ in range(10):
        product0 = np.uint64(0xD2511F53) * counter[0]
        product1 = np.uint64(0xCD9E8D57) * counter[2]
        counter = [
            (product1 >> _HIGH) ^ counter[1] ^ np.uint64(key0),
            product1 & _LOW,
            (product0 >> _HIGH) ^ counter[3] ^ np.uint64(key1),
            product0 & _LOW,
        ]
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return counter


def _normals(
    seed: int, samples: npt.NDArray[np.uint64], steps: npt.NDArray[np.uint64], count: int
) -> Floats:
    """[samples, steps, count]"""
    quads = np.arange((count + 3) // 4, dtype=np.uint64)
    shape = (len(samples), len(steps), len(quads))
    counter = [
        np.broadcast_to(quads[None, None, :], shape),
        np.broadcast_to(steps[None, :, None], shape),
        np.broadcast_to((samples & _LOW)[:, None, None], shape),
        np.broadcast_to((samples >> _HIGH)[:, None, None], shape),
    ]
    words = [word.astype(np.float64) for word in _philox(counter, (seed & 0xFFFFFFFF, seed >> 32))]
    normals = np.empty((*shape, 4), np.float32)
    for pair in (0, 2):
        radius = np.sqrt(-2.0 * np.log((words[pair] + 0.5) * _UNIT))
        angle = words[pair + 1] * (_TWO_PI * _UNIT)
        normals[..., pair] = radius * np.cos(angle)
        normals[..., pair + 1] = radius * np.sin(angle)
    return normals.reshape(len(samples), len(steps), -1)[..., :count]


def noise(
    seed: int, n: int, num_steps: int, dim: int, *, first_sample: int = 0, first_step: int = 0
) -> tuple[Floats, Floats]:
    """(initial noise [n, dim], noise of the steps [n, num_steps, dim]) of a request with this seed.

    dim is the model's sample_dim; num_steps the steps that are made, without the first_step ones
    that are left out.
    """
    for name, value, limit in (
        ("seed", seed, 2**64),
        ("first_sample", first_sample, 2**64),
        ("n", n, 2**31),
        ("num_steps", num_steps, 2**31),
        ("dim", dim, 2**31),
        ("first_step", first_step, 2**31),
    ):
        if not 0 <= int(value) < limit:
            raise ValueError(f"{name}: expected an integer in [0, {limit}), got {value}")
    seed, first_sample = int(seed), int(first_sample)
    samples = np.array([(first_sample + i) % 2**64 for i in range(n)], np.uint64)
    initial = _normals(seed, samples, np.array([_INITIAL_STEP], np.uint64), dim)
    steps = np.arange(first_step, first_step + num_steps, dtype=np.uint64)
    return initial[:, 0], _normals(seed, samples, steps, dim)
