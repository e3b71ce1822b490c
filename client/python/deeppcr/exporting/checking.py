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


def relative_error(a: Any, b: Any) -> float:
    """The largest of the samples; infinite where a value is not a number."""
    scale = np.abs(b).max(axis=1)
    scale[scale == 0] = 1
    error = np.abs(a - b).max(axis=1) / scale
    return float(error.max()) if np.isfinite(error).all() else float("inf")


def check_difference(difference: Difference, answers: str) -> None:
    """At most 1e-5, or twice the error of PyTorch itself."""
    if not difference.error <= max(_ROUNDING, 2 * difference.torch_error):
        raise ExportError(
            f"the exported model differs from the module: {answers} are off by "
            f"{difference.error:.1e}, those of PyTorch in float32 by {difference.torch_error:.1e}"
        )
