# SPDX-License-Identifier: Apache-2.0
"""The client. Thread-safe; all calls share one connection, which a fork of the process must not."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

import grpc
import numpy as np
from typing_extensions import Self, Unpack

from deeppcr import arrays, calls, connection, errors, protocol, requests
from deeppcr.arrays import Floats
from deeppcr.pace import Pace
from deeppcr.requests import Generation, Options, WayBack
from deeppcr.results import Comparison, Gradients, Progress, Report, Result, result_of

T = TypeVar("T")


class GenerationOptions(Generation, Options):
    """What Generate takes by name: of what is drawn, and how it is solved."""


class GradientArguments(WayBack, Generation):
    """What Gradient takes by name: of the way back, and of what is drawn."""


def split_arguments(given: Any) -> tuple[Generation, Options]:
    generation = {k: v for k, v in given.items() if k in Generation.__annotations__}
    options = {k: v for k, v in given.items() if k not in generation}
    return cast(Generation, generation), cast(Options, options)


def gradients_of(response: Any) -> Gradients:
    def optional(name: str) -> Floats | None:
        return arrays.array_of(getattr(response, name)) if response.HasField(name) else None

    return Gradients(
        inputs=optional("input_gradients"),
        initial_state=optional("initial_state_gradients"),
        step_noise=optional("step_noise_gradients"),
        outputs=optional("outputs"),
        losses=tuple(response.losses),
        report=Report(response.report) if response.HasField("report") else None,
        handle=response.trajectory_handle,
        message=response,
    )


def samples_wanted(n: int | None, generation: Generation) -> int:
    """n, or as many as the arrays have rows; one without any."""
    if n is not None:
        if n < 1:
            raise ValueError(f"n: expected at least 1, got {n}")
        return n
    rows = [
        len(cast(Any, value))
        for name, value in generation.items()
        if name in calls._ROWS and np.ndim(cast(Any, value)) >= (1 if name == "class_labels" else 2)
    ]
    return max(rows, default=1)


class Client:
    """A connection to a server, or to a fleet of servers.

    server: host:port, unix:FILE, dns:///host:port, or IP addresses with ports, by commas.
    timeout: seconds that a call may take, unless it says otherwise.
    Nothing is sent, and nothing fails, before the first call.
    """

    def __init__(
        self,
        server: str,
        *,
        timeout: float = 60.0,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        token: str | None = None,
    ) -> None:
        self.server = server
        self.timeout = timeout
        self._access = connection.Access(tls_ca, tls_cert, tls_key, token)
        target = connection.parse_server(server)
        self._access.check(target)
        options, credentials = connection.channel_options(target), self._access.credentials()
        self._channel = (
            grpc.insecure_channel(target.text, options)
            if credentials is None
            else grpc.secure_channel(target.text, credentials, options)
        )
        self._methods = {name: self._method(method) for name, method in protocol.METHODS.items()}
        self._lock = threading.Lock()
        self._batch_sizes: dict[tuple[str, int], int] = {}
        self._process = os.getpid()

    def _method(self, method: protocol.Method) -> Any:
        kind = self._channel.unary_stream if method.streams else self._channel.unary_unary
        return kind(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a Client is a connection: make one where it is used")

    def __repr__(self) -> str:
        return f"<deeppcr.Client of {self.server}>"

    def _run(self, call: Callable[..., T], request: Any, timeout: float | None) -> T:
        if os.getpid() != self._process:
            raise RuntimeError("this Client is of another process: make one after the fork")
        metadata, trace_id = connection.metadata_of(self._access)
        try:
            return call(
                request, timeout=self.timeout if timeout is None else timeout, metadata=metadata
            )
        except grpc.RpcError as error:
            raise errors.error_from(error, self.server, trace_id) from None

    def _call(self, name: str, request: Any, timeout: float | None) -> Any:
        return self._run(self._methods[name], request, timeout)

    def _batch_size(self, model: str, version: int, timeout: float | None) -> int:
        with self._lock:
            known = self._batch_sizes.get((model, version))
        if known is None:
            known = int(self.model(model, version, timeout=timeout).max_batch_size)
            with self._lock:
                self._batch_sizes[(model, version)] = known
        return known

    def _parts(self, model: str, version: int, n: int, timeout: float | None) -> list[slice]:
        most = n if n == 1 else self._batch_size(model, version, timeout)
        return list(calls.parts_of(n, most))

    def forward(
        self,
        model: str,
        inputs: Any,
        *,
        version: int = 0,
        initial_states: Any = None,
        request_id: str = "",
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Result:
        """Runs inputs [n, input_dim], or [input_dim], through a model: outputs [n, output_dim].

        More samples than a request may have go in several.
        """
        rows = arrays.as_floats(inputs, "inputs")
        rows = rows[None] if rows.ndim == 1 else rows
        states = (
            None if initial_states is None else arrays.as_floats(initial_states, "initial_states")
        )
        results = []
        for part in self._parts(model, version, len(rows), timeout):
            request = requests.forward(
                model,
                version,
                rows[part],
                None if states is None else states[part],
                request_id,
                options,
            )
            response = self._call("Forward", request, timeout)
            results.append(result_of(response.outputs, response))
        return calls.joined(results)

    def generate(
        self,
        model: str,
        n: int | None = None,
        *,
        version: int = 0,
        initial_states: Any = None,
        request_id: str = "",
        timeout: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        **arguments: Unpack[GenerationOptions],
    ) -> Result:
        """Draws n samples [n, output_dim] of a diffusion model.

        Without n as many as the arrays have rows. More samples than a request may have go in
        several, and are those that one would have given. on_progress is called while they are
        computed.
        """
        result: Result | None = None
        if on_progress is None:
            return self._generate(model, n, version, initial_states, request_id, timeout, arguments)
        for event in self.generate_events(
            model,
            n,
            version=version,
            initial_states=initial_states,
            request_id=request_id,
            timeout=timeout,
            **arguments,
        ):
            if isinstance(event, Result):
                result = event
            else:
                on_progress(event)
        assert result is not None
        return result

    def _generate(
        self,
        model: str,
        n: int | None,
        version: int,
        initial_states: Any,
        request_id: str,
        timeout: float | None,
        arguments: Any,
    ) -> Result:
        return calls.joined(
            [
                result_of(response.samples, response)
                for response in (
                    self._call("Generate", request, timeout)
                    for request in self._generations(
                        model, n, version, initial_states, request_id, timeout, arguments
                    )
                )
            ]
        )

    def _generations(
        self,
        model: str,
        n: int | None,
        version: int,
        initial_states: Any,
        request_id: str,
        timeout: float | None,
        arguments: Any,
    ) -> Iterator[Any]:
        """The requests that n samples take."""
        generation, options = split_arguments(arguments)
        n = samples_wanted(n, generation)
        for part in self._parts(model, version, n, timeout):
            states = None if initial_states is None else initial_states[part]
            yield requests.generate(
                model,
                version,
                part.stop - part.start,
                states,
                request_id,
                calls.rows_of(generation, n, part),
                options,
            )

    def generate_events(
        self,
        model: str,
        n: int | None = None,
        *,
        version: int = 0,
        initial_states: Any = None,
        request_id: str = "",
        timeout: float | None = None,
        **arguments: Unpack[GenerationOptions],
    ) -> Iterator[Progress | Result]:
        """Progress while samples are drawn, as generate draws them, and last the Result."""
        results: list[Result] = []
        for request in self._generations(
            model, n, version, initial_states, request_id, timeout, arguments
        ):
            metadata, trace_id = connection.metadata_of(self._access)
            stream = self._methods["StreamGenerate"](
                request, timeout=self.timeout if timeout is None else timeout, metadata=metadata
            )
            before = len(results)
            try:
                for event in stream:
                    if event.HasField("result"):
                        results.append(result_of(event.result.samples, event.result))
                    else:
                        yield Progress.of(event.progress)
            except grpc.RpcError as error:
                raise errors.error_from(error, self.server, trace_id) from None
            finally:
                stream.cancel()
            if len(results) != before + 1:
                raise errors.InternalError("bad reply: the stream ended without a result")
        yield calls.joined(results)

    def compare(
        self,
        model: str,
        inputs: Any = None,
        *,
        n: int = 1,
        version: int = 0,
        solvers: Iterable[str | Options] = (),
        repetitions: int = 0,
        timeout: float | None = None,
        **generation: Unpack[Generation],
    ) -> Comparison:
        """Runs the same input through several solvers: what each took, and how far it was off."""
        rows: list[Options] = [
            {"solver": each} if isinstance(each, str) else each for each in solvers
        ]
        return Comparison(
            self._call(
                "Compare",
                requests.compare(model, version, inputs, n, generation, rows, repetitions),
                timeout,
            )
        )

    def gradient(
        self,
        model: str,
        inputs: Any = None,
        *,
        n: int = 1,
        version: int = 0,
        timeout: float | None = None,
        options: Options | None = None,
        **arguments: Unpack[GradientArguments],
    ) -> Gradients:
        """What the outputs, or a loss of them, change by with what went in.

        options: of the forward solve.
        """
        request = requests.gradient(model, version, inputs, n, options or {}, arguments)
        return gradients_of(self._call("Gradient", request, timeout))

    def parameter_gradients(
        self,
        model: str,
        inputs: Any = None,
        *,
        n: int = 1,
        version: int = 0,
        timeout: float | None = None,
        options: Options | None = None,
        **arguments: Unpack[GradientArguments],
    ) -> tuple[dict[str, Floats], Gradients]:
        """Gradients by the model's tensors, summed over the samples, and what Gradient says."""
        request = requests.gradient(model, version, inputs, n, options or {}, arguments)

        def call(message: Any, **how: Any) -> tuple[dict[str, Floats], Gradients]:
            tensors: dict[str, Floats] = {}
            for event in self._methods["StreamGradient"](message, **how):
                if event.HasField("result"):
                    return tensors, gradients_of(event.result)
                piece = event.piece
                flat = tensors.setdefault(
                    piece.name, np.empty(tuple(piece.shape), np.float32)
                ).reshape(-1)
                values = np.frombuffer(piece.data, "<f4")
                flat[piece.offset : piece.offset + len(values)] = values
            raise errors.InternalError("bad reply: the stream ended without a result")

        return self._run(call, request, timeout)

    def models(self, *, timeout: float | None = None) -> tuple[Any, ...]:
        """ModelSummary of every version that is there, sorted by name and version."""
        return tuple(
            self._call("ListModels", protocol.message_class("ListModelsRequest")(), timeout).models
        )

    def model(self, model: str, version: int = 0, *, timeout: float | None = None) -> Any:
        """GetModelResponse: shapes, configuration, plans."""
        return self._call("GetModel", requests.of_model("GetModelRequest", model, version), timeout)

    def load(self, model: str, version: int = 0, *, timeout: float | None = None) -> Any:
        """Loads or reloads a model; for administrators. ModelSummary of what serves then."""
        response = self._call(
            "LoadModel", requests.of_model("LoadModelRequest", model, version), timeout
        )
        with self._lock:
            self._batch_sizes.clear()
        return response.summary

    def unload(self, model: str, version: int = 0, *, timeout: float | None = None) -> None:
        """Unloads a version, or all of them; for administrators."""
        self._call("UnloadModel", requests.of_model("UnloadModelRequest", model, version), timeout)

    def is_ready(self, *, timeout: float = 5.0) -> bool:
        """True if a server is there, and all that it should serve is. Never raises."""
        check = self._channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            # HealthCheckResponse{status: SERVING}
            return bool(check(b"", timeout=timeout) == b"\x08\x01")
        except grpc.RpcError:
            return False

    def policy(self, model: str, **arguments: Any) -> Policy:
        """A control loop's view of a model: each answer is the guess of the next one's states."""
        return Policy(self, model, **arguments)


class Policy:
    """Asks for one action after the other, each from the last one's states.

    act(observation) conditions a diffusion model, or is the input of another. With rate_hz it waits
    for the next tick of that rate first, and `pace` has the figures. Not thread-safe.
    """

    def __init__(
        self,
        client: Client,
        model: str,
        *,
        n: int = 1,
        version: int = 0,
        timeout: float | None = None,
        rate_hz: float | None = None,
        **arguments: Any,
    ) -> None:
        self.pace = None if rate_hz is None else Pace(rate_hz)
        self._client, self._model, self._n, self._version = client, model, n, version
        self._timeout, self._arguments = timeout, arguments
        self._generates = client.model(model, version).summary.model_type == "diffusion"
        self._states: Floats | None = None

    def reset(self) -> None:
        """Forgets the states, as at the beginning of an episode."""
        self._states = None
        if self.pace is not None:
            self.pace.reset()

    def act(self, observation: Any = None, **arguments: Any) -> Result:
        if self.pace is None:
            return self._act(observation, arguments)
        started = self.pace.wait()
        result = self._act(observation, arguments)
        self.pace.done(started)
        return result

    def _act(self, observation: Any, arguments: dict[str, Any]) -> Result:
        how: dict[str, Any] = {**self._arguments, **arguments, "return_trajectory": True}
        if self._states is not None:
            how |= {"initial_states": self._states, "initial_guess": "previous"}
        if self._generates:
            if observation is not None:
                how["conditioning"] = observation
            result = self._client.generate(
                self._model, self._n, version=self._version, timeout=self._timeout, **how
            )
        else:
            result = self._client.forward(
                self._model, observation, version=self._version, timeout=self._timeout, **how
            )
        report = result.report
        self._states = result.trajectory if report is not None and report.converged else None
        return result
