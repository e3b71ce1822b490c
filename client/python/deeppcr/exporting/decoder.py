# SPDX-License-Identifier: Apache-2.0
"""The layers that make outputs of a process' samples."""

from __future__ import annotations

from typing import Any

from deeppcr.exporting.activations import activation_name
from deeppcr.exporting.report import ExportError


def decoder_tensors(decoder: Any, state_dim: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(decoder.<j>.{weight,bias}, the keys of config.json) of linear layers and activations."""
    import torch

    tensors: dict[str, Any] = {}
    widths: list[int] = []
    names: set[str] = set()
    parts = list(decoder) if type(decoder) is torch.nn.Sequential else [decoder]
    if not parts or decoder._forward_hooks or decoder._forward_pre_hooks:
        raise ExportError(f"decoder: expected layers and activations without hooks, got {decoder}")
    for i, part in enumerate(parts):
        if i % 2 == 0:
            is_plain = type(part) is torch.nn.Linear and "forward" not in vars(part)
            if not is_plain or part._forward_hooks or part._forward_pre_hooks:
                raise ExportError(
                    f"decoder: expected a linear layer as part {i}, without hooks, got {part}"
                )
            expected = widths[-1] if widths else state_dim
            if part.in_features != expected:
                raise ExportError(
                    f"decoder: expected {expected} inputs of part {i}, got {part.in_features}"
                )
            bias = torch.zeros(part.out_features) if part.bias is None else part.bias
            tensors[f"decoder.{i // 2}.weight"] = part.weight.detach().float().numpy()
            tensors[f"decoder.{i // 2}.bias"] = bias.detach().float().numpy()
            widths.append(part.out_features)
            continue
        name = activation_name(part)
        if name is None or i + 1 == len(parts):
            raise ExportError(
                f"decoder: expected an activation of the server between two layers, got {part}"
            )
        names.add(name)
    if len(names) > 1:
        raise ExportError(f"decoder: expected one activation, got {', '.join(sorted(names))}")
    config: dict[str, Any] = {"output_dim": widths[-1]}
    if names:
        config |= {"decoder_widths": widths[:-1], "decoder_activation": names.pop()}
    return tensors, config
