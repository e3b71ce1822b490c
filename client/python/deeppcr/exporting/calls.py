# SPDX-License-Identifier: Apache-2.0
"""Which functions of PyTorch a module calls, whether it just runs, is watched or recorded."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from deeppcr.exporting.report import ExportError, users_line

# Functions of whose results rare values alone may show that one is missing. Where others are, an
# answer is another one for all values, unless others in their place give the same.
_CHOICES = {
    *("eq", "ne", "lt", "le", "gt", "ge", "isclose", "isin", "isnan", "isinf", "isposinf"),
    *("isneginf", "isfinite", "bool", "int", "long", "short", "signbit", "logical_not"),
    *("logical_and", "logical_or", "logical_xor", "any", "all", "count_nonzero"),
    *("where", "masked_fill", "masked_scatter", "nan_to_num", "heaviside", "bucketize"),
    *("searchsorted", "clamp", "clamp_min", "clamp_max", "clip", "hardtanh", "relu6", "threshold"),
    *("hardsigmoid", "hardswish", "hardshrink", "softshrink", "relu", "max", "min", "amax"),
    *("amin", "maximum", "minimum", "fmax", "fmin", "cummax", "cummin", "argmax", "argmin"),
    *("sign", "sgn", "round", "floor", "ceil", "trunc", "fix", "frac", "fmod", "remainder"),
    *("floor_divide", "abs", "copysign", "topk", "sort", "argsort", "kthvalue", "median"),
}


@dataclass(frozen=True)
class Call:
    """Of a function of PyTorch."""

    name: str
    line: str = field(compare=False)  # of the module's own code


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
                calls.append(Call(str(getattr(function, "__name__", "")), users_line()))
            return function(*args, **kwargs or {})

    with Listing():
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
    choices = [each for each in plain if each.name.strip("_") in _CHOICES]
    line = _line_of_missing(choices, recorded)
    if line:
        raise ExportError(f"{line}: the way through the module depends on whether it is recorded")
