# SPDX-License-Identifier: Apache-2.0
"""Exceptions of calls: one for each status that a server answers with, and with its sentence."""

from __future__ import annotations

from typing import Any

import grpc

from deeppcr.connection import Access


class DeepPcrError(Exception):
    """A call that failed. `message` is the server's sentence, or says why there was none."""

    def __init__(self, message: str, *, code: str = "", trace_id: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code  # of gRPC, as INVALID_ARGUMENT; empty if nothing was sent
        self.trace_id = trace_id  # by which the server's log knows the call

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.message, dict(self.__dict__))


def _rebuilt(kind: type[DeepPcrError], message: str, state: dict[str, Any]) -> DeepPcrError:
    error = kind(message)
    error.__dict__.update(state)
    return error


class InvalidArgumentError(DeepPcrError, ValueError):
    """The request is wrong; the message names the field."""


class NotFoundError(DeepPcrError, LookupError):
    """No such model, version or kept trajectory."""


class FailedPreconditionError(DeepPcrError):
    """The model could not be loaded, or cannot do this now."""


class NotConvergedError(DeepPcrError, ArithmeticError):
    """The solver did not converge, and on_no_convergence is "error"."""


class ResourceExhaustedError(DeepPcrError):
    """The request does not fit: now, or, with `never_fits`, at any time."""

    never_fits: bool = False
    queue_depth: int | None = None  # samples in the model's queue
    predicted_wait_seconds: float | None = None


class UnavailableError(DeepPcrError, ConnectionError):
    """No server, or one that starts or leaves."""


class DeadlineExceededError(DeepPcrError, TimeoutError):
    """No answer within the timeout."""


class CancelledError(DeepPcrError):
    """The call was cancelled."""


class UnauthenticatedError(DeepPcrError, PermissionError):
    """The server wants a token, and knows none like this one."""


class PermissionDeniedError(DeepPcrError, PermissionError):
    """The caller may not do this: loads and unloads are for administrators."""


class UnimplementedError(DeepPcrError, NotImplementedError):
    """This server, or the model's backend, does not have it."""


class InternalError(DeepPcrError):
    """The server, or its reply, is at fault."""


_KINDS: dict[grpc.StatusCode, type[DeepPcrError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgumentError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPreconditionError,
    grpc.StatusCode.ABORTED: NotConvergedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.CANCELLED: CancelledError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.UNIMPLEMENTED: UnimplementedError,
}


def error_of(status: int, message: str) -> DeepPcrError:
    """The exception of a status by its number."""
    code = next(code for code in grpc.StatusCode if code.value[0] == status)
    return _KINDS.get(code, InternalError)(message, code=code.name)


def error_from(rpc: Any, server: str, access: Access, trace_id: str) -> DeepPcrError:
    """The exception of a failed call of grpc or grpc.aio."""
    code: grpc.StatusCode = rpc.code()
    details = rpc.details() or ""
    message = details or code.name
    if code is grpc.StatusCode.UNAVAILABLE:
        advice = access.advice(details)
        message = f"{server}: {advice} ({details})" if advice else f"{server}: {message}"
    elif code is grpc.StatusCode.UNIMPLEMENTED and not details:
        message = f"{server} does not know this call: it is of another version than this client"
    error = _KINDS.get(code, InternalError)(message, code=code.name, trace_id=trace_id)
    if isinstance(error, ResourceExhaustedError):
        trailers = dict(rpc.trailing_metadata() or ())
        error.never_fits = str(trailers.get("grpc-retry-pushback-ms", "")).startswith("-")
        if "deeppcr-queue-depth" in trailers:
            error.queue_depth = int(trailers["deeppcr-queue-depth"])
        if "deeppcr-predicted-wait-seconds" in trailers:
            error.predicted_wait_seconds = float(trailers["deeppcr-predicted-wait-seconds"])
    return error
