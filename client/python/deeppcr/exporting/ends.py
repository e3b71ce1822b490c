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

# Operations of which affine layers are made. Any other may differ in places that probes do not
# meet, as a comparison does, or a norm that counts what is not 0.
_OPERATIONS = {
    *("add", "sub", "mul", "div", "truediv", "neg", "pos", "iadd", "isub", "imul", "itruediv"),
    *("subtract", "multiply", "divide", "true_divide", "negative", "positive", "rsub", "addcmul"),
    *("addcdiv", "lerp", "sum", "mean", "cumsum", "diff", "trace", "linear", "bilinear", "matmul"),
    *("imatmul", "mm", "bmm", "mv", "dot", "inner", "outer", "vdot", "addmm", "addmv", "addr"),
    *("addbmm", "baddbmm", "einsum", "tensordot", "kron", "cross", "linalg_multi_dot"),
    *("chain_matmul", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"),
    *("conv_transpose3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d"),
    *("adaptive_avg_pool2d", "adaptive_avg_pool3d", "batch_norm", "interpolate", "upsample"),
    *("fold", "unfold", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "view", "view_as"),
    *("reshape", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze"),
    *("transpose", "t", "getattr", "permute", "movedim", "moveaxis", "swapaxes", "swapdims"),
    *("expand", "expand_as", "broadcast_to", "contiguous", "clone", "detach", "getitem", "narrow"),
    *("select", "index_select", "take_along_dim", "gather", "take", "unbind", "chunk", "split"),
    *("split_with_sizes", "tensor_split", "hsplit", "vsplit", "cat", "concat", "concatenate"),
    *("stack", "hstack", "vstack", "dstack", "column_stack", "flip", "fliplr", "flipud", "roll"),
    *("rot90", "repeat", "tile", "repeat_interleave", "pad", "tril", "triu", "diag", "diagonal"),
    *("diag_embed", "diagflat", "atleast_1d", "atleast_2d", "atleast_3d", "index_add"),
    *("index_copy", "scatter", "scatter_add", "to", "type", "type_as", "float", "double", "half"),
    *("bfloat16", "real", "imag", "conj", "view_as_real", "view_as_complex", "fft_fft", "fft_ifft"),
    *("fft_rfft", "fft_irfft", "fft_fft2", "fft_ifft2", "fft_rfft2", "fft_irfft2", "fft_fftn"),
    *("fft_ifftn", "fft_rfftn", "fft_irfftn", "fft_hfft", "fft_ihfft", "fft_fftshift"),
    *("fft_ifftshift", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"),
    *("new_tensor", "cpu", "requires_grad", "deg2rad", "rad2deg", "dropout", "alpha_dropout"),
    *("feature_dropout", "feature_alpha_dropout", "broadcast_tensors", "linalg_solve"),
    "linalg_solve_triangular",
}


def _is_of_affine_layers(part: Part, node: Any) -> bool:
    """Whether an operation is one that affine layers are made of, and gives floats."""
    import torch
    from torch.nn import modules

    value = part.recorded.values[node]
    results = value if isinstance(value, tuple) else (value,)
    if not all(each.is_floating_point() or each.is_complex() for each in results):
        return False
    if node.op == "call_module":
        kinds = (
            *(torch.nn.Linear, torch.nn.Bilinear, torch.nn.Identity, torch.nn.Flatten),
            *(torch.nn.Unflatten, torch.nn.Fold, torch.nn.Unfold, torch.nn.Upsample),
            *(torch.nn.PixelShuffle, torch.nn.PixelUnshuffle, torch.nn.ChannelShuffle),
            *(modules.conv._ConvNd, modules.batchnorm._BatchNorm, modules.pooling._AvgPoolNd),
            *(modules.pooling._AdaptiveAvgPoolNd, modules.padding._ConstantPadNd),
            *(modules.padding._ReflectionPadNd, modules.padding._ReplicationPadNd),
            modules.instancenorm._InstanceNorm,
        )
        return isinstance(part.recorded.root.get_submodule(node.target), kinds)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.strip("_") in _OPERATIONS


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

    if not all(_is_of_affine_layers(part, each) for each in part.operations):
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
    # What is no affine layer and yet the identity wherever it is probed differs where it is not.
    return (*found, name) if found and name and name != "identity" else None


def is_identity(weight: Any, bias: Any) -> bool:
    import torch

    rows, columns = weight.shape
    return rows == columns and torch.equal(weight, torch.eye(rows).double()) and not bias.any()
