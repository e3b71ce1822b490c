# SPDX-License-Identifier: Apache-2.0
"""Which functions of PyTorch a module calls, whether it just runs, is watched or recorded."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from deeppcr.exporting.report import ExportError, users_line


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


def check_same_calls(plain: list[Call], others: list[Call], why: str) -> None:
    """Errors: ExportError, by line, where a module that just runs calls something that is not among
    other calls of it, which have not seen the way that it goes then.

    PyTorch 1.13 does not say of all calls for its own tensors, so that those may be fewer.
    """
    missing = collections.Counter(plain) - collections.Counter(others)
    if missing:
        line = next(each.line for each in plain if each in missing)
        raise ExportError(f"{line}: the way through the module depends on {why}")
