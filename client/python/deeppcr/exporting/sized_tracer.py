# SPDX-License-Identifier: Apache-2.0
"""torch.fx's recording of a network, in which sizes are numbers: those of its example.

A network may so branch, loop and assert by shapes. torch.fx alone has no number where a network
asks for one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

# What of a tensor does not depend on its values.
_ATTRIBUTES = {"shape", "ndim", "dtype", "device", "layout", "is_cuda"}
_METHODS = {
    *("size", "dim", "ndimension", "numel", "nelement", "stride"),
    *("is_floating_point", "is_complex", "is_contiguous", "get_device"),
}
_VIEWS = {"T", "mT", "data"}


def _is_of_torch(hook: Any) -> bool:
    """Whether it is one as weight_norm's, which computes weights."""
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return str(module).startswith("torch.")


def sized_tracer(example: Any) -> Any:
    """A torch.fx.Tracer of networks of one input, of which this is one."""
    import torch
    import torch.fx

    class Sized(torch.fx.Proxy):  # type: ignore[misc]
        def __getattr__(self, name: str) -> Any:
            if name in _ATTRIBUTES or name in _METHODS:
                return getattr(self.tracer.value_of(self.node), name)
            if name in _VIEWS:
                return self.tracer.create_proxy("call_function", getattr, (self, name), {})
            return super().__getattr__(name)

        def __len__(self) -> int:
            return len(self.tracer.value_of(self.node))

        def __iter__(self) -> Iterator[Any]:
            return (self[i] for i in range(len(self)))

    class Tracer(torch.fx.Tracer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._values: dict[Any, Any] = {}
            self._is_evaluating = False

        def proxy(self, node: Any) -> Any:
            return Sized(node, self)

        def create_args_for_root(self, root_fn: Any, *_: Any, **__: Any) -> Any:
            """Arguments beside the input have their defaults, whatever the signature is."""
            return root_fn, [self.root, self.create_proxy("placeholder", "x", (), {})]

        def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
            """Hooks are recorded with what they are of, as those of other layers may differ."""
            hooks = [*m._forward_hooks.values(), *m._forward_pre_hooks.values()]
            is_leaf: bool = super().is_leaf_module(m, module_qualified_name)
            return is_leaf and all(_is_of_torch(hook) for hook in hooks)

        def call_module(self, m: Any, forward: Any, args: Any, kwargs: Any) -> Any:
            if self._is_evaluating:
                return forward(*args, **kwargs)
            return super().call_module(m, forward, args, kwargs)

        def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
            if self._is_evaluating:
                return attr_val
            return super().getattr(attr, attr_val, parameter_proxy_cache)

        @contextlib.contextmanager
        def _evaluating(self) -> Iterator[None]:
            self._is_evaluating = True
            try:
                yield
            finally:
                self._is_evaluating = False

        def value_of(self, node: Any) -> Any:
            """What a node is for the example."""
            with self._evaluating():
                for each in self.graph.nodes:
                    if each not in self._values:
                        self._values[each] = self._evaluate(each)
            return self._values[node]

        def _evaluate(self, node: Any) -> Any:
            if node.op == "placeholder":
                return example
            if node.op == "get_attr":
                value = self.root
                for part in node.target.split("."):
                    value = getattr(value, part)
                # Tensors that are neither weights nor buffers have stayed behind.
                return value.double() if value.is_floating_point() else value
            args = torch.fx.map_arg(node.args, self._values.__getitem__)
            kwargs = torch.fx.map_arg(node.kwargs, self._values.__getitem__)
            if node.op == "call_module":
                return self.root.get_submodule(node.target)(*args, **kwargs)
            if node.op == "call_method":
                return getattr(args[0], node.target)(*args[1:], **kwargs)
            return node.target(*args, **kwargs)

    return Tracer()
