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
from dataclasses import dataclass
from typing import Any

from deeppcr.exporting.report import ExportError, users_line
from deeppcr.exporting.tensors import memory_of, tensors_in
from deeppcr.exporting.tracing import copied

# Copies, which a cast or a change of the order in memory may be or not be.
_COPIES = {"aten::_to_copy", "aten::clone", "aten::lift_fresh", "aten::_unsafe_view"}
# Tensors of the form of another one, of which they have no values.
_OF_FORM = {
    *(f"aten::{each}_like" for each in ("empty", "zeros", "ones", "full", "rand", "randn")),
    *(f"aten::new_{each}" for each in ("empty", "empty_strided", "zeros", "ones", "full")),
}
# Networks are recorded in double: in float32 small differences of weights have few digits.
_SAME_NUMBERS = 1e-2
# PyTorch's rms_norm takes that of what it is given, if none is named.
_EPSILONS = (2.0**-23, 2.0**-52)


@dataclass(frozen=True)
class Operation:
    name: str
    numbers: tuple[float, ...]
    line: str  # of the module's own code
    function: str  # that the code calls for it


def _numbers_in(value: Any, is_of_input: Any) -> list[float]:
    """The numbers among arguments, and tensors that are one, unless they are of the input."""
    import torch

    if isinstance(value, (bool, int, float)):
        return [float(value)]
    if isinstance(value, torch.Tensor):
        is_number = value.numel() == 1 and not value.is_complex() and not is_of_input(value)
        return [float(value)] if is_number else []
    if isinstance(value, (tuple, list)):
        return [each for part in value for each in _numbers_in(part, is_of_input)]
    return []


def _is_view(function: Any) -> bool:
    """Whether its result has the memory of an argument, and nothing is written."""
    aliases = [each.alias_info for each in function._schema.returns]
    return any(each is not None and not each.is_write for each in aliases)


@contextlib.contextmanager
def operations_of(given: Any) -> Iterator[list[Operation]]:
    """The operations on tensors that depend on this one, less views and copies, as they happen."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    operations: list[Operation] = []
    kept: list[Any] = [given]  # so that no memory is used again
    memory = {memory_of(given)}
    called = [""]

    def is_of_input(tensor: Any) -> bool:
        return memory_of(tensor) in memory

    class Listing(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            name = function._schema.name
            depends = any(is_of_input(each) for each in tensors_in([args, kwargs]))
            if not depends or name in _OF_FORM:
                return function(*args, **kwargs)
            if name not in _COPIES and not _is_view(function):
                numbers = _numbers_in([args, list(kwargs.values())], is_of_input)
                operations.append(Operation(name, tuple(numbers), users_line(), called[-1]))
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
            called.append(str(getattr(function, "__name__", "")))
            try:
                return function(*args, **kwargs or {})
            finally:
                called.pop()

    with Plain(), Listing():
        yield operations


def _operations_in(network: Any, example: Any) -> list[Operation]:
    """Those of a network that just runs, once it has kept what its first run may leave."""
    network(example.clone())
    given = example.clone()
    with operations_of(given) as operations:
        network(given)
    return operations


def _is_same(plain: Operation, recorded: Operation) -> bool:
    def is_same(number: float, other: float) -> bool:
        if math.isnan(number) or math.isnan(other):
            return math.isnan(number) and math.isnan(other)
        is_epsilon = plain.function == "rms_norm" and (number, other) == _EPSILONS
        return is_epsilon or math.isclose(number, other, rel_tol=_SAME_NUMBERS)

    return (
        plain.name == recorded.name
        and len(plain.numbers) == len(recorded.numbers)
        and all(map(is_same, plain.numbers, recorded.numbers))
    )


def _name(operation: Operation | None) -> str:
    if operation is None:
        return "nothing more"
    return " ".join([operation.name, *(f"{each:g}" for each in operation.numbers)])


def check_same_operations(network: Any, example: Any, recorded: list[Operation]) -> None:
    """Errors: ExportError, by line, where a network that just runs computes something else of its
    example, in float32 as it is served, than what was recorded of it in double."""
    for one, other in itertools.zip_longest(_operations_in(copied(network), example), recorded):
        if one is not None and other is not None and _is_same(one, other):
            continue
        hint = "ask for tensors by isinstance alone"
        if one is not None and other is not None and one.name == other.name:
            hint = "take the numbers of a precision from the dtype of the state, not of a weight"
        raise ExportError(
            f"{(one or other).line}: the network computes {_name(one)} as it runs, and "
            f"{_name(other)} as it is recorded: {hint}"
        )
