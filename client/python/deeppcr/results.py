# SPDX-License-Identifier: Apache-2.0
"""What calls answer with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deeppcr.arrays import Floats, array_of
from deeppcr.protocol import message_class


class Result(np.ndarray[Any, np.dtype[np.float32]]):
    """The outputs or samples [n, output_dim], float32, with the server's report beside.

    Arrays that are computed from it are plain ones, and views of it have no report.
    """

    report: Report | None
    trajectory: Floats | None  # [n, L + 1, state_dim], with return_trajectory
    latents: Floats | None  # [n, state_dim], of a model with a decoder
    handle: str  # of the kept trajectory, with keep_trajectory

    def __array_finalize__(self, source: Any) -> None:
        self.report = self.trajectory = self.latents = None
        self.handle = ""

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar or array.ndim == 0 else np.asarray(array)

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()

    def numpy(self) -> Floats:
        """A plain array of the same memory."""
        return np.asarray(self)


def result_of(tensor: Any, response: Any) -> Result:
    result: Result = array_of(tensor).view(Result)
    result.report = Report(response.report)
    if response.HasField("trajectory"):
        result.trajectory = array_of(response.trajectory)
    if "latents" in response.DESCRIPTOR.fields_by_name and response.HasField("latents"):
        result.latents = array_of(response.latents)
    result.handle = response.trajectory_handle
    return result


def _optional(message: Any, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


@dataclass(frozen=True)
class SampleReport:
    """The cost of one sample and the quality of its answer; figures that are not known are None."""

    solver: str  # whose answer it is: sequential after a fallback
    termination: str
    converged: bool
    fallback: bool
    iterations: int
    dependent_stages: int
    error_estimate: float | None
    output_error_estimate: float | None
    rounding_estimate: float | None
    reason: str  # of a fallback: how the solver that was asked for ended; empty without one

    @classmethod
    def of(cls, message: Any) -> SampleReport:
        return cls(
            solver=message.solver,
            termination=message.termination,
            converged=message.converged,
            fallback=message.fallback,
            iterations=message.iterations,
            dependent_stages=message.dependent_stages,
            error_estimate=_optional(message, "error_estimate"),
            output_error_estimate=_optional(message, "output_error_estimate"),
            rounding_estimate=_optional(message, "rounding_estimate"),
            reason=message.attempt.termination if message.HasField("attempt") else "",
        )


class Report:
    """The server's report on a solve. `message` has every field of SolveReport."""

    def __init__(self, message: Any) -> None:
        self.message = message
        self.samples = tuple(SampleReport.of(sample) for sample in message.samples)

    def __reduce__(self) -> Any:
        return _report_from, (self.message.SerializeToString(),)

    @property
    def solver(self) -> str:
        """The solver that answered; several, joined by "+", where samples differ."""
        return "+".join(sorted({sample.solver for sample in self.samples}))

    @property
    def converged(self) -> bool:
        return all(sample.converged for sample in self.samples)

    @property
    def fallbacks(self) -> int:
        return sum(sample.fallback for sample in self.samples)

    @property
    def error_estimate(self) -> float | None:
        """The largest one; None if a sample has none, as those of the sequential solver."""
        estimates = [sample.error_estimate for sample in self.samples]
        known = [estimate for estimate in estimates if estimate is not None]
        return max(known) if known and len(known) == len(estimates) else None

    @property
    def solve_seconds(self) -> float:
        return float(self.message.solve_seconds)

    @property
    def queue_seconds(self) -> float:
        return float(self.message.queue_seconds)

    @property
    def plan_id(self) -> str:
        return str(self.message.plan_id)

    @property
    def device(self) -> str:
        return str(self.message.device)

    @property
    def model_version(self) -> int:
        return int(self.message.model_version)

    def __repr__(self) -> str:
        stages = max((sample.dependent_stages for sample in self.samples), default=0)
        error = "" if self.error_estimate is None else f", error ~{self.error_estimate:.1e}"
        fallbacks = f", {self.fallbacks} fell back" if self.fallbacks else ""
        return (
            f"<Report {self.solver or 'nothing solved'} on {self.device}: {stages} of "
            f"{self.message.num_steps} dependent stages, {1e3 * self.solve_seconds:.3f} ms"
            f"{error}{fallbacks}>"
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{i}</td><td>{s.solver}</td><td>{s.termination}</td><td>{s.iterations}</td>"
            f"<td>{s.dependent_stages}</td>"
            f"<td>{'' if s.error_estimate is None else f'{s.error_estimate:.1e}'}</td></tr>"
            for i, s in enumerate(self.samples)
        )
        return (
            f"<p>{self.device}, plan {self.plan_id}, {1e3 * self.solve_seconds:.3f} ms</p>"
            "<table><tr><th>sample</th><th>solver</th><th>ended</th><th>iterations</th>"
            f"<th>dependent stages</th><th>error</th></tr>{rows}</table>"
        )


def _report_from(data: bytes) -> Report:
    return Report(message_class("SolveReport").FromString(data))


@dataclass(frozen=True)
class Progress:
    """How far a solve has come: steps of the sequential solver, iterations of others."""

    sample: int
    solver: str
    iterations: int
    steps: int
    num_steps: int
    update: float | None
    error_estimate: float | None

    @classmethod
    def of(cls, message: Any, first_sample: int = 0) -> Progress:
        return cls(
            first_sample + message.sample,
            message.solver,
            message.iterations,
            message.steps,
            message.num_steps,
            _optional(message, "update"),
            _optional(message, "error_estimate"),
        )


@dataclass(frozen=True)
class Gradients:
    """The gradients that were asked for: [n, ..], or [n, m, ..] for m cotangents of each sample."""

    inputs: Floats | None = None
    initial_state: Floats | None = None
    step_noise: Floats | None = None
    outputs: Floats | None = None
    losses: tuple[float, ...] = ()
    report: Report | None = None
    handle: str = ""
    message: Any = field(default=None, repr=False)  # GradientResponse, with the way back's report


class Comparison:
    """Rows of Compare: what each solver took for the same input, and how far it was off."""

    def __init__(self, message: Any) -> None:
        self.message = message
        self.rows = tuple(message.rows)

    def __reduce__(self) -> Any:
        return _comparison_from, (self.message.SerializeToString(),)

    _COLUMNS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("solver", lambda r: r.requested_solver),
        ("ms", lambda r: 1e3 * r.median_seconds),
        ("speedup", lambda r: r.speedup),
        ("stages", lambda r: r.dependent_stages),
        ("iterations", lambda r: r.max_iterations),
        ("state error", lambda r: r.max_state_error),
        ("fell back", lambda r: r.fallbacks),
    )

    def __repr__(self) -> str:
        lines = ["  ".join(f"{name:>12}" for name, _ in self._COLUMNS)]
        for row in self.rows:
            if row.error:
                lines.append(f"{row.requested_solver:>12}  {row.error}")
                continue
            cells = [value(row) for _, value in self._COLUMNS]
            lines.append(
                "  ".join(
                    f"{cell:>12.4g}" if isinstance(cell, float) else f"{cell:>12}" for cell in cells
                )
            )
        return "\n".join(lines)

    def plot(self, axes: Any = None) -> Any:
        """Bars of the median times, by matplotlib."""
        from matplotlib import pyplot

        axes = axes or pyplot.gca()
        rows = [row for row in self.rows if not row.error]
        axes.bar([row.requested_solver for row in rows], [1e3 * row.median_seconds for row in rows])
        axes.set_ylabel("median of a solve, ms")
        return axes


def _comparison_from(data: bytes) -> Comparison:
    return Comparison(message_class("CompareResponse").FromString(data))
