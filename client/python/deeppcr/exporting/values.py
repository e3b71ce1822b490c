# SPDX-License-Identifier: Apache-2.0
"""Notices where a module reads the values of what it is given: its way depends on them then."""

from __future__ import annotations

import contextlib
import pathlib
import traceback
from collections.abc import Iterator
from typing import Any

from deeppcr.exporting.report import ExportError

# Functions of tensors whose results are no tensors, and depend on values.
_READS = {
    *("__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__"),
    *("item", "tolist", "numpy", "__array__", "equal", "allclose", "is_nonzero", "__format__"),
}
# Functions whose results are as large as values say.
_SIZED_BY_VALUES = {
    *("nonzero", "argwhere", "masked_select", "bincount", "combinations"),
    *("unique", "_unique", "_unique2", "unique_dim", "unique_consecutive"),
}


def _users_line() -> str:
    """Where the module's own code is, below it PyTorch's and this package's."""
    import torch

    own = (
        str(pathlib.Path(torch.__file__).parent) + "/",
        str(pathlib.Path(__file__).parent) + "/",
    )
    frames = [f for f in traceback.extract_stack() if not f.filename.startswith(own)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "the module"


@contextlib.contextmanager
def watched_tensors() -> Iterator[Any]:
    """A class of tensors whose results are of it too; who reads their values is refused by line."""
    import torch

    reads: list[str] = []

    def is_sized_by_values(name: str, args: Any) -> bool:
        """Whether the result of an operation is as large as values of watched tensors say."""
        if name == "where":
            return len(args) == 1
        if name == "repeat_interleave":
            return any(isinstance(each, Watched) for each in args[-1:])
        if name == "__getitem__":
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            masks = (torch.bool, torch.uint8)
            return any(isinstance(each, Watched) and each.dtype in masks for each in parts)
        return name in _SIZED_BY_VALUES

    class Watched(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = getattr(function, "__name__", "")
            if name in _READS and not reads:
                reads.append(f"{_users_line()}: {name} reads values")
            if not reads and is_sized_by_values(name, args):
                reads.append(f"{_users_line()}: {name} gives as many as values say")
            return super().__torch_function__(function, types, args, kwargs or {})

    yield Watched
    if reads:
        raise ExportError(f"{reads[0]}: the way through the module depends on values")
