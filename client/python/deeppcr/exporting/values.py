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

import numpy as np

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
    """Where its elements are; 0 for a tensor that has none of its own."""
    try:
        storage = getattr(tensor, "untyped_storage", tensor.storage)()
        return int(storage.data_ptr())
    except (NotImplementedError, RuntimeError):
        return 0


def _reads_of(name: str, args: Any, tensors: list[Any]) -> list[Any]:
    """The tensors of whose elements a function makes something."""
    if name.endswith("_like") or name.startswith("new_"):
        return []
    return _tensors_in(list(args[:1])) if name.endswith("_as") else tensors


def _is_part(name: str, args: Any) -> bool:
    """Whether torch.onnx hands on what is done to the result to what it is taken from."""
    if name == "select":
        return True
    index = args[1] if name == "__getitem__" else None
    parts = index if isinstance(index, tuple) else (index,)
    return all(isinstance(each, (slice, int)) for each in parts)


class _Views:
    """Which tensors know of the last in-place operation on each of their elements."""

    def __init__(self) -> None:
        self.count = 0
        self.stamps: dict[int, Any] = {}  # by memory: the last operation on each element
        self.parents: dict[int, Any] = {}  # by id: the tensor that a view is a part of
        self.known: dict[int, int] = {}  # by id: the last operation that a tensor knows of
        self.kept: list[Any] = []  # so that neither ids nor memory are used again

    def _places(self, tensor: Any) -> Any:
        """Where in its memory the elements of a tensor are."""
        import torch

        size, stride, offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        steps = [(n - 1) * step for n, step in zip(size, stride, strict=True)]
        end = offset + sum(steps) + 1
        return torch.arange(end).as_strided(size, stride, offset).reshape(-1).numpy()

    def is_stale(self, tensor: Any) -> bool:
        stamps = self.stamps.get(_memory_of(tensor))
        if stamps is None or tensor.numel() == 0:
            return False
        places = self._places(tensor)
        last = int(stamps[places[places < len(stamps)]].max(initial=0))
        return self.known.get(id(tensor), 0) < last

    def note_write(self, tensor: Any) -> None:
        memory = _memory_of(tensor)
        if memory == 0 or tensor.numel() == 0:
            return
        parents = []
        parent = self.parents.get(id(tensor))
        while parent is not None and not self.is_stale(parent):
            parents.append(parent)
            parent = self.parents.get(id(parent))
        places = self._places(tensor)
        stamps = self.stamps.get(memory, np.zeros(0, np.int64))
        stamps = np.pad(stamps, (0, max(0, int(places.max()) + 1 - len(stamps))))
        self.count += 1
        stamps[places] = self.count
        self.stamps[memory] = stamps
        for each in (tensor, *parents):
            self.known[id(each)] = self.count
            self.kept.append(each)

    def note_result(self, result: Any, tensors: list[Any], parents: list[Any]) -> None:
        memory = _memory_of(result)
        for each in tensors:
            if each is result or memory == 0 or _memory_of(each) != memory:
                continue
            self.known[id(result)] = max(self.known.get(id(result), 0), self.known.get(id(each), 0))
            if any(each is parent for parent in parents):
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

    def note_memory(
        name: str, args: Any, kwargs: Any, result: Any, given: list[tuple[Any, int]]
    ) -> None:
        tensors = [each for each, _ in given]
        written = [each for each, version in given if each._version != version]
        # Views of one tensor have one version.
        if kwargs.get("out") is not None:
            written = _tensors_in(kwargs["out"])
        elif not name.startswith("_foreach_"):
            written = written[:1]
        stale = [each for each in _reads_of(name, args, tensors) if views.is_stale(each)]
        results = _tensors_in(result)
        if stale and (results or written or name in _READS):
            note(
                f"{name} reads what an in-place operation on another view has changed, which "
                "torch.onnx does not see: write it without"
            )
        for each in written:
            views.note_write(each)
            watch(each)
        # In-place operations give another view of all that they have written.
        parents = [*written, *_tensors_in(list(args[:1]))] if _is_part(name, args) else written
        for each in results:
            views.note_result(each, tensors, parents)
            if isinstance(each, Watched) and each.is_inference():
                note("inference_mode hides in-place operations: use no_grad")

    def watch(tensor: Any) -> None:
        """Has a tensor be a watched one until the end."""
        if not isinstance(tensor, Watched):
            changed.append((tensor, type(tensor)))
            tensor.__class__ = Watched

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
                note_memory(name, args, kwargs, result, given)
            return result

    class All(TorchFunctionMode):  # type: ignore[misc]
        """Watches what tensors of other classes take from watched ones."""

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            with torch._C.DisableTorchFunction():
                tensors = _tensors_in([args, kwargs])
                for each in tensors:
                    if views.stamps.get(_memory_of(each)) is not None:
                        watch(each)
            result = function(*args, **kwargs)
            name = getattr(function, "__name__", "")
            if any(isinstance(each, Watched) for each in tensors):
                return result.as_subclass(Watched) if name in _COPIES else result
            if _is_part(name, args):
                with torch._C.DisableTorchFunction():
                    for each in _tensors_in(result):
                        views.note_result(each, tensors, tensors[:1])
            return result

    try:
        with All():
            yield Watched
    finally:
        for each, kind in reversed(changed):
            each.__class__ = kind
    if problems:
        raise ExportError(problems[0])
