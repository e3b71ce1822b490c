# SPDX-License-Identifier: Apache-2.0
"""A module of one input as a function of rows, and what a server's answers are compared with."""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import numpy as np

from deeppcr.exporting.checking import difference_of
from deeppcr.exporting.report import Difference, ExportError
from deeppcr.exporting.tracing import floats_are_double, module_errors
from deeppcr.serving import serve

_CHECK_SAMPLES = 8


def check_samples_are_alone(whole: Any, again: Any, alone: Any) -> None:
    """What no file would show: randomness, samples that depend on each other, no numbers."""
    import torch

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


def check_network(module: Any, example: Any) -> None:
    import torch

    inputs = _random_inputs(example, 3)
    with module_errors("does not take random inputs"):
        alone = torch.cat([module(row) for row in inputs.split(1)])
    check_samples_are_alone(module(inputs), module(inputs), alone)


def compare_outputs(
    module: Any, example: Any, folder: pathlib.Path, binary: pathlib.Path
) -> Difference:
    """The answers of a server on what is in `folder`, against those of the module."""
    inputs = _random_inputs(example, _CHECK_SAMPLES)
    rows = inputs.reshape(len(inputs), -1).numpy()
    with serve(model_dir=folder, model_name="check", binary=binary) as server:
        answers = np.asarray(server.client(timeout=300).forward("check", rows, solver="sequential"))
    own = module(inputs).reshape(len(inputs), -1).numpy()
    exact, reference = own, "float32"
    try:
        with floats_are_double():
            wide = copy.deepcopy(module).double()(inputs.double())
        if str(wide.dtype) == "torch.float64":
            exact, reference = wide.reshape(len(inputs), -1).numpy(), "float64"
    except RuntimeError:
        pass  # weights or constants of float32 that do not follow
    difference = difference_of(answers, own, exact, reference)
    if difference is None:
        raise ExportError("outputs: expected finite values, got others for random inputs")
    return difference
