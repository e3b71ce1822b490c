# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy and tensors of PyTorch to messages and back.

PyTorch is not imported here: whoever has a tensor has it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppcr.errors import InternalError

Floats = npt.NDArray[np.float32]


def is_torch(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _of_torch(tensor: Any) -> Any:
    tensor = tensor.detach().cpu()
    # NumPy has no bfloat16.
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def as_floats(value: Any, name: str) -> Floats:
    """A C-ordered float32 array; float64 and half precision are rounded, integers converted."""
    try:
        array = _of_torch(value) if is_torch(value) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name}: expected an array or a tensor: {error}") from None
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name}: expected real numbers, got {array.dtype}")
    return np.ascontiguousarray(array, dtype="<f4")


def fill(tensor: Any, value: Any, name: str, dims: int) -> None:
    """Writes an array of this many dimensions; one dimension less stands for one sample."""
    array = as_floats(value, name)
    if array.ndim == dims - 1:
        array = array[None]
    if array.ndim != dims:
        raise ValueError(
            f"{name}: expected {dims} dimensions, or {dims - 1} of one sample, got {array.ndim}"
        )
    tensor.shape.extend(array.shape)
    tensor.data = array.tobytes()


def array_of(tensor: Any) -> Floats:
    """A view of the bytes of a reply, which is read-only."""
    try:
        return np.frombuffer(tensor.data, "<f4").reshape(tuple(tensor.shape))
    except ValueError:
        raise InternalError(
            f"bad reply: {len(tensor.data)} bytes for an array of shape {list(tensor.shape)}"
        ) from None
