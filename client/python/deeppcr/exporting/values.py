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
    *("item", "tolist", "numpy", "__array__", "equal", "allclose", "is_nonzero"),
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

    class Watched(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = getattr(function, "__name__", "")
            if name in _READS and not reads:
                reads.append(f"{_users_line()}: {name} reads values")
            return super().__torch_function__(function, types, args, kwargs or {})

    yield Watched
    if reads:
        raise ExportError(f"{reads[0]}: the way through the module depends on values")
