# SPDX-License-Identifier: Apache-2.0
"""The reverse process of a model: settings of a scheduler of diffusers, or steps as functions."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deeppcr.exporting.report import ExportError
from deeppcr.safetensors_file import write_safetensors

_PROBED_VALUES = 5


@dataclass(frozen=True)
class Steps:
    """A sampler written as a function, for what no scheduler of diffusers is.

    z' = step(z, m, i), with z the state, m the module's output for (z, times[i]) and i the step,
    0 for the first. It may have the arguments `noise`, standard normal and as large as z, and `x0`,
    which is what predict_x0(z, m, i) gives, clipped to +-clip_range. Each has to be affine in its
    arguments, with one coefficient for all elements, however many there are, and without a
    constant, as `lambda z, m, i: z + (t[i + 1] - t[i]) * m`. step is called with NumPy arrays of
    float64.

    The first state is initial_scale times standard normal noise.
    """

    step: Callable[..., Any]
    times: Sequence[float]
    predict_x0: Callable[[Any, Any, int], Any] | None = None
    clip_range: float | None = None
    initial_scale: float = 1.0


def _coefficients(
    function: Callable[..., Any], name: str, arguments: Sequence[str], i: int, sizes: Sequence[int]
) -> dict[str, float]:
    """Those of a function of arrays that is affine, element by element; refuses any other.

    sizes: of the arrays; the first is that of most of them.
    """
    rng = np.random.default_rng(i)
    size, *other_sizes = sizes

    def at(values: Mapping[str, Any]) -> Any:
        size = len(values["z"])
        copies = {each: values[each].copy() for each in arguments}  # which it may change
        try:
            with np.errstate(all="ignore"):
                result = function(copies.pop("z"), copies.pop("m"), i, **copies)
                result = np.asarray(result, np.float64)
        except Exception as error:
            raise ExportError(f"{name}: step {i} failed: {error}") from error
        if result.shape != (size,):
            raise ExportError(
                f"{name}: expected {size} values of step {i} for {size}, got shape {result.shape}"
            )
        if not np.isfinite(result).all():
            raise ExportError(f"{name}: step {i} gives values that are not finite")
        return result

    zero = {each: np.zeros(size) for each in arguments}
    if at(zero).any():
        raise ExportError(f"{name}: step {i} has a constant: it is not 0 where all arguments are 0")
    found = {}
    for each in arguments:
        values = at(zero | {each: np.ones(size)})
        if not (values == values[0]).all():
            raise ExportError(f"{name}: step {i} has another coefficient of {each} in each element")
        found[each] = float(values[0])
        for other in other_sizes:
            zeros = {name: np.zeros(other) for name in arguments}
            values = at(zeros | {each: np.ones(other)})
            if not np.allclose(values, found[each], rtol=1e-12, atol=0):
                raise ExportError(
                    f"{name}: step {i} has another coefficient of {each} for {other} values than "
                    f"for {size}: write the number of values that is meant"
                )
    for n, scale in itertools.product(sizes, (1.0, 1e3, 1e-3, 1e6, 1e-6, 1e12)):
        probe = {each: scale * rng.standard_normal(n) for each in arguments}
        terms = [found[each] * probe[each] for each in arguments]
        size_of = sum(np.abs(term) for term in terms) + np.finfo(float).tiny
        if (np.abs(at(probe) - sum(terms)) > 1e-9 * size_of).any():
            raise ExportError(
                f"{name}: step {i} is not affine in {', '.join(arguments)}, or not the same twice; "
                "a clipped x0 is the argument x0 with predict_x0 and clip_range"
            )
    return found


def _arguments_of(step: Callable[..., Any]) -> list[str]:
    """Which of noise and x0 a step takes, after z and m."""
    try:
        names = list(inspect.signature(step).parameters)[3:]
    except (TypeError, ValueError) as error:  # of what is none, and of some that C++ has
        raise ExportError(f"step: expected a function of (z, m, i): {error}") from error
    unknown = [name for name in names if name not in ("noise", "x0")]
    if unknown:
        raise ExportError(
            f"step: expected the arguments (z, m, i) and perhaps noise and x0, got {unknown[0]}"
        )
    return ["z", "m", *names]


def _numbers(name: str, given: Any, axes: int) -> Any:
    """An array of so many axes. Errors: ExportError for anything else."""
    try:
        numbers = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise ExportError(f"{name}: {error}") from error
    if numbers.ndim != axes or not numbers.size:
        expected = "a number" if axes == 0 else "a list of numbers"
        raise ExportError(f"{name}: expected {expected}, got {given!r}")
    return numbers


def step_table(steps: Steps, width: int) -> dict[str, Any]:
    """The tensors of step_table.safetensors, for states of `width` values.

    Errors: ExportError, naming the step.
    """
    arguments = _arguments_of(steps.step)
    sizes = [_PROBED_VALUES, *({width, _PROBED_VALUES + 2} - {_PROBED_VALUES})]
    times = _numbers("times", steps.times, 1)
    if ("x0" in arguments) != (steps.predict_x0 is not None):
        raise ExportError("step: the argument x0 and predict_x0 belong together")
    if steps.clip_range is not None and steps.predict_x0 is None:
        raise ExportError("clip_range: expected predict_x0 with it, as that is what is clipped")
    rows: dict[str, list[float]] = {
        name: [] for name in ("x0_z", "x0_m", "z_z", "z_m", "z_x0", "sigma")
    }
    for i in range(len(times)):
        found = _coefficients(steps.step, "step", arguments, i, sizes)
        x0 = {"z": 0.0, "m": 0.0}
        if steps.predict_x0 is not None:
            x0 = _coefficients(steps.predict_x0, "predict_x0", ["z", "m"], i, sizes)
        of_step = (found["z"], found["m"], found.get("x0", 0.0), found.get("noise", 0.0))
        for name, value in zip(rows, (x0["z"], x0["m"], *of_step), strict=True):
            rows[name].append(value)
    table: dict[str, Any] = {name: np.array(values, np.float64) for name, values in rows.items()}
    table["time"] = times
    if steps.clip_range is not None:
        table["clip_range"] = _numbers("clip_range", steps.clip_range, 0)
    table["initial_scale"] = _numbers("initial_scale", steps.initial_scale, 0)
    return table


def _settings(scheduler: Any) -> dict[str, Any]:
    """A scheduler of diffusers, its settings, their file, or a folder with it."""
    if isinstance(scheduler, (str, os.PathLike)):
        path = pathlib.Path(scheduler)
        if path.is_dir():
            # A pipeline of diffusers has a folder for each of its parts.
            inner = path / "scheduler" if (path / "scheduler").is_dir() else path
            path = inner / "scheduler_config.json"
        try:
            return dict(json.loads(path.read_text()))
        except (OSError, ValueError) as error:
            raise ExportError(f"scheduler: {path}: {error}") from error
    if isinstance(scheduler, Mapping):
        return dict(scheduler)
    config = getattr(scheduler, "config", None)
    if config is None:
        raise ExportError(
            f"scheduler: expected one of diffusers, its settings, their file, deeppcr.Steps, or "
            f"None for a stack of blocks, got a {type(scheduler).__name__}"
        )
    settings = {key: value for key, value in dict(config).items() if not key.startswith("_")}
    # A value that JSON has no word for is NumPy's.
    text = json.dumps(
        {"_class_name": type(scheduler).__name__, **settings},
        default=lambda value: np.asarray(value).tolist(),
    )
    return dict(json.loads(text))


@dataclass(frozen=True)
class Process:
    """What the files say of a reverse process."""

    settings: dict[str, Any] | None  # of a scheduler
    table: dict[str, Any] | None  # or the steps themselves

    @property
    def learned_variance(self) -> bool:
        return str((self.settings or {}).get("variance_type")).startswith("learned")

    def some_times(self, n: int, whole: bool) -> list[float]:
        """At most n from the first to the last, as the scheduler has them; `whole`: integers.

        They are float32, so that a module gets what a server gets.
        """
        return [float(each) for each in np.asarray(self._times(n, whole), np.float32)]

    def _times(self, n: int, whole: bool) -> Any:
        if self.table is not None:
            times = self.table["time"]
            chosen = np.unique(np.linspace(0, len(times) - 1, n).round().astype(int))
            return times[chosen]
        settings = self.settings or {}
        count = int(settings.get("num_train_timesteps", 1000))
        name = str(settings.get("_class_name"))
        if name.startswith("EDM"):
            low, high = settings.get("sigma_min") or 0.002, settings.get("sigma_max") or 80.0
            return 0.25 * np.linspace(np.log(high), np.log(low), n)
        first = count if name.startswith("FlowMatch") else count - 1
        times = np.linspace(first, 0, n)
        return np.unique(times.round() if whole else times)[::-1]

    def write(self, folder: pathlib.Path) -> None:
        if self.table is not None:
            write_safetensors(folder / "step_table.safetensors", self.table)
        else:
            text = json.dumps(self.settings, indent=1) + "\n"
            (folder / "scheduler_config.json").write_text(text)


def process_of(scheduler: Any, width: int) -> Process:
    """That of states of `width` values. Errors: ExportError."""
    if isinstance(scheduler, Steps):
        return Process(None, step_table(scheduler, width))
    return Process(_settings(scheduler), None)
