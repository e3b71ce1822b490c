# SPDX-License-Identifier: Apache-2.0
"""Asks a server what it makes of a folder, and compares its answers with those of a module."""

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


def check_folder(folder: pathlib.Path, binary: pathlib.Path) -> None:
    problems = validate(folder, binary)
    if problems:
        raise ExportError("; ".join(problems))


def difference_of(answers: Any, own: Any, exact: Any, reference: str) -> Difference | None:
    """Of the samples [n, ..] whose numbers PyTorch's float32 has; None if it has of none.

    Errors are relative to the largest number of all samples: of one output, a sample may be near 0.
    """
    known = np.isfinite(exact).all(axis=1) & np.isfinite(own).all(axis=1)
    if not known.any():
        return None
    scale = np.abs(exact[known]).max() or 1.0

    def error_of(values: Any) -> float:
        error = np.abs(values[known] - exact[known]).max() / scale
        return float(error) if np.isfinite(error) else float("inf")

    return Difference(error_of(answers), error_of(own), reference)


def check_difference(difference: Difference, answers: str) -> None:
    """At most 1e-5, or twice the error of PyTorch itself."""
    if not difference.torch_error <= _MOST_TORCH_ERROR:
        raise ExportError(
            f"{answers} of PyTorch in float32 are off by {difference.torch_error:.1e} of those in "
            "float64: a module as sensitive as that, or that computes in lower precision by "
            "itself, cannot be compared"
        )
    if not difference.error <= max(_ROUNDING, 2 * difference.torch_error):
        raise ExportError(
            f"the exported model differs from the module: {answers} are off by "
            f"{difference.error:.1e}, those of PyTorch in float32 by {difference.torch_error:.1e}"
        )
