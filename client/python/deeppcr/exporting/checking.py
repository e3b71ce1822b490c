# SPDX-License-Identifier: Apache-2.0
"""Asks a server what is wrong with a folder, and compares answers with those of a module."""

from __future__ import annotations

import os
import pathlib
import subprocess
from typing import Any

import numpy as np

from deeppcr.exporting.report import Difference, ExportError
from deeppcr.serving import find_server

_ROUNDING = 1e-5
# Beyond it twice PyTorch's own error would allow anything.
_MOST_TORCH_ERROR = 1e-2
# Far from the usual sizes digits are few, and only what is another function shows.
_FAR_ERROR, _FAR_TORCH_ERRORS = 1e-3, 100


def validate(
    path: str | os.PathLike[str], binary: str | os.PathLike[str] | None = None
) -> list[str]:
    """What keeps a server from serving a version's folder; nothing if it would.

    Everything that is wrong with its files, or else with what a load makes of them, by
    `deeppcr-server --check`, in under a second and without a load.
    """
    folder = pathlib.Path(path)
    result = subprocess.run(
        [str(find_server(binary)), f"--check={folder}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode == 0:
        return []
    lines = [line.strip() for line in (result.stdout + result.stderr).splitlines()]
    # The first line counts those that follow.
    lines = [line for line in lines if line]
    return lines[1:] or lines or [f"--check ended with status {result.returncode}"]


def difference_of(answers: Any, own: Any, exact: Any, reference: str, what: str) -> Difference:
    """That of the samples [n, ..] `what`, of those whose numbers PyTorch's float32 has.

    It is relative to the largest number of all samples: of one output, a sample may be near 0.
    Errors: ExportError where there are no numbers.
    """
    known = np.isfinite(exact).all(axis=1) & np.isfinite(own).all(axis=1)
    if not known.any():
        raise ExportError(f"{what}: expected numbers of the module, got none that is finite")
    scale = np.abs(exact[known]).max() or 1.0

    def error_of(values: Any) -> float:
        error = np.abs(values[known] - exact[known]).max() / scale
        return float(error) if np.isfinite(error) else float("inf")

    return Difference(error_of(answers), error_of(own), reference)


def check(found: Difference, what: str) -> None:
    """Errors: ExportError beyond 1e-5 and twice the error of PyTorch itself."""
    if not found.torch_error <= _MOST_TORCH_ERROR:
        raise ExportError(
            f"{what} of PyTorch in float32 are off by {found.torch_error:.1e} of those in "
            "float64: a module as sensitive as that, or that computes in lower precision by "
            "itself, cannot be compared"
        )
    if not found.error <= max(_ROUNDING, 2 * found.torch_error):
        raise ExportError(
            f"the exported model differs from the module: {what} are off by "
            f"{found.error:.1e}, those of PyTorch in float32 by {found.torch_error:.1e}"
        )


def check_columns(answers: Any, own: Any, exact: Any, what: str) -> None:
    """The samples [n, ..] `what`, each output relative to its own largest number: outputs may be of
    other units, and what another function makes of a small one is no rounding of it.

    Errors: ExportError where an output is another function, as check_far has it.
    """
    known = np.isfinite(exact).all(axis=1) & np.isfinite(own).all(axis=1)
    if not known.any():
        return
    answers, own, exact = answers[known], own[known], exact[known]
    scales = np.abs(exact).max(axis=0)
    # Below the rounding of the largest output, one that should be 0 may be of that alone.
    scales = np.maximum(scales, np.finfo(np.float32).eps * scales.max())
    scales[scales == 0] = 1
    errors = np.abs(answers - exact).max(axis=0) / scales
    torch_errors = np.abs(own - exact).max(axis=0) / scales
    differs = ~(errors <= np.maximum(_FAR_ERROR, _FAR_TORCH_ERRORS * torch_errors))
    if differs.any():
        i = int(np.argmax(differs))
        raise ExportError(
            f"the exported model differs from the module: output {i} of {what} is off by "
            f"{errors[i]:.1e} of its own size, that of PyTorch in float32 by {torch_errors[i]:.1e}"
        )


def compared(answers: Any, own: Any, exact: Any, reference: str, what: str) -> Difference:
    """The samples [n, ..] `what`. Errors: those of difference_of, check and check_columns."""
    found = difference_of(answers, own, exact, reference, what)
    check(found, what)
    check_columns(answers, own, exact, what)
    return found


def check_far(answers: Any, own: Any, exact: Any, what: str) -> None:
    """The samples [n, ..] of inputs of one large size, where clips and branches are that others
    do not meet.

    Errors: ExportError where answers differ by more than rounding, each sample's relative to its
    own numbers. PyTorch's rounding is the largest of all of them: one sample's may be small by
    chance. And those of check_columns.
    """
    known = np.isfinite(exact).all(axis=1) & np.isfinite(own).all(axis=1)
    if not known.any():
        return
    answers, own, exact = answers[known], own[known], exact[known]
    scales = np.abs(exact).max(axis=1)
    scales[scales == 0] = 1
    error = (np.abs(answers - exact).max(axis=1) / scales).max()
    torch_error = (np.abs(own - exact).max(axis=1) / scales).max()
    if not error <= max(_FAR_ERROR, _FAR_TORCH_ERRORS * torch_error):
        raise ExportError(
            f"the exported model differs from the module: {what} are off by {error:.1e}, those "
            f"of PyTorch in float32 by {torch_error:.1e}"
        )
    check_columns(answers, own, exact, what)
