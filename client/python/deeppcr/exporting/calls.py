# SPDX-License-Identifier: Apache-2.0
"""Which functions of PyTorch a module calls, whether it just runs, is watched or recorded."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from deeppcr.exporting.report import ExportError, users_line
from deeppcr.exporting.scripted import scripted_functions_by
from deeppcr.exporting.tensors import tensors_in

# Functions whose absence all values show, as sums and products, or none, as forms and copies: a
# module may call others in their place as it is recorded. Of the rest only rare values may show it.
_SHOWN_BY_ALL = {
    *("add", "sub", "mul", "div", "truediv", "true_divide", "neg", "radd", "rsub", "rmul"),
    *("iadd", "isub", "imul", "itruediv", "multiply", "subtract", "linear", "matmul", "rmatmul"),
    *("addmm", "bmm", "mm", "einsum", "sum", "mean", "square"),
    *("view", "view_as", "reshape", "reshape_as", "expand", "expand_as", "repeat", "tile"),
    *("flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "t", "movedim"),
    *("broadcast_to", "contiguous", "clone", "detach", "cat", "concat", "stack", "hstack"),
    *("chunk", "split", "unbind", "narrow", "select", "getitem", "iter", "len", "size", "dim"),
    *("stride", "numel", "nelement", "get", "zeros_like", "ones_like", "full_like", "empty_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty", "is_floating_point", "is_contiguous"),
}
# Functions that choose by the numbers that they are given.
_BY_NUMBERS = {
    *("eq", "ne", "lt", "le", "gt", "ge", "clamp", "clamp_min", "clamp_max", "clip", "hardtanh"),
    *("threshold", "masked_fill"),
}


@dataclass(frozen=True)
class Call:
    """Of a function of PyTorch."""

    name: str
    numbers: tuple[float, ...]  # of those that choose by them
    is_of_sizes: bool  # whether all tensors are numbers, as torch.onnx has sizes
    line: str = field(compare=False)  # of the module's own code


def _call(name: str, args: Any, kwargs: Any) -> Call:
    import torch

    given = [*args, *kwargs.values()] if name.strip("_") in _BY_NUMBERS else []
    numbers = tuple(float(each) for each in given if type(each) in (int, float))
    with torch._C.DisableTorchFunction():
        is_of_sizes = all(each.ndim == 0 for each in tensors_in([args, kwargs]))
    return Call(name, numbers, is_of_sizes, users_line())


@contextlib.contextmanager
def calls_of_functions() -> Iterator[list[Call]]:
    """Those of functions of tensors, one after the other as they are called.

    PyTorch's attention and its encoder layers take no way of their own then, through an operation
    that ONNX does not have.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    calls: list[Call] = []

    class Listing(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            # What is scripted is called by its name for tensors of other classes alone.
            if not isinstance(function, torch.ScriptMethod):
                name = str(getattr(function, "__name__", ""))
                calls.append(_call(name, args, kwargs or {}))
            return function(*args, **kwargs or {})

    def call_scripted(own: Any, function: Any, args: Any, kwargs: Any) -> Any:
        # PyTorch does not say of these.
        calls.append(_call(f"scripted {function.name}", args, kwargs))
        return own(function, *args, **kwargs)

    with Listing(), scripted_functions_by(call_scripted):
        yield calls


def calls_in(module: Any, example: tuple[Any, ...]) -> list[Call]:
    """Those of a module that just runs, once it has kept what its first run may leave."""
    module(*(each.clone() for each in example))
    inputs = [each.clone() for each in example]
    with calls_of_functions() as calls:
        module(*inputs)
    return calls


def _line_of_missing(plain: list[Call], others: list[Call]) -> str:
    """The line of one that is not among the others; nothing if all are."""
    missing = collections.Counter(plain) - collections.Counter(others)
    return next((each.line for each in plain if each in missing), "")


def check_same_calls(plain: list[Call], watched: list[Call]) -> None:
    """Errors: ExportError, by line, where a module calls something for tensors of PyTorch's own
    class alone: the watch has not seen the way that it goes with those.

    PyTorch 1.13 does not say of all calls for its own tensors, so that those may be fewer.
    """
    line = _line_of_missing(plain, watched)
    if line:
        raise ExportError(
            f"{line}: the way through the module depends on the class of a tensor: ask for it by "
            "isinstance, not by type"
        )


def check_same_choices(plain: list[Call], recorded: list[Call]) -> None:
    """Errors: ExportError, by line, where a module that just runs chooses by values, and does not
    as it is recorded."""
    choices = [
        each for each in plain if not each.is_of_sizes and each.name.strip("_") not in _SHOWN_BY_ALL
    ]
    line = _line_of_missing(choices, recorded)
    if line:
        raise ExportError(f"{line}: the way through the module depends on whether it is recorded")
