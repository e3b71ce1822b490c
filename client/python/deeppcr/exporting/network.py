# SPDX-License-Identifier: Apache-2.0
"""A module of one input as a function of rows, and what a server's answers are compared with."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import numpy as np

from deeppcr.errors import DeepPcrError
from deeppcr.exporting.answers import Answers
from deeppcr.exporting.checking import check_far, compared
from deeppcr.exporting.precision import in_double
from deeppcr.exporting.report import Difference, ExportError
from deeppcr.exporting.tracing import module_errors

_CHECK_SAMPLES = 8
_MOST_MOVED = 1e-2
_FAR_SIZES = [10.0, 100.0, 1e3, 1e6, 1e12]
_SMALL_SIZES = [1e-3, 1e-5, 0.0]
FAR_SAMPLES = 4  # of each size
# Where the module has no numbers for inputs that are so much larger, overflow is near: PyTorch may
# still have numbers of what another order of operations has none of.
_FAR_FROM_OVERFLOW = 1e3


# Sizes of batches beside that of three, below and above those of other comparisons.
OTHER_BATCHES = (2, 9)


def check_batch(whole: Any, alone: Any) -> None:
    """Errors: ExportError where a batch of another size answers otherwise."""
    scale = alone.abs().max().item() or 1.0
    if whole.shape != alone.shape or (whole - alone).abs().max().item() > 1e-3 * scale:
        raise ExportError(
            f"a batch of {len(alone)} is answered otherwise than its samples one by one: evaluate "
            "samples by themselves"
        )


def check_samples_are_alone(whole: Any, again: Any, alone: Any) -> None:
    """What no file would show: randomness, samples that depend on each other, no numbers."""
    import torch

    if whole.shape != alone.shape:
        raise ExportError(
            f"outputs: expected one for each sample, got the shape {list(whole.shape)} of a batch "
            f"and {list(alone.shape)} of its samples one by one"
        )
    if not whole.is_floating_point():
        raise ExportError(f"outputs: expected floats, got {whole.dtype}")
    if whole.dtype not in (torch.float32, torch.float64):
        raise ExportError(
            f"outputs: expected float32, as the server computes, got {whole.dtype}: leave out "
            "autocast and casts to 16 bits"
        )
    if not torch.isfinite(whole).all():
        raise ExportError("outputs: expected finite values, got others for random inputs")
    if not torch.equal(whole, again):
        raise ExportError("the module draws random numbers: two evaluations differ")
    scale = whole.abs().max().item() or 1.0
    if (whole - alone).abs().max().item() > 1e-3 * scale:
        raise ExportError(
            "a sample's answer depends on the others of its batch, which the server "
            "does not have: evaluate samples by themselves"
        )


def _random_inputs(example: Any, n: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, *example.shape[1:], generator=generator)


def _answer(module: Any, inputs: Any) -> Any:
    """What the module makes of a copy, as it may change what it is given."""
    return module(inputs.clone())


def _check_sensitivity(module: Any, inputs: Any, whole: Any) -> None:
    import torch

    nudged = module(torch.nextafter(inputs, torch.full_like(inputs, torch.inf)))
    moved = ((nudged - whole).abs().max() / whole.abs().max()).item()
    if moved > _MOST_MOVED:
        raise ExportError(
            f"one rounding of its inputs changes the module's outputs by {moved:.1e}: one as "
            "sensitive as that cannot be compared"
        )


def check_network(module: Any, example: Any) -> None:
    import torch

    def answers(inputs: Any) -> tuple[Any, Any]:
        """Of a batch, and of its samples one by one."""
        alone = [_answer(module, row) for row in inputs.split(1)]
        return _answer(module, inputs), torch.cat(alone)

    with module_errors("does not take a batch of random inputs"):
        inputs = _random_inputs(example, 3)
        whole, alone = answers(inputs)
        again = _answer(module, inputs)
        if torch.equal(whole, again):
            _check_sensitivity(module, inputs, whole)
        check_samples_are_alone(whole, again, alone)
        for n in OTHER_BATCHES:
            inputs = _random_inputs(example, n)
            whole, alone = answers(inputs)
            _check_sensitivity(module, inputs, whole)
            check_batch(whole, alone)


def _compared_inputs(example: Any, first: tuple[Any, Any] | None) -> dict[str, Any]:
    """Inputs of a size of 1, such as the example, and such that the first layer centres.

    first: (weight [D, width], bias [D]) of the input layer, which folds a normalisation. Inputs
    that it takes to about 0 tell what is left of their digits in float32.
    """
    import torch

    generator = torch.Generator().manual_seed(3)
    inputs = {"outputs": _random_inputs(example, _CHECK_SAMPLES)}
    if example.any():
        noise = torch.randn(_CHECK_SAMPLES, *example.shape[1:], generator=generator)
        inputs["outputs of inputs such as the example"] = example * (1 + 0.1 * noise)
    if first is not None:
        weight, bias = (torch.from_numpy(each).double() for each in first)
        size = weight.norm(dim=0)
        size[size == 0] = 1
        # Directions that rounding alone tells apart are no part of a mean.
        solved = torch.linalg.lstsq(weight / size, -bias[:, None], rcond=1e-4, driver="gelsd")
        noise = torch.randn(_CHECK_SAMPLES, len(size), generator=generator).double()
        centred = ((solved.solution[:, 0] + noise / len(size) ** 0.5) / size).float()
        if torch.isfinite(centred).all():
            inputs["outputs of inputs about the mean that the first layer subtracts"] = (
                centred.reshape(-1, *example.shape[1:])
            )
    return inputs


def _own_and_exact(module: Any, inputs: Any) -> tuple[Any, Any, str]:
    """The module's outputs in float32, and in double where it can be made so: which of them."""
    own = _answer(module, inputs).reshape(len(inputs), -1).float().numpy()
    wide = in_double(module, lambda wide: wide(inputs.double()))
    if wide is None:
        return own, own, "float32"
    return own, wide.reshape(len(inputs), -1).numpy(), "float64"


def with_zeros(rows: Any) -> Any:
    """Rows [n, ..] with zeros in place of every other element, or of one of three."""
    import torch

    flat = rows.reshape(len(rows), -1).clone()
    place = torch.arange(flat.shape[1])
    for i, row in enumerate(flat):
        row[place % (2 + i // 2 % 2) == i % 2] = 0
    return flat.reshape(rows.shape)


def _far_inputs(module: Any, example: Any) -> dict[str, tuple[Any, Any, Any]]:
    """Large and small inputs and zeros, by what they are, with what the module answers in float32
    and double, where it does."""
    sizes = [*_FAR_SIZES, *_SMALL_SIZES]
    rows = _random_inputs(example, (len(sizes) + 1) * FAR_SAMPLES).split(FAR_SAMPLES)
    asked = {
        f"{'large' if size > 1 else 'small'} inputs, of size {size:g},": size * of_size
        for size, of_size in zip(sizes, rows, strict=False)
    } | {"inputs with zeros": with_zeros(rows[-1])}
    found = {}
    for what, inputs in asked.items():
        try:
            own, exact, _ = _own_and_exact(module, inputs)
        except Exception:  # whatever the module does with what is so large
            continue
        if np.isfinite([own, exact]).all():
            found[what] = inputs, own, exact
    return found


def _overflow_is_near(module: Any, inputs: Any) -> bool:
    try:
        return not bool(module(inputs * _FAR_FROM_OVERFLOW).isfinite().all())
    except Exception:  # whatever the module does with what is so large
        return True


def compare_outputs(
    module: Any,
    example: Any,
    first: tuple[Any, Any] | None,
    folder: pathlib.Path,
    answers: Answers,
) -> Difference:
    """The outputs made of what is in `folder`, against those of the module."""
    groups = _compared_inputs(example, first)
    far = _far_inputs(module, example)
    asked = [*groups.values(), *(inputs for inputs, *_ in far.values())]
    try:
        outputs = answers.outputs(folder, [each.reshape(len(each), -1).numpy() for each in asked])
    except ExportError:
        raise
    except DeepPcrError as error:
        raise ExportError(f"what the module answers the model does not: {error}") from error
    for (what, (inputs, own, exact)), found in zip(
        far.items(), outputs[len(groups) :], strict=True
    ):
        if not np.isfinite(found).all() and _overflow_is_near(module, inputs):
            continue
        check_far(found, own, exact, f"outputs of {what}")
    differences = []
    for (what, inputs), found in zip(groups.items(), outputs, strict=False):
        own, exact, reference = _own_and_exact(module, inputs)
        differences.append(compared(found, own, exact, reference, what))
    return functools.reduce(Difference.joined, differences)
