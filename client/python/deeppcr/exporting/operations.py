# SPDX-License-Identifier: Apache-2.0
"""What PyTorch computes of an input, as its dispatcher sees it: below classes and recorders.

A network may find out that what it is given is no tensor but what records it, and go another way
then. What it computes when it just runs is held against what was recorded: the same operations one
after the other, with the same numbers.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deeppcr.exporting.report import ExportError, users_line
from deeppcr.exporting.tensors import memory_of, tensors_in

# Copies, which a cast or a change of the order in memory may be or not be.
_COPIES = {"aten::_to_copy", "aten::clone", "aten::lift_fresh", "aten::_unsafe_view"}
# Numbers that are computed of weights may be so in double or not.
_SAME_NUMBERS = 1e-4


@dataclass(frozen=True)
class Operation:
    name: str
    numbers: tuple[float, ...]
    line: str = field(compare=False)  # of the module's own code


def _numbers_in(value: Any, is_of_input: Any) -> list[float]:
    """The numbers among arguments, and tensors that are one, unless they are of the input."""
    import torch

    if isinstance(value, (bool, int, float)):
        return [float(value)]
    if isinstance(value, torch.Tensor):
        is_number = value.ndim == 0 and not value.is_complex() and not is_of_input(value)
        return [float(value)] if is_number else []
    if isinstance(value, (tuple, list)):
        return [each for part in value for each in _numbers_in(part, is_of_input)]
    return []


def _is_view(function: Any) -> bool:
    """Whether its result has the memory of an argument, and nothing is written."""
    aliases = [each.alias_info for each in function._schema.returns]
    return any(each is not None and not each.is_write for each in aliases)


@contextlib.contextmanager
def operations_of(inputs: Any) -> Iterator[list[Operation]]:
    """The operations on tensors that depend on these, less views and copies, as they happen."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    operations: list[Operation] = []
    kept: list[Any] = list(inputs)  # so that no memory is used again
    memory = {memory_of(each) for each in kept}

    def is_of_input(tensor: Any) -> bool:
        return memory_of(tensor) in memory

    class Listing(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if not any(is_of_input(each) for each in tensors_in([args, kwargs])):
                return function(*args, **kwargs)
            name = function._schema.name
            if name not in _COPIES and not _is_view(function):
                numbers = _numbers_in([args, list(kwargs.values())], is_of_input)
                operations.append(Operation(name, tuple(numbers), users_line()))
            result = function(*args, **kwargs)
            for each in tensors_in(result):
                kept.append(each)
                memory.add(memory_of(each))
            memory.discard(0)
            return result

    class Plain(TorchFunctionMode):  # type: ignore[misc]
        """Calls what is called. Where any is on, PyTorch's attention and its encoder layers take no
        way of their own, as they take none where they are recorded."""

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return function(*args, **kwargs or {})

    with Plain(), Listing():
        yield operations


def operations_in(module: Any, example: tuple[Any, ...]) -> list[Operation]:
    """Those of a module that just runs, once it has kept what its first run may leave."""
    module(*(each.clone() for each in example))
    inputs = [each.clone() for each in example]
    with operations_of(inputs) as operations:
        module(*inputs)
    return operations


def _is_same_number(plain: float, recorded: float) -> bool:
    if math.isnan(plain) or math.isnan(recorded):
        return math.isnan(plain) and math.isnan(recorded)
    # Networks are recorded in double, in which what has no epsilon of its own takes that.
    epsilons = tuple(float(np.finfo(kind).eps) for kind in (np.float32, np.float64))
    is_epsilon = (plain, recorded) == epsilons
    return is_epsilon or math.isclose(plain, recorded, rel_tol=_SAME_NUMBERS)


def _is_same(plain: Operation, recorded: Operation) -> bool:
    return (
        plain.name == recorded.name
        and len(plain.numbers) == len(recorded.numbers)
        and all(map(_is_same_number, plain.numbers, recorded.numbers))
    )


def _name(operation: Operation | None) -> str:
    if operation is None:
        return "nothing more"
    return " ".join([operation.name, *(f"{each:g}" for each in operation.numbers)])


def check_same_operations(plain: list[Operation], recorded: list[Operation]) -> None:
    """Errors: ExportError, by line, where a network that just runs computes something else than
    what was recorded of it."""
    for one, other in itertools.zip_longest(plain, recorded):
        if one is not None and other is not None and _is_same(one, other):
            continue
        raise ExportError(
            f"{(one or other).line}: the network computes {_name(one)} as it runs, and "
            f"{_name(other)} as it is recorded: ask for tensors by isinstance alone"
        )
