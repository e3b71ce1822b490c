# SPDX-License-Identifier: Apache-2.0
"""Splits what is more than a request may have, and puts the answers together again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from deeppcr import arrays, errors
from deeppcr.requests import ROWS, Generation, Options
from deeppcr.results import Report, Result


def parts_of(n: int, most: int, options: Options) -> list[slice]:
    """Equal parts but for the last: which solver `auto` takes depends on how many there are."""
    if n < 1:
        raise ValueError("expected at least one sample, got none")
    if n > most and options.get("keep_trajectory"):
        raise ValueError(
            f"keep_trajectory: expected at most {most} samples, as one request may have, got {n}"
        )
    return [slice(begin, min(begin + most, n)) for begin in range(0, n, most)]


def rows_of(generation: Generation, n: int, part: slice) -> Generation:
    """The part of a request for n samples; its noise is drawn as in the whole."""
    rows: dict[str, Any] = dict(generation)
    if part == slice(0, n):
        return rows  # type: ignore[return-value]
    rows["first_sample"] = (int(generation.get("first_sample", 0)) + part.start) % 2**64
    for name, dims in ROWS.items():
        value = rows.get(name)
        if value is None or np.ndim(value) < dims:
            continue
        if len(value) not in (1, n):
            raise ValueError(f"{name}: expected 1 or {n} rows, got {len(value)}")
        if len(value) == n:
            rows[name] = value[part]
    return rows  # type: ignore[return-value]


def states_of(initial_states: Any, n: int, part: slice) -> Any:
    """The part of the guess of n samples [n, L + 1, D], or of one [L + 1, D]."""
    if initial_states is None:
        return None
    states = arrays.as_floats(initial_states, "initial_states")
    states = states[None] if states.ndim == 2 else states
    if len(states) != n:
        raise ValueError(f"initial_states: expected {n} rows, got {len(states)}")
    return states[part]


class Deadline:
    """The seconds that all requests of a call may take together."""

    def __init__(self, seconds: float) -> None:
        if not 0 < seconds < float("inf"):
            raise ValueError(f"timeout: expected a number of seconds above 0, got {seconds}")
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """At least a moment, in which a call fails as one that took too long."""
        return max(self._end - time.monotonic(), 1e-3)


@contextlib.contextmanager
def of_one_version(request: Any, results: list[Result]) -> Iterator[None]:
    """Has later requests of a call ask for the version that answered the first."""
    if not results or request.version:
        yield
        return
    request.version = results[0].report.model_version  # type: ignore[union-attr]
    try:
        yield
    except errors.NotFoundError:
        raise errors.UnavailableError(
            f"version {request.version} of {request.model!r}, which answered the first samples of "
            "this call, is served no more: call again"
        ) from None


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
    for array in (whole, whole.trajectory, whole.latents):
        if array is not None:
            array.flags.writeable = False  # as the answers of one request are
    return whole
