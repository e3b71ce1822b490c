# SPDX-License-Identifier: Apache-2.0
"""Scripted and traced functions and modules, into which no watch of tensors sees: their graphs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from deeppcr.exporting.tensors import tensors_in


def _nodes_of(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes_of(inner)


def _written_by(node: Any) -> list[Any]:
    """The values that an operation writes into."""
    import torch

    schema = node.schema()
    if schema == "(no schema)":
        return []
    arguments = torch._C.parse_schema(schema).arguments
    return [
        value
        for value, argument in zip(node.inputs(), arguments, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def changes_another_view(graph: Any) -> bool:
    """Whether a graph writes into what another of its values may share memory with."""
    aliases, nodes = graph.alias_db(), list(_nodes_of(graph))
    tensors = {
        value.debugName(): value
        for node in nodes
        for value in (*node.inputs(), *node.outputs())
        if "Tensor" in str(value.type())
    }
    for node in nodes:
        for into in _written_by(node):
            same = {into.debugName(), *(each.debugName() for each in node.outputs())}
            others = (value for name, value in tensors.items() if name not in same)
            if any(aliases.may_contain_alias(into, each) for each in others):
                return True
    return False


@contextlib.contextmanager
def scripted_functions_by(call: Callable[[Any, Any, Any, Any], Any]) -> Iterator[None]:
    """Has scripted functions be called by call(own, function, args, kwargs), where own(function,
    *args, **kwargs) is what calls them otherwise."""
    import torch

    kind = torch.jit.ScriptFunction
    own = kind.__call__
    kind.__call__ = lambda function, *args, **kwargs: call(own, function, args, kwargs)
    try:
        yield
    finally:
        kind.__call__ = own


def scripted_functions_dispatch() -> contextlib.AbstractContextManager[None]:
    """Has scripted functions ask the classes of tensors for `__torch_function__`, as PyTorch's own
    and scripted methods do: tensors of other classes go through them unseen."""
    from torch.overrides import handle_torch_function, has_torch_function

    def call(own: Any, function: Any, args: Any, kwargs: Any) -> Any:
        tensors = tensors_in([args, kwargs])

        def scripted(*args: Any, **kwargs: Any) -> Any:
            if has_torch_function(tensors):
                return handle_torch_function(scripted, tensors, *args, **kwargs)
            return own(function, *args, **kwargs)

        scripted.inlined_graph = function.inlined_graph  # type: ignore[attr-defined]
        return scripted(*args, **kwargs)

    return scripted_functions_by(call)
