# SPDX-License-Identifier: Apache-2.0
"""ONNX's operations for those of PyTorch that its exporter has none for at the opset used here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


def _rms_norm(g: Any, x: Any, shape: list[int], weight: Any, epsilon: float | None) -> Any:
    """x / sqrt(mean(x^2) + epsilon), over as many of the last axes as `shape` has, times weight."""
    import torch

    if epsilon is None:
        epsilon = torch.finfo(torch.float32).eps
    squares = g.op("Mul", x, x)
    mean = g.op("ReduceMean", squares, axes_i=list(range(-len(shape), 0)), keepdims_i=1)
    above_zero = g.op("Add", mean, g.op("Constant", value_t=torch.tensor(epsilon)))
    normal = g.op("Div", x, g.op("Sqrt", above_zero))
    return normal if weight.node().mustBeNone() else g.op("Mul", normal, weight)


@contextlib.contextmanager
def more_symbolics(opset: int) -> Iterator[None]:
    """Has torch.onnx.export take RMSNorm, which PyTorch 1 does not have."""
    import torch

    if not hasattr(torch.nn.functional, "rms_norm"):
        yield
        return
    from torch.onnx import register_custom_op_symbolic, unregister_custom_op_symbolic
    from torch.onnx.symbolic_helper import parse_args

    name = "aten::rms_norm"
    register_custom_op_symbolic(name, parse_args("v", "is", "v", "f")(_rms_norm), opset)
    try:
        yield
    finally:
        unregister_custom_op_symbolic(name, opset)
