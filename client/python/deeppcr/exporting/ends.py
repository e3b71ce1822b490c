# SPDX-License-Identifier: Apache-2.0
"""The affine layers before and after the blocks of a stack, whatever they are made of."""

from __future__ import annotations

from typing import Any

from deeppcr.exporting.activations import activation_name
from deeppcr.exporting.recording import Part, Recorded


def affine_layer(part: Part, width: int) -> tuple[Any, Any] | None:
    """(weight [out, width], bias [out]) if the part is affine."""
    import torch

    bias = part(torch.zeros(1, width).double())[0]
    weight = part(torch.eye(width).double()).t() - bias[:, None]
    if not torch.isfinite(weight).all():
        return None
    generator = torch.Generator().manual_seed(2)
    scales = torch.tensor([[1.0], [1.0], [30.0], [0.01]])
    x = (scales * torch.randn(4, width, generator=generator)).double()
    size = x.abs() @ weight.abs().t() + bias.abs() + 1e-300
    if ((part(x) - x @ weight.t() - bias).abs() > 1e-9 * size).any():
        return None
    return weight, bias


def input_layer(recorded: Recorded, end: int, into: Any) -> tuple[Any, Any, str] | None:
    """(weight, bias, activation) of what comes before the blocks, if it is an input layer."""
    start = recorded.placeholder
    width = recorded.values[start].numel()
    found = affine_layer(Part(recorded, 0, end, start, into), width)
    if found:
        return (*found, "identity")
    # An activation may be the last of its operations.
    before = [node for node in into.all_input_nodes if node not in recorded.constants]
    if into is not recorded.operations[end - 1] or len(before) != 1:
        return None
    activation = Part(recorded, end - 1, end, before[0], into)
    state_dim = recorded.values[into].numel()

    def elementwise(x: Any) -> Any:
        import torch

        rows = torch.nn.functional.pad(x, (0, -len(x) % state_dim)).reshape(-1, state_dim)
        return activation(rows).reshape(-1)[: len(x)]

    name = activation_name(elementwise)
    found = affine_layer(Part(recorded, 0, end - 1, start, before[0]), width)
    return (*found, name) if found and name else None


def is_identity(weight: Any, bias: Any) -> bool:
    import torch

    rows, columns = weight.shape
    return rows == columns and torch.equal(weight, torch.eye(rows).double()) and not bias.any()
