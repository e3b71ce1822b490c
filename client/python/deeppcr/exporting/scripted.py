# SPDX-License-Identifier: Apache-2.0
"""Scripted and traced functions and modules, into which no watch of tensors sees: their graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

# Operations whose results may be in the memory of their first argument.
_VIEWS = {
    *("alias", "as_strided", "chunk", "contiguous", "detach", "diagonal", "expand", "expand_as"),
    *("flatten", "hsplit", "vsplit", "dsplit", "movedim", "moveaxis", "narrow", "permute", "ravel"),
    *("real", "imag", "reshape", "reshape_as", "select", "slice", "split", "split_with_sizes"),
    *("squeeze", "swapaxes", "swapdims", "t", "tensor_split", "to", "type_as", "transpose"),
    *("unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as", "numpy_T", "mT", "H"),
    *("float", "data", "ListUnpack", "TupleUnpack", "__getitem__"),
}


def tensors_in(arguments: Any) -> list[Any]:
    """The tensors among the arguments of a function, also in lists."""
    import torch

    if isinstance(arguments, torch.Tensor):
        return [arguments]
    if isinstance(arguments, dict):
        arguments = list(arguments.values())
    if isinstance(arguments, (tuple, list)):
        return [each for part in arguments for each in tensors_in(part)]
    return []


def _nodes_of(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes_of(inner)


def reads_changed_view(graph: Any) -> bool:
    """Whether a graph reads a tensor after an in-place operation on another view of it."""
    roots: dict[str, str] = {}  # by the name of a value: that of what it is a view of
    stale: set[str] = set()

    def root_of(name: str) -> str:
        return roots.get(name, name)

    for node in _nodes_of(graph):
        given = [each.debugName() for each in node.inputs()]
        made = [each.debugName() for each in node.outputs()]
        name = node.kind().split("::")[-1]
        is_in_place = name.endswith("_") and not name.endswith("__")
        is_view = name in _VIEWS
        if not is_view and any(each in stale for each in given):
            return True
        if not given or not (is_view or is_in_place):
            continue
        roots |= {each: root_of(given[0]) for each in made}
        if is_in_place:
            family = {each for each in (*roots, given[0]) if root_of(each) == root_of(given[0])}
            stale |= (family | {root_of(given[0])}) - {given[0], *made}
        elif given[0] in stale:
            stale |= set(made)
    return any(each.debugName() in stale for each in graph.outputs())


@contextlib.contextmanager
def scripted_functions_dispatch() -> Iterator[None]:
    """Has scripted functions ask the classes of tensors for `__torch_function__`, as PyTorch's own
    and scripted methods do: tensors of other classes go through them unseen."""
    import torch
    from torch.overrides import handle_torch_function, has_torch_function

    kind = torch.jit.ScriptFunction
    own = kind.__call__

    def called(function: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = tensors_in([args, kwargs])

        def scripted(*args: Any, **kwargs: Any) -> Any:
            if has_torch_function(tensors):
                return handle_torch_function(scripted, tensors, *args, **kwargs)
            return own(function, *args, **kwargs)

        scripted.inlined_graph = function.inlined_graph  # type: ignore[attr-defined]
        return scripted(*args, **kwargs)

    kind.__call__ = called
    try:
        yield
    finally:
        kind.__call__ = own
