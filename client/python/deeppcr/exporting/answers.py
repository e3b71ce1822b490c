# SPDX-License-Identifier: Apache-2.0
"""What a folder's files compute, for a comparison with the module that they were made of."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Question:
    """What is asked of a denoiser's files."""

    module: Any  # the Denoiser, of which they are
    folder: pathlib.Path
    config: dict[str, Any]
    times: list[float]
    states: Any  # [n, D] for the first time; others are drawn
    sizes: list[float]  # of the states that are drawn after each time
    condition: Any  # [n, ...] or None


@dataclass(frozen=True)
class Predictions:
    """A denoiser's, at each of the times that were asked for."""

    states: list[Any]  # [n, D] of each time
    predictions: list[Any]  # [n, D]; [n, 2 D] where the variance is learned
    last: Any  # [n, D]
    outputs: Any  # [n, output_dim], what the decoder makes of them


class Answers(Protocol):
    """Who evaluates the files: a server, or NumPy where there is none."""

    name: str  # as a report has it

    def check(self, folder: pathlib.Path) -> None:
        """Errors: ExportError with all that is wrong with the files."""

    def outputs(self, folder: pathlib.Path, groups: list[Any]) -> list[Any]:
        """Of a stack: [n, output_dim] of each [n, input_dim]."""

    def predictions(self, question: Question) -> Predictions:
        """Of a denoiser."""
