# SPDX-License-Identifier: Apache-2.0
"""Served models of PyTorch modules."""

from deeppcr.exporting.checking import validate
from deeppcr.exporting.export import export
from deeppcr.exporting.report import ExportError, ExportReport
from deeppcr.exporting.scheduler import Steps

__all__ = ["ExportError", "ExportReport", "Steps", "export", "validate"]
