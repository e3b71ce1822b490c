# SPDX-License-Identifier: Apache-2.0
"""Writes a denoiser, any module of a state, a time and perhaps a condition, and compares it.

The module goes through torch.onnx into denoiser.onnx.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
import pathlib
from typing import Any

import numpy as np

from deeppcr.errors import DeepPcrError
from deeppcr.exporting.answers import Answers, Predictions, Question
from deeppcr.exporting.checking import check, check_columns, check_far, compared, difference_of
from deeppcr.exporting.network import (
    FAR_SAMPLES,
    OTHER_BATCHES,
    check_batch,
    check_samples_are_alone,
    with_zeros,
)
from deeppcr.exporting.precision import in_double
from deeppcr.exporting.report import Difference, ExportError
from deeppcr.exporting.tracing import module_errors

_CHECK_SAMPLES = 8
_SIZES = [1.0, 3.0, 0.3]
_FAR_SIZES = [1000.0, 0.0, 30.0, 1e-3, 1e-5]
_FAR_TIMES = 8
_MOST_LABELS = 64
_FAR_CONDITIONS = [10.0, 1000.0, 1e-3, 1e-5, 0.0]
# Errors of PyTorch at one time may be small by chance: those at times near it count too.
_TIMES_NEAR = 2  # before it, and after it


def _as_prediction(output: Any, state: Any, learned_variance: bool) -> Any:
    import torch

    if not isinstance(output, torch.Tensor):
        raise ExportError(
            f"outputs: expected one tensor, got a {type(output).__name__}; wrap the "
            "module in one that returns the prediction alone"
        )
    shape = list(state.shape)
    if learned_variance:
        shape[1] *= 2  # prediction and variance one after the other
    flat = [shape[0], math.prod(shape[1:])]
    if list(output.shape) not in (shape, flat):
        twice = ", and as many for the variance" if learned_variance else ""
        raise ExportError(
            f"outputs: expected {flat[1]} elements of a sample, in the shape of the state "
            f"{list(state.shape)}{twice}, got the shape {list(output.shape)}"
        )
    return output.reshape(len(state), -1)


class Denoiser:
    """The module as a function of rows: states [n, D], times [n], conditions or None."""

    def __init__(self, module: Any, example: tuple[Any, ...], learned_variance: bool) -> None:
        self.module, self.example, self.learned = module, example, learned_variance
        self.state_shape = tuple(example[0].shape[1:])

    def halves(self) -> list[Denoiser]:
        """Itself, or the prediction and the variance that it gives, each as large as the state."""
        if not self.learned:
            return [self]
        return [Denoiser(_half_of(self.module, i), self.example, False) for i in range(2)]

    def __call__(self, states: Any, times: Any, condition: Any) -> Any:
        time_shape = self.example[1].shape[1:]  # [n], or [n, 1] and so on
        # Copies, as the module may change what it is given.
        inputs = [
            states.clone().reshape(-1, *self.state_shape),
            times.clone().to(self.example[1].dtype).reshape(-1, *time_shape),
        ]
        if condition is not None:
            inputs.append(condition.clone().reshape(-1, *self.example[2].shape[1:]))
        return _as_prediction(self.module(*inputs), inputs[0], self.learned)


def _half_of(module: Any, index: int) -> Any:
    """A module with one of the halves of what `module` gives."""
    import torch

    class Half(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.whole = module

        def forward(self, *inputs: Any) -> Any:
            return self.whole(*inputs).chunk(2, dim=1)[index]

    return Half().eval()


def _random_inputs(example: tuple[Any, ...], n: int, num_classes: int) -> tuple[Any, Any]:
    """(states [n, D], condition [n, ..] or None), from a generator of their own."""
    import torch

    generator = torch.Generator().manual_seed(1)
    states = torch.randn(n, example[0][0].numel(), generator=generator)
    if len(example) < 3:
        return states, None
    if num_classes:
        return states, torch.randint(0, num_classes, (n,), generator=generator)
    return states, torch.randn(n, *example[2].shape[1:], generator=generator)


def check_denoiser(module: Denoiser, num_classes: int) -> None:
    """What no file would show, for some states at the example's time."""
    import torch

    def answers(n: int) -> tuple[Any, Any, Any]:
        """Of a batch, of the same again, and of its samples one by one."""
        states, condition = _random_inputs(module.example, n, num_classes)
        times = torch.full((n,), module.example[1].reshape(-1)[0].item())

        def at(rows: slice) -> Any:
            return module(states[rows], times[rows], None if condition is None else condition[rows])

        with module_errors("does not take random states"):
            alone = torch.cat([at(slice(i, i + 1)) for i in range(n)])
            return at(slice(None)), at(slice(None)), alone

    check_samples_are_alone(*answers(3))
    for n in OTHER_BATCHES:
        whole, _, alone = answers(n)
        check_batch(whole, alone)


def _in_double(tensor: Any) -> Any:
    return tensor.double() if tensor is not None and tensor.is_floating_point() else tensor


def _reference(module: Denoiser, states: Any, times: Any, condition: Any) -> tuple[Any, str]:
    """The predictions in double where the module can be made so, and what they are in."""
    example = tuple(_in_double(each) for each in module.example)

    def predictions(wide: Any) -> Any:
        wide = Denoiser(wide, example, module.learned)
        return wide(states.double(), times.double(), _in_double(condition))

    exact = in_double(module.module, predictions)
    if exact is not None:
        return exact.numpy(), "float64"
    return module(states, times, condition).numpy(), "float32"


def _is_finite(module: Denoiser, states: Any, time: float, condition: Any) -> bool:
    """Whether the module has numbers, whatever it does with what is large."""
    import torch

    try:
        found = module(states, torch.full((len(states),), time), condition)
    except Exception:
        return False
    return bool(torch.isfinite(found).all())


def _far_states(
    module: Denoiser, states: Any, times: list[float], condition: Any
) -> list[tuple[float, float]]:
    """(time, size) of large and small states, of the sizes for which the module has numbers."""
    chosen = [times[i] for i in np.linspace(0, len(times) - 1, _FAR_TIMES).round().astype(int)]
    sizes = [
        size
        for size in _FAR_SIZES
        if all(_is_finite(module, size * states, time, condition) for time in chosen)
    ]
    return list(zip(chosen, np.resize(sizes, len(chosen)), strict=True)) if sizes else []


def _far_conditions(
    module: Denoiser, condition: Any, asked: list[tuple[float, Any]]
) -> dict[str, Any]:
    """Large and small conditions and zeros, by what they are, for which the module has numbers at
    (time, states)."""
    if condition is None or not condition.is_floating_point():
        return {}
    some = condition[:FAR_SAMPLES]
    far = {f" for conditions of size {size:g}": size * some for size in _FAR_CONDITIONS}
    far[" for conditions with zeros"] = with_zeros(some)
    return {
        what: each
        for what, each in far.items()
        if all(_is_finite(module, states[:FAR_SAMPLES], time, each) for time, states in asked)
    }


def _asked(answers: Answers, question: Question) -> Predictions:
    try:
        return answers.predictions(question)
    except ExportError:
        raise
    except DeepPcrError as error:
        raise ExportError(f"what the module answers the model does not: {error}") from error


def _compared_labels(num_classes: int, null_class: int | None) -> list[int]:
    """All of them, or the first, the last, that of none, and others in between."""
    between = np.linspace(0, num_classes - 1, min(num_classes, _MOST_LABELS)).round().astype(int)
    extra = [] if null_class is None or not 0 <= null_class < num_classes else [null_class]
    return sorted({*between.tolist(), *extra})


def _groups(usual: int, far_conditions: dict[str, Any]) -> list[tuple[slice, str]]:
    """Rows that are compared together, and what their conditions are."""
    groups = [(slice(0, usual), "")]
    for what, condition in far_conditions.items():
        begin = groups[-1][0].stop
        groups.append((slice(begin, begin + len(condition)), what))
    return groups


def _check_times(differences: list[Difference], times: list[float]) -> None:
    """Errors: ExportError at the first of the times where the predictions are others."""
    for i, (found, time) in enumerate(zip(differences, times, strict=True)):
        near = differences[max(0, i - _TIMES_NEAR) : i + _TIMES_NEAR + 1]
        most = max(each.torch_error for each in near)
        what = f"predictions at time {time:g}"
        check(dataclasses.replace(found, torch_error=most), what)


def compare_predictions(
    module: Denoiser,
    folder: pathlib.Path,
    config: dict[str, Any],
    times: list[float],
    decoder: Any,
    answers: Answers,
) -> Difference:
    """The predictions made of what is in `folder`, against those of the module."""
    import torch

    num_classes = config.get("num_classes", 0)
    labels = _compared_labels(num_classes, config.get("null_class"))
    states, condition = _random_inputs(
        module.example, max(_CHECK_SAMPLES, len(labels)), num_classes
    )
    if labels:
        condition = torch.tensor(labels)[torch.arange(len(states)) % len(labels)]
    # These states come first, as a decoder is given the last ones.
    far = [
        (time, size, f", of states of size {size:g},")
        for time, size in _far_states(module, states, times, condition)
    ]
    usual_sizes = np.resize(_SIZES, len(times))
    at = far + [(time, size, "") for time, size in zip(times, usual_sizes, strict=True)]
    first = at[0][1] * states
    # The very first alone are given, as the others are drawn.
    if _is_finite(module, with_zeros(states), times[0], condition):
        first = with_zeros(states)
        at = [(times[0], 1.0, ", of states with zeros,"), *at]
    of_times = [(at[0][0], first), *((time, size * states) for time, size, _ in at[1:])]
    far_conditions = _far_conditions(module, condition, of_times)
    groups = _groups(len(states), far_conditions)
    given = None
    if condition is not None:
        condition = torch.cat([condition, *far_conditions.values()])
        first = first[torch.arange(len(condition)) % len(first)]
        given = (condition if num_classes else condition.reshape(len(first), -1)).numpy()
    sizes = [*(size for _, size, _ in at[1:]), 1.0]  # of what is drawn after each
    asked = Question(
        module, folder, config, [time for time, _, _ in at], first.numpy(), sizes, given
    )
    found = _asked(answers, asked)
    # Prediction and variance have sizes of their own.
    halves_of_module = range(2 if module.learned else 1)
    differences: list[list[Difference]] = [[] for _ in halves_of_module]
    usual: list[list[Any]] = [[] for _ in halves_of_module]
    for (time, _, of_states), at_time, predicted in zip(
        at, found.states, found.predictions, strict=True
    ):
        rows = torch.from_numpy(at_time)
        of_rows = torch.full((len(rows),), time)
        # Before double precision: what a module keeps of its first run is as its user has it.
        own = module(rows, of_rows, condition).numpy()
        exact, reference = _reference(module, rows, of_rows, condition)
        halves = [np.split(each, len(differences), axis=1) for each in (predicted, own, exact)]
        for (those, kind), half in itertools.product(groups, halves_of_module):
            answer, of_torch, of_double = (each[half][those] for each in halves)
            what = f"predictions{kind} at time {time:g}{of_states}"
            if of_states or kind:
                check_far(answer, of_torch, of_double, what)
            else:
                found_here = difference_of(answer, of_torch, of_double, reference, what)
                differences[half].append(found_here)
                usual[half].append((answer, of_torch, of_double))
    for of_half, at_times in zip(differences, usual, strict=True):
        _check_times(of_half, times)
        # Of all times together: at one of them an output may be near 0.
        answer, of_torch, of_double = (np.concatenate(each) for each in zip(*at_times, strict=True))
        check_columns(answer, of_torch, of_double, "predictions")
    joined = [each for of_half in differences for each in of_half]
    if decoder is not None:
        last = torch.from_numpy(found.last)
        exact = copy.deepcopy(decoder).double()(last.double()).numpy()
        own = decoder(last).numpy()
        joined.append(compared(found.outputs, own, exact, "float64", "outputs of the decoder"))
    return functools.reduce(Difference.joined, joined)
