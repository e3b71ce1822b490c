# SPDX-License-Identifier: Apache-2.0
"""torch.fx's recording of a network, in which sizes are numbers: those of its example.

A network may so branch, loop and assert by shapes. torch.fx alone has no number where a network
asks for one. Sizes that depend on values are refused: those of other inputs are looked at too.
"""

from __future__ import annotations

import builtins
import contextlib
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from deeppcr.exporting.precision import widened
from deeppcr.exporting.report import ExportError, first_line

# What of a tensor does not depend on its values.
_ATTRIBUTES = {
    *("shape", "ndim", "device", "layout", "is_cuda", "is_sparse", "is_quantized"),
    *("requires_grad", "itemsize", "nbytes"),
}
_METHODS = {
    *("size", "dim", "ndimension", "numel", "nelement", "stride", "element_size"),
    *("is_floating_point", "is_complex", "is_contiguous", "get_device"),
}
_VIEWS = {"T", "mT"}
# Statements as `z += y`, which change a tensor where it has them, and whoever else has it.
IN_PLACE_OPERATORS = (
    *("iadd", "isub", "imul", "itruediv", "ipow", "ifloordiv", "imod"),
    *("iand", "ior", "ixor", "ilshift", "irshift"),
)


def _is_of_torch(hook: Any) -> bool:
    """Whether it is one as weight_norm's, which computes weights."""
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return str(module).startswith("torch.")


def _sizes(value: Any) -> Any:
    """What of a value has to be the same whatever the input is, where a network asks for sizes."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    if isinstance(value, (tuple, list)):
        return [_sizes(each) for each in value]
    return value


def _others_than(example: Any) -> list[Any]:
    """Inputs whose values differ from the example's in sign, size and number of ties."""
    import torch

    generator = torch.Generator().manual_seed(4)
    noise, exponents = torch.randn(2, *example.shape, generator=generator).to(example.dtype)
    return [torch.zeros_like(example), torch.ones_like(example), noise * 10 ** (2 * exponents)]


@contextlib.contextmanager
def _taken_for_tensors(kind: type) -> Iterator[None]:
    """Has isinstance say of what is of a class that it is a tensor, as a network may ask.

    A property `__class__` would have PyTorch's own C++ take it for one too, and crash.
    """
    import torch

    plain, tensor = builtins.isinstance, torch.empty(0)

    def with_tensors(value: Any, kinds: Any) -> bool:
        return plain(value, kinds) or (type(value) is kind and plain(tensor, kinds))

    builtins.isinstance = with_tensors
    try:
        yield
    finally:
        builtins.isinstance = plain


def sized_tracer(example: Any) -> Any:
    """A torch.fx.Tracer of networks of one input, of which this is one, in double."""
    import torch
    import torch.fx

    inputs = [example, *_others_than(example)]

    class Sized(torch.fx.Proxy):  # type: ignore[misc]
        __array_ufunc__ = None  # so that NumPy's scalars leave operations to it

        def __getattr__(self, name: str) -> Any:
            if name in _ATTRIBUTES or name in _METHODS:
                return getattr(self.tracer.value_of(self.node), name)
            if name == "dtype":
                # That of the server, by which the network has to find its way.
                dtype = self.tracer.value_of(self.node).dtype
                return torch.float32 if dtype == torch.float64 else dtype
            if name in ("to", "type_as"):
                return self._cast
            if name in ("_is_param", "_is_buffer"):
                return False  # which PyTorch asks of what might be a torch.nn.Parameter
            if name == "data":
                return self.detach()  # which every exporter records
            if name in _VIEWS:
                return self.tracer.create_proxy("call_function", getattr, (self, name), {})
            return super().__getattr__(name)

        def _cast(self, *args: Any, **kwargs: Any) -> Any:
            """As another tensor: its kind alone, so that no layer has a weight just for it."""

            def kind_of(each: Any) -> Any:
                is_tensor = isinstance(each, (torch.Tensor, torch.fx.Proxy))
                return each.dtype if is_tensor else each

            others = [kwargs.pop("other")] if "other" in kwargs else []
            given = [kind_of(each) for each in (*args, *others)]
            return self.tracer.create_proxy("call_method", "to", (self, *given), kwargs)

        def __len__(self) -> int:
            return len(self.tracer.value_of(self.node))

        def __iter__(self) -> Iterator[Any]:
            return (self[i] for i in range(len(self)))

    def in_place(operation: Any) -> Any:
        def method(self: Any, other: Any) -> Any:
            return self.tracer.create_proxy("call_function", operation, (self, other), {})

        return method

    for name in IN_PLACE_OPERATORS:
        if hasattr(torch.Tensor, f"__{name}__"):
            setattr(Sized, f"__{name}__", in_place(getattr(operator, name)))

    class Tracer(torch.fx.Tracer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._values: list[dict[Any, Any]] = [{} for _ in inputs]
            self._last: Any = None  # of the nodes that have values
            self._is_evaluating = False

        def proxy(self, node: Any) -> Any:
            return Sized(node, self)

        def trace(self, root: Any, concrete_args: Any = None) -> Any:
            with _taken_for_tensors(Sized):
                return super().trace(root, concrete_args)

        def create_args_for_root(self, root_fn: Any, *_: Any, **__: Any) -> Any:
            """Arguments beside the input have their defaults, whatever the signature is."""
            return root_fn, [self.root, self.create_proxy("placeholder", "x", (), {})]

        def create_arg(self, a: Any) -> Any:
            if type(a) is Sized:
                return a.node  # before it is taken for the tensor that it says it is
            return super().create_arg(a.item() if isinstance(a, np.generic) else a)

        def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
            """Hooks are recorded with what they are of, as those of other layers may differ."""
            hooks = [*m._forward_hooks.values(), *m._forward_pre_hooks.values()]
            is_leaf: bool = super().is_leaf_module(m, module_qualified_name)
            if "forward" in vars(m):
                return False  # that of this one, and of no other
            # PyTorch's own that are made of others, as attention, branch by values.
            is_one = next(m.children(), None) is None
            return is_leaf and not (is_one and not all(_is_of_torch(hook) for hook in hooks))

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
            """What a node is for the example. Errors: ExportError if its size depends on values."""
            with self._evaluating():
                each = next(iter(self.graph.nodes)) if self._last is None else self._last.next
                while each.op != "root":
                    for given, values in zip(inputs, self._values, strict=True):
                        values[each] = self._evaluate(each, given, values)
                    self._last, each = each, each.next
            value, *others = [values[node] for values in self._values]
            if any(_sizes(other) != _sizes(value) for other in others):
                raise ExportError(f"{node.name}: the way through the network depends on values")
            return value

        def _evaluate(self, node: Any, given: Any, values: dict[Any, Any]) -> Any:
            if node.op == "placeholder":
                return given.clone()  # which a network may change
            if node.op == "get_attr":
                value = self.root
                for part in node.target.split("."):
                    value = getattr(value, part)
                # Tensors that are neither weights nor buffers have stayed behind.
                is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
                return value.double() if is_float else value
            args = widened(torch.fx.map_arg(node.args, values.__getitem__))
            kwargs = widened(torch.fx.map_arg(node.kwargs, values.__getitem__))
            try:
                if node.op == "call_module":
                    return self.root.get_submodule(node.target)(*args, **kwargs)
                if node.op == "call_method":
                    return getattr(args[0], node.target)(*args[1:], **kwargs)
                return node.target(*args, **kwargs)
            except Exception as error:  # whatever an operation does with what it is given
                raise ExportError(
                    f"{node.name}: {type(error).__name__}: {first_line(error)}"
                ) from error

    return Tracer()
