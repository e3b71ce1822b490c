# SPDX-License-Identifier: Apache-2.0
"""Notices where a module reads the values of what it is given: its way depends on them then."""

from __future__ import annotations

import contextlib
import functools
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
_first_read: list[str] = []


def _users_line() -> str:
    """Where the module's own code is, below it PyTorch's and this package's."""
    import torch

    own = (
        str(pathlib.Path(torch.__file__).parent) + "/",
        str(pathlib.Path(__file__).parent) + "/",
    )
    frames = [f for f in traceback.extract_stack() if not f.filename.startswith(own)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "the module"


@functools.cache
def watched_tensor() -> Any:
    """A class of tensors whose results are of it too."""
    import torch

    class Watched(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = getattr(function, "__name__", "")
            if name in _READS and not _first_read:
                _first_read.append(f"{_users_line()}: {name} reads values")
            return super().__torch_function__(function, types, args, kwargs or {})

    return Watched


@contextlib.contextmanager
def watching_values() -> Iterator[None]:
    """Refuses a module that reads values of tensors of that class meanwhile, by its line."""
    _first_read.clear()
    yield
    if _first_read:
        raise ExportError(f"{_first_read[0]}: the way through the module depends on values")
