# SPDX-License-Identifier: Apache-2.0
"""Notices what a module does with the values of its inputs that no file would do.

A run with tensors of a class of their own, whose results are of it too, shows where values are
read: the way through the module depends on them then. And it shows where a tensor is read after an
in-place operation on another view of it, which torch.onnx does not see.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from deeppcr.exporting.report import ExportError, is_called_by_torch, users_line
from deeppcr.exporting.scripted import changes_another_view
from deeppcr.exporting.tensors import memory_of, tensors_in

# Functions of tensors whose results are no tensors, and depend on values.
_READS = {
    *("__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__"),
    *("item", "tolist", "numpy", "__array__", "equal", "allclose", "is_nonzero", "__format__"),
    *("__repr__", "__dlpack__", "storage", "untyped_storage"),
    *("apply_", "map_", "map2_"),  # by functions of Python, which no recorder sees
}
# Functions that raise for some values, which a module may catch.
_RAISE_BY_VALUES = {
    *("cholesky", "linalg_cholesky", "inverse", "linalg_inv", "linalg_solve", "linalg_eigh"),
    *("linalg_eigvalsh", "linalg_svd", "svd", "linalg_lstsq", "linalg_qr"),
}
# Arguments that PyTorch takes the number of a tensor for, unseen.
_NUMBERS = ("eps", "nan", "posinf", "neginf", "dropout_p")
# Functions whose results are as large as values say.
_SIZED_BY_VALUES = {
    *("nonzero", "argwhere", "masked_select", "bincount", "combinations"),
    *("unique", "_unique", "_unique2", "unique_dim", "unique_consecutive"),
}
_COPIES = ("tensor", "as_tensor", "asarray")


def _reads_of(name: str, args: Any, tensors: list[Any]) -> list[Any]:
    """The tensors of whose elements a function makes something."""
    if name.endswith("_like") or name.startswith("new_"):
        return []
    return tensors_in(list(args[:1])) if name.endswith("_as") else tensors


def _index_of(args: Any) -> tuple[Any, ...]:
    """What an element is asked for or set by."""
    return args[1] if isinstance(args[1], tuple) else (args[1],)


class _Views:
    """Which tensors know of the last in-place operation on each of their elements."""

    def __init__(self) -> None:
        self.count = 0
        self.stamps: dict[int, Any] = {}  # by memory: the last operation on each element
        self.parents: dict[int, Any] = {}  # by id: the tensor whose in-place result it is
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
        stamps = self.stamps.get(memory_of(tensor))
        if stamps is None or tensor.numel() == 0:
            return False
        places = self._places(tensor)
        last = int(stamps[places[places < len(stamps)]].max(initial=0))
        return self.known.get(id(tensor), 0) < last

    def note_write(self, tensor: Any) -> None:
        memory = memory_of(tensor)
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
        memory = memory_of(result)
        for each in tensors:
            if each is result or memory == 0 or memory_of(each) != memory:
                continue
            self.known[id(result)] = max(self.known.get(id(result), 0), self.known.get(id(each), 0))
            if any(each is parent for parent in parents):
                self.parents[id(result)] = each
            self.kept += [result, each]


@contextlib.contextmanager
def watched_tensors(*, data_is_recorded: bool) -> Iterator[Any]:
    """A class of tensors whose results are of it too. Errors: ExportError, by line, where their
    values are read, or stand in another view of what an in-place operation has changed.

    data_is_recorded: whether the recorder takes `.data` for what it is, and for no constant.
    """
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
            masks = (torch.bool, torch.uint8)
            return any(
                isinstance(each, Watched) and each.dtype in masks for each in _index_of(args)
            )
        return name in _SIZED_BY_VALUES

    def note(problem: str) -> None:
        if not problems:
            problems.append(f"{users_line()}: {problem}")

    def note_data(function: Any) -> None:
        if function == torch.Tensor.data.__set__:
            note("data that is set is not seen by the recorder: name what is computed instead")
        if function == torch.Tensor.data.__get__ and not data_is_recorded:
            note("torch.onnx takes .data for a constant: use detach()")

    def note_script(function: Any) -> None:
        graph = getattr(function, "inlined_graph", None)
        if graph is not None and changes_another_view(graph):
            note(
                "what is scripted changes a tensor in place of which there is another view, which "
                "torch.onnx does not see: write it without"
            )

    def note_reads(name: str, args: Any, kwargs: Any) -> None:
        way = "the way through the module depends on values"
        # What torch.compile has left in place compares where tensors are.
        if name in _READS and not (name == "untyped_storage" and is_called_by_torch()):
            note(f"{name} reads values: {way}")
        if name in _RAISE_BY_VALUES and any(isinstance(each, Watched) for each in args[:1]):
            note(f"{name} raises for some values: {way} where that is caught")
        numbers = [kwargs.get(each) for each in _NUMBERS]
        if name.strip("_") == "pad":
            numbers += [kwargs.get("value"), *args[3:]]
        if any(isinstance(each, Watched) for each in numbers):
            note(f"{name} reads values for a number that it takes: {way}")
        if is_sized_by_values(name, args):
            note(f"{name} gives as many as values say: {way}")
        if name.startswith("embedding") and kwargs.get("max_norm") is not None:
            note("max_norm changes weights as they are looked up: scale them before")
        if name == "__setitem__" and any(each is None for each in _index_of(args)):
            note("torch.onnx does not see what is set by an index with a new axis: leave it out")

    def note_memory(
        name: str, args: Any, kwargs: Any, result: Any, given: list[tuple[Any, int]]
    ) -> None:
        tensors = [each for each, _ in given]
        written = [each for each, version in given if each._version != version]
        # Views of one tensor have one version.
        if kwargs.get("out") is not None:
            written = tensors_in(kwargs["out"])
        elif not name.startswith("_foreach_"):
            written = written[:1]
        stale = [each for each in _reads_of(name, args, tensors) if views.is_stale(each)]
        results = tensors_in(result)
        if stale and (results or written or name in _READS):
            note(
                f"{name} reads what an in-place operation on another view has changed, which "
                "torch.onnx does not see: write it without"
            )
        for each in written:
            views.note_write(each)
            watch(each)
        # In-place operations give another view of all that they have written. To other views, as
        # slices, torch.onnx hands nothing on: not even to what they are a part of.
        for each in results:
            views.note_result(each, tensors, written)
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
                note_data(function)
                note_script(function)
                note_reads(name, args, kwargs)
                tensors = tensors_in([args, kwargs])
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
                tensors = tensors_in([args, kwargs])
                for each in tensors:
                    if views.stamps.get(memory_of(each)) is not None:
                        watch(each)
                is_watched = any(isinstance(each, Watched) for each in tensors)
                if is_watched:
                    note_data(function)
            result = function(*args, **kwargs)
            is_copy = is_watched and getattr(function, "__name__", "") in _COPIES
            return result.as_subclass(Watched) if is_copy else result

    try:
        with All():
            yield Watched
    finally:
        for each, kind in reversed(changed):
            each.__class__ = kind
    if problems:
        raise ExportError(problems[0])
