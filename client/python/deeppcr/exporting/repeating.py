# SPDX-License-Identifier: Apache-2.0
"""Finds what repeats in a list of operations: with one period, and weights of the same shapes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deeppcr.exporting.recording import Recorded

_LONGEST_BLOCK = 1024  # operations
# Operations whose numbers may differ from layer to layer: they are taken for weights then.
_ARITHMETIC = (
    *("add", "sub", "mul", "div", "truediv", "pow"),
    *("iadd", "isub", "imul", "itruediv", "ipow"),
)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _function_name(node: Any) -> str:
    return node.target if node.op == "call_method" else getattr(node.target, "__name__", "")


def _is_arithmetic(node: Any) -> bool:
    return node.op != "call_module" and _function_name(node).strip("_") in _ARITHMETIC


@dataclass(frozen=True)
class Key:
    """What has to be equal where operations repeat."""

    form: Any  # the operation and the shapes of its tensors
    sources: Any  # how many operations before it its arguments were computed
    numbers: Any  # arguments that are neither tensors nor factors


class _Keys:
    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded
        self.position = {node: i for i, node in enumerate(recorded.operations)}
        self.position[recorded.placeholder] = -1

    def all(self) -> list[Key]:
        return [self._key(i, node) for i, node in enumerate(self.recorded.operations)]

    def _key(self, i: int, node: Any) -> Key:
        import torch

        what: Any = node.target
        if node.op == "call_module":
            module = self.recorded.root.get_submodule(node.target)
            shapes = [(name, tuple(value.shape)) for name, value in module.state_dict().items()]
            # How statistics are taken is of no matter any more.
            settings = re.sub(r"momentum=[^,]*", "", module.extra_repr())
            what = (type(module), settings, tuple(shapes))
        form: list[Any] = [node.op, what]
        sources: list[int] = []
        numbers: list[str] = []

        def add(argument: Any, may_differ: bool) -> None:
            if isinstance(argument, torch.fx.Node) and argument in self.position:
                form.append("operation")
                sources.append(i - self.position[argument])
                return
            argument = self._value(argument)
            if isinstance(argument, dict):
                form.append(tuple(argument))
                argument = list(argument.values())
            if isinstance(argument, slice):
                argument = (argument.start, argument.stop, argument.step)
            if isinstance(argument, (tuple, list)):
                form.append(len(argument))
                for each in argument:
                    add(each, may_differ)
            elif isinstance(argument, torch.Tensor):
                form.append((tuple(argument.shape), argument.is_floating_point()))
            elif may_differ and is_number(argument):
                form.append("number")
            else:
                numbers.append(repr(argument))

        for argument in node.args:
            add(argument, _is_arithmetic(node))
        add(node.kwargs, False)
        return Key(tuple(form), tuple(sources), tuple(numbers))

    def _value(self, argument: Any) -> Any:
        import torch

        if isinstance(argument, torch.fx.Node):
            return self.recorded.constants[argument]
        return argument


def keys_of(recorded: Recorded) -> list[Key]:
    """One for each operation."""
    return _Keys(recorded).all()


def _numbered(keys: Sequence[Any]) -> Any:
    known: dict[Any, int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys])


@dataclass(frozen=True)
class Period:
    start: int
    length: int
    count: int


def periods_of(forms: Sequence[Any]) -> list[Period]:
    """Parts that repeat at least once, those that cover most first, at every start in a period."""
    keys = _numbered(forms)
    best: list[Period] = []
    covered = 0
    for length in range(1, min(_LONGEST_BLOCK, len(keys) // 2) + 1):
        same = np.concatenate([[0], (keys[length:] == keys[:-length]).astype(np.int8), [0]])
        edges = np.diff(same)
        starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        if not len(starts):
            continue
        longest = int(np.argmax(ends - starts))
        run = int(ends[longest] - starts[longest])
        whole = (run + length) // length * length
        if run >= length and whole > covered:
            covered = whole
            best = [
                Period(int(starts[longest]) + offset, length, (run + length - offset) // length)
                for offset in range(length)
            ]
    return sorted((each for each in best if each.count > 1), key=lambda each: -each.count)


def why_nothing_repeats(recorded: Recorded, keys: list[Key]) -> str:
    """What the layers differ in, if they are of one form."""
    periods = periods_of([key.form for key in keys])
    if not periods:
        return (
            "no equal blocks: expected operations that repeat, each time with weights of the same "
            f"shapes, got {len(keys)} operations without"
        )
    period = periods[0]
    for i in range(period.start, period.start + (period.count - 1) * period.length):
        here, there = keys[i], keys[i + period.length]
        name = _function_name(recorded.operations[i]) or str(recorded.operations[i].target)
        if here.sources != there.sources:
            return (
                "the blocks hand on more than one state: a layer uses what was computed before "
                f"the layer before it ({name})"
            )
        if here.numbers != there.numbers:
            return f"the layers differ in {name}: {here.numbers} and {there.numbers}"
    return "no equal blocks"
