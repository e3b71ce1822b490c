# SPDX-License-Identifier: Apache-2.0
"""The engine in this process, by libdeeppcr: no server, no copies over a network.

engine = deeppcr.Engine()
model = engine.load("models/digits-ddpm/1")
samples = model.generate(16, seed=0)
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import math
import numbers
import os
import pathlib
import weakref
from typing import Any, TypedDict

import numpy as np
from typing_extensions import Unpack

from deeppcr import arrays, c_structures, errors
from deeppcr.protocol import enum_values, message_class
from deeppcr.requests import ROWS
from deeppcr.results import Report, Result

HOW_TO_GET_IT = """no libdeeppcr was found: not by the argument library, not in the package
deeppcr_server, not where the system looks for libraries and not in a build folder of a checkout.
`pip install build/wheels/deeppcr*.whl` brings one where deploy/wheels.sh has made it."""

_PLAN_MODES = {"prefer": 0, "measure": 1, "require": 2}


class RunArguments(TypedDict, total=False):
    """How a run is solved: deeppcr.h has ranges and defaults."""

    solver: str
    rtol: float
    atol: float
    max_iterations: int
    shooting_interval: int
    warm_sweeps: int
    initial_guess: str  # constant, coarse, calibrated or previous
    jacobian_refresh: str
    on_no_convergence: str
    num_inference_steps: int
    timeout: float
    return_trajectory: bool


def find_library(library: str | os.PathLike[str] | None = None) -> str:
    """The argument, the package deeppcr_server, the system's, or the build of a checkout."""
    if library:
        return os.fspath(library)
    if importlib.util.find_spec("deeppcr_server") is not None:
        import deeppcr_server

        # A checkout has the package without what is built into it.
        if pathlib.Path(deeppcr_server.LIBRARY).is_file():
            return str(deeppcr_server.LIBRARY)
    known = ctypes.util.find_library("deeppcr")
    if known:
        return known
    for folder in pathlib.Path(__file__).resolve().parents:
        for preset in ("release", "test"):
            path = folder / "build" / preset / "kernels/c_api/libdeeppcr.so"
            if path.is_file():
                return str(path)
    raise FileNotFoundError(HOW_TO_GET_IT)


def _address(array: Any) -> int | None:
    return None if array is None else int(array.ctypes.data)


class Engine:
    """Loads models and runs them on the threads of its callers. Thread-safe.

    Errors of calls are those of deeppcr.Client, by the same statuses.
    """

    def __init__(
        self,
        library: str | os.PathLike[str] | None = None,
        *,
        backend: str = "auto",
        num_threads: int = 0,
        plan_mode: str = "prefer",
        plan_cache_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        if plan_mode not in _PLAN_MODES:
            raise ValueError(
                f"plan_mode: expected one of {', '.join(_PLAN_MODES)}, got {plan_mode!r}"
            )
        path = find_library(library)
        self._calls = ctypes.CDLL(path)
        for name in ("last_error", "version", "engine_device", "model_solver"):
            if not hasattr(self._calls, f"deeppcr_{name}"):
                raise OSError(
                    f"{path}: expected a libdeeppcr, got a library without deeppcr_{name}"
                )
            getattr(self._calls, f"deeppcr_{name}").restype = ctypes.c_char_p
        self._process = os.getpid()
        options = c_structures.sized(
            c_structures.EngineOptions,
            backend=backend.encode(),
            num_threads=num_threads,
            plan_cache_dir=None if plan_cache_dir is None else os.fsencode(plan_cache_dir),
            plan_mode=_PLAN_MODES[plan_mode],
            max_model_bytes=1 << 30,
            max_workspace_bytes=1 << 28,
            max_unplanned_bytes=-1,
        )
        self._handle = ctypes.c_void_p()
        self._check(
            self._calls.deeppcr_engine_create(ctypes.byref(options), ctypes.byref(self._handle))
        )
        weakref.finalize(self, _destroy, self._calls.deeppcr_engine_destroy, self._handle)

    @property
    def device(self) -> str:
        return str(self._calls.deeppcr_engine_device(self._handle).decode())

    @property
    def version(self) -> str:
        return str(self._calls.deeppcr_version().decode())

    def load(self, path: str | os.PathLike[str]) -> Model:
        """The model in the folder of one of its versions."""
        if "\0" in os.fspath(path):
            raise ValueError("path: expected none with a zero byte")
        handle = ctypes.c_void_p()
        self._check(
            self._calls.deeppcr_model_load(
                self._handle, os.fsencode(path), None, ctypes.byref(handle)
            )
        )
        return Model(self, handle)

    def _check(self, status: int) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("this Engine is of another process: make one after the fork")
        if status != 0:
            raise errors.error_of(status, self._calls.deeppcr_last_error().decode())

    def __reduce__(self) -> Any:
        raise TypeError("an Engine is of one process: make one where it is used")

    def __repr__(self) -> str:
        return f"<deeppcr.Engine {self.version} on {self.device}>"


def _destroy(function: Any, handle: ctypes.c_void_p) -> None:
    function(handle)


def _labels(value: Any) -> Any:
    array = np.asarray(value)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"class_labels: expected integers, got {array.dtype}")
    limits = np.iinfo(np.int32)
    if array.size and not limits.min <= array.min() <= array.max() <= limits.max:
        wrong = array.min() if array.min() < limits.min else array.max()
        raise ValueError(f"class_labels: expected integers of 32 bits, got {wrong}")
    return np.ascontiguousarray(array, np.int32).reshape(-1)


class Model:
    """A loaded model; what `info` has is that of deeppcr_model_info."""

    def __init__(self, engine: Engine, handle: ctypes.c_void_p) -> None:
        self._engine, self._handle = engine, handle
        weakref.finalize(self, _destroy, engine._calls.deeppcr_model_destroy, handle)
        info = c_structures.sized(c_structures.ModelInfo)
        engine._check(engine._calls.deeppcr_model_describe(handle, ctypes.byref(info)))
        values = ((name, getattr(info, name)) for name, *_ in info._fields_[1:])
        self.info: dict[str, Any] = {
            name: value.decode() if isinstance(value, bytes) else value for name, value in values
        }

    def __reduce__(self) -> Any:
        raise TypeError("a Model is of one Engine: load it where it is used")

    def forward(
        self, inputs: Any, *, initial_states: Any = None, **options: Unpack[RunArguments]
    ) -> Result:
        """Inputs [n, input_dim], or [input_dim]: outputs [n, output_dim]."""
        if self.info["generates"]:
            raise errors.FailedPreconditionError(
                "forward: expected no diffusion model; use generate"
            )
        rows = arrays.as_floats(inputs, "inputs")
        rows = rows[None] if rows.ndim == 1 else rows
        self._check_number(len(rows))
        self._check_shape("inputs", rows, (len(rows), self.info["input_dim"]))
        return self._run(len(rows), {"inputs": rows, "initial_states": initial_states}, options)

    def generate(
        self,
        n: int = 1,
        *,
        seed: int = 0,
        first_sample: int = 0,
        class_labels: Any = None,
        conditioning: Any = None,
        initial_noise: Any = None,
        step_noise: Any = None,
        initial_states: Any = None,
        **options: Unpack[RunArguments],
    ) -> Result:
        """n samples [n, output_dim] of a diffusion model; a condition of one row is for all."""
        if not self.info["generates"]:
            kind = self.info["model_type"]
            raise errors.FailedPreconditionError(
                f"generate: expected a diffusion model, got a model of the type {kind}; use forward"
            )
        self._check_number(n)
        for name, value, wanted in (
            ("class_labels", class_labels, self.info["num_classes"]),
            ("conditioning", conditioning, self.info["input_dim"]),
        ):
            if wanted and value is None:
                raise ValueError(f"{name}: expected those of {n} samples, got none")
        given = {
            "class_labels": class_labels,
            "inputs": conditioning,
            "initial_noise": initial_noise,
            "step_noise": step_noise,
            "initial_states": initial_states,
        }
        return self._run(n, given, options, seed=seed, first_sample=first_sample)

    def _check_number(self, n: int) -> None:
        if not 1 <= n <= self.info["max_batch_size"]:
            raise ValueError(f"n: expected 1 to {self.info['max_batch_size']} samples, got {n}")

    def _check_shape(self, name: str, array: Any, shape: tuple[int, ...]) -> None:
        if array.shape != shape:
            raise ValueError(f"{name}: expected the shape {list(shape)}, got {list(array.shape)}")

    def _shape_of(self, name: str, n: int, steps: int) -> tuple[int, ...]:
        state_dim = self.info["state_dim"]
        sample_dim = state_dim - self.info["memory_dim"]
        return {
            "class_labels": (n,),
            "inputs": (n, self.info["input_dim"]),
            "initial_noise": (n, sample_dim),
            "step_noise": (n, steps, sample_dim),
            "initial_states": (n, steps + 1, state_dim),
        }[name]

    def _array(self, name: str, value: Any, n: int, steps: int) -> Any:
        """The argument as the library reads it: rows for all n samples, of the right shape."""
        if value is None:
            return None
        shape = self._shape_of(name, n, steps)
        array: Any
        shown = "conditioning" if name == "inputs" and self.info["generates"] else name
        if name == "class_labels":
            array = _labels(value)
        else:
            array = arrays.as_floats(value, shown)
            array = array[None] if array.ndim == len(shape) - 1 else array
        if name in (*ROWS, "inputs") and len(array) == 1 and n > 1:
            array = np.repeat(array, n, axis=0)
        self._check_shape(shown, array, shape)
        return array

    def _run(self, n: int, given: dict[str, Any], options: RunArguments, **numbers: int) -> Result:
        steps = options.get("num_inference_steps") or self.info["num_steps"]
        kept = {name: self._array(name, value, n, steps) for name, value in given.items()}
        addresses = {name: _address(array) for name, array in kept.items()}
        inputs = c_structures.sized(c_structures.Inputs, num_samples=n, **addresses, **numbers)
        result = np.empty((n, self.info["output_dim"]), np.float32).view(Result)
        if options.get("return_trajectory"):
            try:
                result.trajectory = np.empty((n, steps + 1, self.info["state_dim"]), np.float32)
            except (MemoryError, ValueError):
                raise ValueError(
                    f"num_inference_steps: expected a trajectory that fits, got {steps} steps"
                ) from None
        reports = (c_structures.Report * n)()
        outputs = c_structures.sized(
            c_structures.Outputs,
            outputs=_address(result),
            trajectory=_address(result.trajectory),
            reports=ctypes.addressof(reports),
            report_size=ctypes.sizeof(c_structures.Report),
        )
        run_options = _run_options(options)
        engine = self._engine
        engine._check(
            engine._calls.deeppcr_run(
                self._handle, ctypes.byref(run_options), ctypes.byref(inputs), ctypes.byref(outputs)
            )
        )
        result.report = _report_of(reports, outputs.seconds, steps, engine.device)
        for array in (result, result.trajectory):
            if array is not None:
                array.flags.writeable = False  # as the client's answers are
        return result

    def __repr__(self) -> str:
        return f"<deeppcr.engine.Model {self.info['model_type']} on {self._engine.device}>"


def _run_options(options: RunArguments) -> Any:
    values: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6, "warm_sweeps": -1}
    enums = {
        "initial_guess": "InitialGuess",
        "jacobian_refresh": "JacobianRefresh",
        "on_no_convergence": "OnNoConvergence",
    }
    for name, value in options.items():
        if name not in RunArguments.__annotations__:
            raise TypeError(f"options: unexpected {name}")
        if value is None or name == "return_trajectory":
            continue
        if name == "solver":
            values[name] = str(value).encode()
        elif name == "timeout":
            seconds = float(value) if isinstance(value, numbers.Real) else math.nan
            if not 0 < seconds < math.inf:
                raise ValueError(f"timeout: expected a number of seconds above 0, got {value}")
            values["timeout_seconds"] = seconds
        elif name in enums:
            known = _guesses(enums[name])
            if value not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
            values[name] = known[str(value)]
        else:
            values[name] = value
    return c_structures.sized(c_structures.RunOptions, **values)


def _guesses(enum: str) -> dict[str, int]:
    """The numbers of deeppcr.h, which are those of the protocol but for on_no_convergence."""
    values = {name: value for name, value in enum_values(enum).items() if name != "unspecified"}
    if enum == "OnNoConvergence":
        return {"fallback": 0, "return": 1, "error": 2}
    return values


def _report_of(reports: Any, seconds: float, num_steps: int, device: str) -> Report:
    message = message_class("SolveReport")()
    message.solve_seconds, message.num_steps, message.device = seconds, num_steps, device
    for report in reports:
        sample = message.samples.add()
        sample.solver, sample.termination = report.solver.decode(), report.termination.decode()
        sample.converged, sample.fallback = bool(report.converged), bool(report.fallback)
        for name in (
            *("iterations", "chord_corrections", "confirmations", "warm_sweeps"),
            *("dependent_stages", "column_passes"),
        ):
            setattr(sample, name, getattr(report, name))
        for name, source in (
            ("error_estimate", "error_estimate"),
            ("output_error_estimate", "output_error_estimate"),
            ("rounding_estimate", "rounding_estimate"),
            ("update", "last_update"),
        ):
            if not math.isnan(getattr(report, source)):
                setattr(sample, name, getattr(report, source))
        if report.attempt_solver is not None:
            sample.attempt.solver = report.attempt_solver.decode()
            sample.attempt.termination = report.attempt_termination.decode()
    return Report(message)
