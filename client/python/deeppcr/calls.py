# SPDX-License-Identifier: Apache-2.0
"""Splits what is more than a request may have, and puts the answers together again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from deeppcr.requests import Generation
from deeppcr.results import Report, Result

# Arrays of a generation that have a row for each sample, or one for all.
_ROWS = (
    "class_labels",
    "conditioning",
    "initial_noise",
    "step_noise",
    "null_conditioning",
    "initial_samples",
    "known_values",
)


def parts_of(n: int, most: int) -> Iterator[slice]:
    """Equal parts but for the last: which solver `auto` takes depends on how many there are."""
    if n < 1:
        raise ValueError("expected at least one sample, got none")
    for begin in range(0, n, most):
        yield slice(begin, min(begin + most, n))


def rows_of(generation: Generation, n: int, part: slice) -> Generation:
    """The part of a request for n samples; its noise is drawn as in the whole."""
    rows: dict[str, Any] = dict(generation)
    rows["first_sample"] = (int(generation.get("first_sample", 0)) + part.start) % 2**64
    for name in _ROWS:
        value = rows.get(name)
        if value is not None and np.shape(value) and len(value) == n and n > 1:
            rows[name] = value[part]
    return rows  # type: ignore[return-value]


def joined(results: list[Result]) -> Result:
    """One result of several, in order. Its report has every sample; its times are sums."""
    if len(results) == 1:
        return results[0]
    whole: Result = np.concatenate([result.numpy() for result in results]).view(Result)
    message = type(results[0].report.message)()  # type: ignore[union-attr]
    message.CopyFrom(results[0].report.message)  # type: ignore[union-attr]
    for result in results[1:]:
        other = result.report.message  # type: ignore[union-attr]
        message.samples.extend(other.samples)
        for name in ("queue_seconds", "encode_seconds", "solve_seconds", "decode_seconds"):
            setattr(message, name, getattr(message, name) + getattr(other, name))
    whole.report = Report(message)
    for name in ("trajectory", "latents"):
        arrays = [getattr(result, name) for result in results]
        if all(array is not None for array in arrays):
            setattr(whole, name, np.concatenate(arrays))
    return whole
