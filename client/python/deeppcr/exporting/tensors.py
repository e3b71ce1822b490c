# SPDX-License-Identifier: Apache-2.0
"""The tensors that functions are given, and where they are."""

from __future__ import annotations

from typing import Any


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


def memory_of(tensor: Any) -> int:
    """Where its elements are; 0 for a tensor that has none of its own."""
    try:
        storage = getattr(tensor, "untyped_storage", tensor.storage)()
        return int(storage.data_ptr())
    except (NotImplementedError, RuntimeError):
        return 0
