# SPDX-License-Identifier: Apache-2.0
"""Notices what a module does with the values of its inputs that no file would do.

A run with tensors of a class of their own, whose results are of it too, shows where values are
read: the way through the module depends on them then. And it shows where a tensor is read after an
in-place operation on another view of it, which torch.onnx does not see.
"""

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
_COPIES = ("tensor", "as_tensor", "asarray")


def _users_line() -> str:
    """Where the module's own code is, below it PyTorch's and this package's."""
    import torch

    own = (
        str(pathlib.Path(torch.__file__).parent) + "/",
        str(pathlib.Path(__file__).parent) + "/",
    )
    frames = [f for f in traceback.extract_stack() if not f.filename.startswith(own)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "the module"


def _tensors_in(arguments: Any) -> list[Any]:
    import torch

    if isinstance(arguments, torch.Tensor):
        return [arguments]
    if isinstance(arguments, dict):
        arguments = list(arguments.values())
    if isinstance(arguments, (tuple, list)):
        return [each for part in arguments for each in _tensors_in(part)]
    return []


def _memory_of(tensor: Any) -> int:
    storage = getattr(tensor, "untyped_storage", tensor.storage)()
    return int(storage.data_ptr())


class _Views:
    """Which tensors share memory, and know of the last in-place operation on it."""

    def __init__(self) -> None:
        self.writes: dict[int, int] = {}  # by memory
        self.parents: dict[int, Any] = {}  # by id: the tensor that a view indexes
        self.known: dict[int, int] = {}  # by id: the writes to its memory that a tensor knows of
        self.kept: list[Any] = []  # so that neither ids nor memory are used again

    def is_stale(self, tensor: Any) -> bool:
        writes = self.writes.get(_memory_of(tensor), 0)
        return self.known.get(id(tensor), 0) < writes

    def note_write(self, tensor: Any) -> None:
        """torch.onnx hands it on to the tensors that this one is a part of by indices."""
        memory = _memory_of(tensor)
        self.writes[memory] = self.writes.get(memory, 0) + 1
        each = tensor
        while each is not None:
            self.known[id(each)] = self.writes[memory]
            self.kept.append(each)
            each = self.parents.get(id(each))

    def note_result(self, result: Any, name: str, arguments: list[Any]) -> None:
        memory = _memory_of(result)
        for each in arguments:
            if each is result or _memory_of(each) != memory:
                continue
            self.known[id(result)] = self.writes.get(memory, 0)
            if name == "__getitem__":
                self.parents[id(result)] = each
            self.kept += [result, each]


@contextlib.contextmanager
def watched_tensors() -> Iterator[Any]:
    """A class of tensors whose results are of it too. Errors: ExportError, by line, where their
    values are read, or stand in another view of what an in-place operation has changed."""
    import torch
    from torch.overrides import TorchFunctionMode

    problems: list[str] = []
    views = _Views()
    changed: list[tuple[Any, type]] = []  # tensors that took values, and what they were before

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

    def note(problem: str) -> None:
        if not problems:
            problems.append(f"{_users_line()}: {problem}")

    def note_reads(name: str, args: Any, kwargs: Any) -> None:
        way = "the way through the module depends on values"
        if name in _READS:
            note(f"{name} reads values: {way}")
        if is_sized_by_values(name, args):
            note(f"{name} gives as many as values say: {way}")
        if name.startswith("embedding") and kwargs.get("max_norm") is not None:
            note("max_norm changes weights as they are looked up: scale them before")

    def note_memory(name: str, result: Any, given: list[tuple[Any, int]]) -> None:
        tensors = [each for each, _ in given]
        written = [each for each, version in given if each._version != version]
        stale = [each for each in tensors if isinstance(each, Watched) and views.is_stale(each)]
        results = _tensors_in(result)
        if stale and (results or written or name in _READS) and name != "__get__":
            note(
                f"{name} reads what an in-place operation on another view has changed, which "
                "torch.onnx does not see: write it without"
            )
        for each in written[:1]:
            views.note_write(each)
            if not isinstance(each, Watched):
                changed.append((each, type(each)))
                each.__class__ = Watched
        for each in results:
            views.note_result(each, name, tensors)

    class Watched(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name, kwargs = getattr(function, "__name__", ""), kwargs or {}
            with torch._C.DisableTorchFunction():
                note_reads(name, args, kwargs)
                tensors = _tensors_in([args, kwargs])
                given = [(each, each._version) for each in tensors if not each.is_inference()]
            result = super().__torch_function__(function, types, args, kwargs)
            with torch._C.DisableTorchFunction():
                note_memory(name, result, given)
            return result

    class Copies(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = function(*args, **(kwargs or {}))
            is_copy = getattr(function, "__name__", "") in _COPIES
            if is_copy and any(isinstance(each, Watched) for each in _tensors_in(list(args))):
                return result.as_subclass(Watched)
            return result

    try:
        with Copies():
            yield Watched
    finally:
        for each, kind in reversed(changed):
            each.__class__ = kind
    if problems:
        raise ExportError(problems[0])
