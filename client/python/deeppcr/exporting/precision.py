# SPDX-License-Identifier: Apache-2.0
"""What PyTorch computes in: the precision of the server, or double as a reference."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from deeppcr.exporting.tracing import copied


def widened(arguments: Any) -> Any:
    """Arguments of an operation with double where it names the precision of the server."""
    import torch

    if arguments is torch.float32:
        return torch.float64
    if type(arguments) is tuple:  # and none with names, as what max() gives
        return tuple(widened(each) for each in arguments)
    if isinstance(arguments, list):
        return [widened(each) for each in arguments]
    if isinstance(arguments, dict):
        return {key: widened(each) for key, each in arguments.items()}
    return arguments


@contextlib.contextmanager
def floats_by_default() -> Iterator[None]:
    """Has PyTorch make what it is asked for in the server's precision, whatever it was set to."""
    import torch

    chosen = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(chosen)


class _Widening(threading.local):
    depth = 0  # of this thread, in floats_are_double


_widening = _Widening()
_widening_threads = 0
_widening_lock = threading.Lock()
_narrow_float: Any = None  # PyTorch's own, while there are such threads


def _float(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    import torch

    narrow = _narrow_float
    if _widening.depth or narrow is None:
        return torch.Tensor.double(tensor, *args, **kwargs)
    return narrow(tensor, *args, **kwargs)


def _forget_other_threads() -> None:
    """A fork has none of them, and what they held it would wait for."""
    global _widening_lock, _widening_threads
    _widening_lock = threading.Lock()
    _widening_threads = min(_widening.depth, 1)
    if _widening_threads == 0 and _narrow_float is not None:
        import torch

        torch.Tensor.float = _narrow_float


os.register_at_fork(after_in_child=_forget_other_threads)


@contextlib.contextmanager
def floats_are_double() -> Iterator[None]:
    """Has `x.float()` in a module keep the precision that is asked for, in this thread."""
    import torch

    global _widening_threads, _narrow_float
    with _widening_lock:
        if _widening_threads == 0:
            _narrow_float = torch.Tensor.float
            torch.Tensor.float = _float
        _widening_threads += 1
    _widening.depth += 1
    try:
        yield
    finally:
        _widening.depth -= 1
        with _widening_lock:
            _widening_threads -= 1
            if _widening_threads == 0:
                torch.Tensor.float = _narrow_float


def _has_floats(arguments: Any) -> bool:
    """Whether there is a tensor of floats among the arguments of an operation."""
    import torch

    if isinstance(arguments, torch.Tensor):
        return bool(arguments.is_floating_point() or arguments.is_complex())
    if isinstance(arguments, dict):
        return any(_has_floats(each) for each in arguments.values())
    return isinstance(arguments, (tuple, list)) and any(_has_floats(each) for each in arguments)


def _with_doubles(arguments: Any) -> Any:
    """The arguments of an operation with tensors of integers in double."""
    import torch

    if isinstance(arguments, torch.Tensor):
        is_whole = not _has_floats(arguments) and arguments.dtype != torch.bool
        return arguments.double() if is_whole else arguments
    if type(arguments) in (tuple, list):
        return type(arguments)(_with_doubles(each) for each in arguments)
    return arguments


def _with_epsilon(
    input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> dict[str, Any]:
    """Arguments of rms_norm with the epsilon that it has in the precision of the server."""
    import torch

    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return {"input": input, "normalized_shape": normalized_shape, "weight": weight, "eps": eps}


@contextlib.contextmanager
def everything_is_double() -> Iterator[None]:
    """Has a module whose weights and inputs are double compute in double all through, in this
    thread: also what it makes of numbers and integers, as frequencies and times, and what it asks
    for in the server's precision.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class Doubles(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            args, kwargs = widened(args), widened(kwargs or {})
            name = getattr(function, "__name__", "")
            if name == "rms_norm":
                kwargs = _with_epsilon(*args, **kwargs)
                args = ()
            result = function(*args, **kwargs)
            is_narrow = isinstance(result, torch.Tensor) and result.dtype == torch.float32
            if not is_narrow or _has_floats((args, kwargs)):
                return result
            if name.startswith(("rand", "normal", "bernoulli")):
                return result.double()  # another draw were other numbers
            by_default = {} if "dtype" in kwargs else {"dtype": torch.float64}
            for more in ({}, by_default):
                with contextlib.suppress(TypeError, RuntimeError):
                    wide = function(*_with_doubles(args), **kwargs, **more)
                    if wide.dtype == torch.float64:
                        return wide
            return result.double()

    with floats_are_double(), Doubles():
        yield


def cast_attributes(module: Any, dtype: Any) -> None:
    """Gives floats that are neither weights nor buffers, and so stay behind, this precision."""
    import torch

    for each in module.modules():
        for name, value in list(vars(each).items()):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                setattr(each, name, value.to(dtype))


def in_double(module: Any, call: Callable[[Any], Any]) -> Any:
    """What `call` makes of a copy of a module in double; None where that is no tensor of double,
    as of a module that asks for the precision that it was written for."""
    import torch

    for context in (everything_is_double, floats_are_double):
        try:
            wide = copied(module).double()
            cast_attributes(wide, torch.float64)
            with context():
                result = call(wide)
        except Exception:  # whatever a module does with what it was not written for
            continue
        if result.dtype == torch.float64:
            return result
    return None
