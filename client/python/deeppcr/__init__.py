# SPDX-License-Identifier: Apache-2.0
"""Client of DeepPCR Serve.

import deeppcr
with deeppcr.serve("models") as server:
    samples = server.client().generate("digits-ddpm", 16, seed=0)
    print(samples.report)
"""

from deeppcr.client import Client, Policy
from deeppcr.engine import Engine
from deeppcr.errors import (
    CancelledError,
    DeadlineExceededError,
    DeepPcrError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotConvergedError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from deeppcr.exporting import ExportError, ExportReport, Steps, export, validate
from deeppcr.noise import noise
from deeppcr.requests import Generation, Options
from deeppcr.results import Comparison, Gradients, Progress, Report, Result, SampleReport
from deeppcr.serving import Server, ServerError, find_server, serve

__all__ = [
    "CancelledError",
    "Client",
    "Comparison",
    "DeadlineExceededError",
    "DeepPcrError",
    "Engine",
    "ExportError",
    "ExportReport",
    "FailedPreconditionError",
    "Generation",
    "Gradients",
    "InternalError",
    "InvalidArgumentError",
    "NotConvergedError",
    "NotFoundError",
    "Options",
    "PermissionDeniedError",
    "Policy",
    "Progress",
    "Report",
    "ResourceExhaustedError",
    "Result",
    "SampleReport",
    "Server",
    "ServerError",
    "Steps",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "export",
    "find_server",
    "noise",
    "serve",
    "validate",
]
