# SPDX-License-Identifier: Apache-2.0
"""The affine layers before and after the blocks of a stack, whatever they are made of."""

from __future__ import annotations

from typing import Any

from deeppcr.exporting.activations import activation_name
from deeppcr.exporting.recording import Part, Recorded
from deeppcr.exporting.report import ExportError

_MOST_WEIGHTS = 1 << 28
_PROBED_AT_ONCE = 1 << 22  # values
# What a column is probed with: far above what biases take away of its digits.
_STEP = 2.0**30

# Operations by which a function differs in places that probes may not meet.
_CHOICES = {
    *("where", "masked_fill", "masked_scatter", "clamp", "clip", "clamp_min", "clamp_max"),
    *("eq", "ne", "lt", "le", "gt", "ge", "isclose", "min", "max", "amin", "amax", "minimum"),
    *("maximum", "any", "all", "sign", "median", "sort", "topk", "heaviside", "hardtanh"),
}


def _chooses(part: Part) -> bool:
    names = [each.target for each in part.operations if each.op != "call_module"]
    return any(
        (name if isinstance(name, str) else getattr(name, "__name__", "")).strip("_") in _CHOICES
        for name in names
    )


def _weight_of(part: Part, width: int, bias: Any) -> Any:
    import torch

    if width * len(bias) > _MOST_WEIGHTS:
        raise ExportError(
            f"an affine layer of {width} inputs and {len(bias)} outputs: expected at most "
            f"{_MOST_WEIGHTS} weights"
        )
    columns = []
    rows = max(1, _PROBED_AT_ONCE // width)
    for begin in range(0, width, rows):
        x = torch.zeros(min(rows, width - begin), width).double()
        x[torch.arange(len(x)), begin + torch.arange(len(x))] = _STEP
        columns.append((part(x) - bias) / _STEP)
    return torch.cat(columns).t()


def _weight_of_linear(part: Part) -> Any:
    """That of the one linear layer that the part is, which may be large; or nothing."""
    import torch

    if len(part.operations) != 1 or part.operations[0].op != "call_module":
        return None
    (node,) = part.operations
    layer = part.recorded.root.get_submodule(node.target)
    is_all = list(node.args) == [part.into] and part.recorded.values[part.into].ndim == 2
    return layer.weight.detach().double() if type(layer) is torch.nn.Linear and is_all else None


def affine_layer(part: Part, width: int) -> tuple[Any, Any] | None:
    """(weight [out, width], bias [out]) if the part is affine, for values of all sizes."""
    import torch

    if _chooses(part):
        return None
    generator = torch.Generator().manual_seed(2)
    # Clips act on large values, and dead zones on small ones; either may be of one sign.
    sizes = 10.0 ** torch.arange(-6, 9).double().repeat_interleave(2)[:, None]
    x = sizes * torch.randn(len(sizes), width, generator=generator).double()
    bias = part(torch.zeros(1, width).double())[0]
    positive, negative = part(x), part(-x)
    # The columns of what is not even symmetric need not be looked at.
    largest = torch.stack([positive.abs(), negative.abs(), bias.expand_as(positive).abs()])
    odd = (positive + negative - 2 * bias).abs()
    if not (odd <= 1e-7 * largest.amax(dim=(0, 2))[:, None] + 1e-300).all():
        return None
    weight = _weight_of_linear(part)
    if weight is None:
        weight = _weight_of(part, width, bias)
    x = torch.cat([x, -x])
    error = (torch.cat([positive, negative]) - x @ weight.t() - bias).abs()
    size = x.abs() @ weight.abs().t() + bias.abs() + 1e-300
    # Not "greater": what is no number is not affine.
    return (weight, bias) if (error <= 1e-9 * size).all() else None


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
