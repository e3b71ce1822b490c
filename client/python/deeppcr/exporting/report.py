# SPDX-License-Identifier: Apache-2.0
"""What an export says: what it wrote and how exact that is, or what stood in the way."""

from __future__ import annotations

import functools
import pathlib
import sys
from dataclasses import dataclass
from typing import Any

from deeppcr.errors import DeepPcrError


def first_line(error: BaseException) -> str:
    """What an exception says first; its kind where it says nothing."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _caller_beyond(*folders: str) -> Any:
    """The frame of what called, below all that is in these folders; None if that is nothing."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(folders):
        frame = frame.f_back
    return frame


@functools.cache
def _folder_of(file: str) -> str:
    return str(pathlib.Path(file).parent) + "/"


def users_line() -> str:
    """Where the module's own code is, below it PyTorch's and this package's."""
    import torch

    frame = _caller_beyond(_folder_of(torch.__file__), _folder_of(__file__))
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "the module"


def is_called_by_torch() -> bool:
    """Whether PyTorch itself called this package, and not the module's own code."""
    import torch

    frame = _caller_beyond(_folder_of(__file__))
    return frame is not None and frame.f_code.co_filename.startswith(_folder_of(torch.__file__))


class ExportError(DeepPcrError):
    """The module cannot be served as it is; the message names what stands in the way."""


@dataclass(frozen=True)
class Difference:
    """How far answers are from the module's, relative to the largest of those compared at once."""

    error: float  # of the answers
    torch_error: float  # of PyTorch in float32; 0 against itself
    reference: str  # what both are compared with: float64, or float32 where there is no other

    def joined(self, other: Difference) -> Difference:
        return Difference(
            max(self.error, other.error), max(self.torch_error, other.torch_error), self.reference
        )


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how far it is from the module in double precision."""

    path: pathlib.Path
    model: str  # what it is, in words, as "stack of 512 layers of 16 values"
    error: float
    torch_error: float
    reference: str
    answers: str  # whose they are: "deeppcr-server", or "onnx.reference" where there was none

    def __repr__(self) -> str:
        return (
            f"<{self.model} exported to {self.path}: error {self.error:.1e} against the module in "
            f"{self.reference}, PyTorch's float32 {self.torch_error:.1e}{self._by()}>"
        )

    def _by(self) -> str:
        """Who answered, where that is not a server."""
        return "" if self.answers == "deeppcr-server" else f", by {self.answers} without a server"
