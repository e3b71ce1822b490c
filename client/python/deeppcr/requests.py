# SPDX-License-Identifier: Apache-2.0
"""Arguments of calls to messages: proto/deeppcr/v1/deeppcr.proto has their ranges and defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict, cast

import numpy as np

from deeppcr import arrays, protocol
from deeppcr.arrays import Floats
from deeppcr.errors import InternalError


class Options(TypedDict, total=False):
    """How a request is solved: the fields of SolverOptions; the plan chooses the rest."""

    solver: str  # sequential, newton, quasi_newton, picard, jacobi or auto
    rtol: float
    atol: float
    max_iterations: int
    shooting_interval: int
    warm_sweeps: int
    initial_guess: str  # constant, coarse, calibrated or previous
    jacobian_refresh: str  # every_iteration or while_contracting
    on_no_convergence: str  # fallback, return or error
    return_trajectory: bool
    keep_trajectory: bool


class Generation(TypedDict, total=False):
    """What is drawn: the fields of GenerationInput. Arrays are [n, ..], or of one sample."""

    seed: int
    first_sample: int
    num_inference_steps: int
    class_labels: Any
    conditioning: Any
    initial_noise: Any
    step_noise: Any
    guidance_scale: float
    null_conditioning: Any
    temperature: float
    initial_temperature: float
    noise_clip: float
    initial_noise_clip: float
    first_step: int
    initial_samples: Any
    known_elements: Any
    known_values: Any
    lower_bounds: Any
    upper_bounds: Any


class WayBack(TypedDict, total=False):
    """What goes back, and along what: the fields of GradientRequest."""

    cotangents: Any
    final_state_cotangents: Any
    loss: str  # mse or cross_entropy
    targets: Any
    target_classes: Any
    way: str  # sequential, parallel or auto
    shooting_interval: int
    by: Iterable[str]  # inputs, initial_state, step_noise
    trajectory: Any
    trajectory_handle: str
    estimate_error: bool
    request_id: str


# Arrays of a generation that have a row for each sample, or one for all, and their dimensions.
ROWS = {
    "class_labels": 1,
    "conditioning": 2,
    "initial_noise": 2,
    "step_noise": 3,
    "null_conditioning": 2,
    "initial_samples": 2,
    "known_values": 2,
}
_ENUMS = {
    "initial_guess": protocol.enum_values("InitialGuess"),
    "jacobian_refresh": protocol.enum_values("JacobianRefresh"),
    "on_no_convergence": protocol.enum_values("OnNoConvergence"),
}
_WAY_ENUMS = {
    "way": protocol.enum_values("BackwardWay"),
    "loss": protocol.enum_values("Loss"),
}
_COTANGENTS = ("cotangents", "final_state_cotangents")
_BY = protocol.enum_values("GradientBy")
# Tensors of a generation, and their dimensions.
_TENSORS = {
    "conditioning": 2,
    "initial_noise": 2,
    "step_noise": 3,
    "null_conditioning": 2,
    "initial_samples": 2,
    "known_values": 2,
}
_LISTS = ("class_labels", "known_elements", "lower_bounds", "upper_bounds")


def samples_wanted(n: int | None, generation: Generation) -> int:
    """n, or as many as the arrays have rows; one without any."""
    if n is not None:
        if n < 1:
            raise ValueError(f"n: expected at least 1, got {n}")
        return n
    given = ((name, cast(Any, value)) for name, value in generation.items() if name in ROWS)
    rows = [len(value) for name, value in given if np.ndim(value) >= ROWS[name]]
    return max(rows, default=1)


def _enum(name: str, value: str, values: dict[str, int]) -> int:
    known = [each for each in values if each != "unspecified"]
    if value not in known:
        raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
    return values[value]


def _check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise TypeError(
            f"{what}: unexpected {', '.join(unknown)}"
            + (f"; expected among {', '.join(sorted(known))}" if known else "")
        )


def fill_options(message: Any, options: Options) -> None:
    _check_names("options", options, Options.__annotations__)
    for name, value in options.items():
        if value is None:
            continue
        _set(message, name, _enum(name, str(value), _ENUMS[name]) if name in _ENUMS else value)


def fill_generation(message: Any, n: int, generation: Generation) -> None:
    _check_names("generation", generation, Generation.__annotations__)
    message.num_samples = n
    for name, value in generation.items():
        if value is None:
            continue
        if name in _TENSORS:
            arrays.fill(getattr(message, name), value, name, _TENSORS[name])
        elif name in _LISTS:
            getattr(message, name).extend(np.asarray(value).reshape(-1).tolist())
        else:
            _set(message, name, value)


def _set(message: Any, name: str, value: Any) -> None:
    """A field of a number or a text, whose name an error has."""
    try:
        setattr(message, name, value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def _named(name: str, model: str, version: int) -> Any:
    request = protocol.message_class(name)()
    request.model, request.version = model, version
    return request


def forward(
    model: str, version: int, inputs: Any, initial_states: Any, request_id: str, options: Options
) -> Any:
    request = _named("ForwardRequest", model, version)
    arrays.fill(request.inputs, inputs, "inputs", 2)
    if initial_states is not None:
        arrays.fill(request.initial_states, initial_states, "initial_states", 3)
    request.request_id = request_id
    fill_options(request.options, options)
    return request


def generate(
    model: str,
    version: int,
    n: int,
    initial_states: Any,
    request_id: str,
    generation: Generation,
    options: Options,
) -> Any:
    request = _named("GenerateRequest", model, version)
    fill_generation(request.input, n, generation)
    if initial_states is not None:
        arrays.fill(request.initial_states, initial_states, "initial_states", 3)
    request.request_id = request_id
    fill_options(request.options, options)
    return request


def compare(
    model: str,
    version: int,
    inputs: Any,
    n: int | None,
    generation: Generation,
    solvers: str | Iterable[str | Options],
    repetitions: int,
) -> Any:
    request = _named("CompareRequest", model, version)
    if inputs is not None:
        arrays.fill(request.inputs, inputs, "inputs", 2)
        _check_names("compare of inputs", generation, ())
    else:
        fill_generation(request.generation, samples_wanted(n, generation), generation)
    for row in [solvers] if isinstance(solvers, str) else solvers:
        fill_options(request.options.add(), {"solver": row} if isinstance(row, str) else row)
    request.repetitions = repetitions
    return request


def gradient(
    model: str,
    version: int,
    inputs: Any,
    n: int | None,
    options: Options,
    arguments: Mapping[str, Any],
) -> Any:
    """arguments: those of WayBack and, of a model that generates, of Generation."""
    way = {name: value for name, value in arguments.items() if name in WayBack.__annotations__}
    generation = {name: value for name, value in arguments.items() if name not in way}
    request = _named("GradientRequest", model, version)
    if inputs is not None:
        arrays.fill(request.inputs, inputs, "inputs", 2)
        _check_names("gradient", generation, WayBack.__annotations__)
    else:
        drawn = cast(Generation, generation)
        fill_generation(request.generation, samples_wanted(n, drawn), drawn)
    for name, value in way.items():
        if value is None:
            continue
        if name in _COTANGENTS:
            dims = np.ndim(value) if np.ndim(value) in (2, 3) else 2
            arrays.fill(getattr(request, name), value, name, dims)
        elif name in ("targets", "trajectory"):
            arrays.fill(getattr(request, name), value, name, 2 if name == "targets" else 3)
        elif name == "target_classes":
            request.target_classes.extend(np.asarray(value).reshape(-1).tolist())
        elif name == "by":
            names = [value] if isinstance(value, str) else value
            request.gradients.extend(_enum("by", each, _BY) for each in names)
        elif name in _WAY_ENUMS:
            setattr(request, name, _enum(name, value, _WAY_ENUMS[name]) if value else 0)
        else:
            _set(request, name, value)
    fill_options(request.options, options)
    return request


def of_model(name: str, model: str, version: int) -> Any:
    """A request that names nothing but a model."""
    return _named(name, model, version)


class Pieces:
    """Gradients by the model's tensors, which come in pieces."""

    def __init__(self) -> None:
        self._tensors: dict[str, Floats] = {}
        self._missing: dict[str, int] = {}

    def add(self, piece: Any) -> None:
        shape = tuple(piece.shape)
        tensor = self._tensors.setdefault(piece.name, np.zeros(shape, np.float32))
        values = np.frombuffer(piece.data, "<f4")
        end = piece.offset + len(values)
        if tensor.shape != shape or not 0 <= piece.offset <= end <= tensor.size:
            raise InternalError(f"bad reply: a piece that {piece.name} has no room for")
        tensor.reshape(-1)[piece.offset : end] = values
        self._missing[piece.name] = self._missing.get(piece.name, tensor.size) - len(values)

    def tensors(self) -> dict[str, Floats]:
        for name, count in self._missing.items():
            if count != 0:
                raise InternalError(f"bad reply: {name} is {count} values short")
        return self._tensors
