# SPDX-License-Identifier: Apache-2.0
"""The structures of kernels/c_api/deeppcr.h for ctypes. Arrays are addresses."""

from __future__ import annotations

import ctypes
import operator
from typing import Any, TypeVar

_Structure = TypeVar("_Structure", bound=ctypes.Structure)


class EngineOptions(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("backend", ctypes.c_char_p),
        ("num_threads", ctypes.c_int32),
        ("max_concurrent_runs", ctypes.c_int32),
        ("plan_cache_dir", ctypes.c_char_p),
        ("plan_mode", ctypes.c_int32),
        ("max_model_bytes", ctypes.c_int64),
        ("max_workspace_bytes", ctypes.c_int64),
        ("max_unplanned_bytes", ctypes.c_int64),
        ("progress", ctypes.c_void_p),
        ("progress_user", ctypes.c_void_p),
        ("gradients", ctypes.c_int32),
    )


class ModelInfo(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        *(
            (name, ctypes.c_char_p)
            for name in ("model_type", "backend", "config_json", "weights_sha256")
        ),
        *(
            (name, ctypes.c_int64)
            for name in (
                *("input_dim", "output_dim", "state_dim", "num_steps"),
                *("max_inference_steps", "num_classes"),
            )
        ),
        ("max_batch_size", ctypes.c_int32),
        ("generates", ctypes.c_int32),
        ("memory_dim", ctypes.c_int64),
    )


class RunOptions(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("solver", ctypes.c_char_p),
        ("rtol", ctypes.c_double),
        ("atol", ctypes.c_double),
        ("max_iterations", ctypes.c_int32),
        ("shooting_interval", ctypes.c_int32),
        ("warm_sweeps", ctypes.c_int32),
        ("initial_guess", ctypes.c_int32),
        ("jacobian_refresh", ctypes.c_int32),
        ("on_no_convergence", ctypes.c_int32),
        ("num_inference_steps", ctypes.c_int64),
        ("timeout_seconds", ctypes.c_double),
        ("token", ctypes.c_void_p),
    )


class Inputs(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("num_samples", ctypes.c_int64),
        ("inputs", ctypes.c_void_p),
        ("initial_states", ctypes.c_void_p),
        ("seed", ctypes.c_uint64),
        ("first_sample", ctypes.c_uint64),
        ("class_labels", ctypes.c_void_p),
        ("initial_noise", ctypes.c_void_p),
        ("step_noise", ctypes.c_void_p),
    )


class Report(ctypes.Structure):
    _fields_ = (
        ("solver", ctypes.c_char_p),
        ("termination", ctypes.c_char_p),
        ("converged", ctypes.c_int32),
        ("fallback", ctypes.c_int32),
        ("iterations", ctypes.c_int32),
        ("chord_corrections", ctypes.c_int32),
        ("confirmations", ctypes.c_int32),
        ("warm_sweeps", ctypes.c_int32),
        ("dependent_stages", ctypes.c_int64),
        ("column_passes", ctypes.c_int64),
        ("error_estimate", ctypes.c_double),
        ("output_error_estimate", ctypes.c_double),
        ("rounding_estimate", ctypes.c_double),
        ("last_update", ctypes.c_double),
        ("attempt_solver", ctypes.c_char_p),
        ("attempt_termination", ctypes.c_char_p),
    )


class Outputs(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("outputs", ctypes.c_void_p),
        ("final_states", ctypes.c_void_p),
        ("trajectory", ctypes.c_void_p),
        ("reports", ctypes.c_void_p),
        ("report_size", ctypes.c_size_t),
        ("seconds", ctypes.c_double),
    )


_INTEGERS = (ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64)


def _integer(name: str, value: Any, kind: Any) -> int:
    """The value, which ctypes would cut to what fits."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an integer, got a {type(value).__name__}") from None
    bits = 8 * ctypes.sizeof(kind)
    least, most = (
        (0, 2**bits - 1) if kind(-1).value > 0 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    if not least <= number <= most:
        raise ValueError(f"{name}: expected an integer in [{least}, {most}], got {number}")
    return number


def sized(kind: type[_Structure], **fields: Any) -> _Structure:
    types: dict[str, Any] = {name: each for name, each, *_ in kind._fields_}
    for name, value in fields.items():
        if types[name] in _INTEGERS:
            fields[name] = _integer(name, value, types[name])
    return kind(struct_size=ctypes.sizeof(kind), **fields)
