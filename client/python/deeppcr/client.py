# SPDX-License-Identifier: Apache-2.0
"""The client. Thread-safe; all calls share one connection, which a fork of the process must not."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

import grpc
import numpy as np
from typing_extensions import Self, Unpack

from deeppcr import arrays, calls, connection, errors, protocol, requests
from deeppcr.arrays import Floats
from deeppcr.calls import Deadline
from deeppcr.pace import Pace
from deeppcr.requests import Generation, Options, WayBack, samples_wanted
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


class Client:
    """A connection to a server, or to a fleet of servers.

    server: host:port, unix:FILE, dns:///host:port, or IP addresses with ports, by commas.
    timeout: seconds that a call may take, with all its requests, unless it says otherwise.
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
        credentials = self._access.credentials()
        options = connection.channel_options(target, is_secure=credentials is not None)
        Deadline(timeout)  # refuses what is none
        self._channel = (
            grpc.insecure_channel(target.text, options)
            if credentials is None
            else grpc.secure_channel(target.text, credentials, options)
        )
        self._methods = {name: self._method(method) for name, method in protocol.METHODS.items()}
        self._lock = threading.Lock()
        self._batch_sizes: dict[tuple[str, int], int] = {}
        self._process = os.getpid()
        self._is_closed = False
        self.kept: object = None  # what has to live as long as it, as the server that made it

    def _method(self, method: protocol.Method) -> Any:
        kind = self._channel.unary_stream if method.streams else self._channel.unary_unary
        return kind(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )

    def close(self) -> None:
        self._is_closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a Client is a connection: make one where it is used")

    def __repr__(self) -> str:
        return f"<deeppcr.Client of {self.server}>"

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self.timeout if timeout is None else timeout)

    @contextlib.contextmanager
    def _failures(self, trace_id: str = "") -> Iterator[None]:
        """The errors of gRPC as those of this package."""
        if os.getpid() != self._process:
            raise RuntimeError("this Client is of another process: make one after the fork")
        try:
            yield
        except grpc.RpcError as error:
            raise errors.error_from(error, self.server, self._access, trace_id) from None
        except ValueError:
            if not self._is_closed:
                raise
            raise errors.CancelledError("this Client is closed") from None

    def _run(self, call: Callable[..., T], request: Any, deadline: Deadline) -> T:
        metadata, trace_id = connection.metadata_of(self._access)
        with self._failures(trace_id):
            return call(request, timeout=deadline.left(), metadata=metadata)

    def _call(self, name: str, request: Any, deadline: Deadline) -> Any:
        return self._run(self._methods[name], request, deadline)

    def _batch_size(self, model: str, version: int, deadline: Deadline) -> int:
        """Samples of a request at most; 0 of a model that does not serve."""
        with self._lock:
            known = self._batch_sizes.get((model, version), 0)
        if not known:
            request = requests.of_model("GetModelRequest", model, version)
            known = int(self._call("GetModel", request, deadline).max_batch_size)
            with self._lock:
                self._batch_sizes[(model, version)] = known
        return known

    def _parts(
        self, model: str, version: int, n: int, options: Options, deadline: Deadline
    ) -> list[slice]:
        # A model that does not serve says why where it is asked.
        most = n if n <= 1 else self._batch_size(model, version, deadline) or n
        return calls.parts_of(n, most, options)

    @contextlib.contextmanager
    def _asking_anew(self, model: str, version: int) -> Iterator[None]:
        """Forgets how many samples the model takes where a request was refused."""
        try:
            yield
        except errors.InvalidArgumentError:
            with self._lock:
                self._batch_sizes.pop((model, version), None)
            raise

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
        deadline = self._deadline(timeout)
        results: list[Result] = []
        with self._asking_anew(model, version):
            for part in self._parts(model, version, len(rows), options, deadline):
                states = calls.states_of(initial_states, len(rows), part)
                request = requests.forward(model, version, rows[part], states, request_id, options)
                with calls.of_one_version(request, results):
                    response = self._call("Forward", request, deadline)
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
        deadline = self._deadline(timeout)
        results: list[Result] = []
        with self._asking_anew(model, version):
            for _, request in self._generations(
                model, n, version, initial_states, request_id, deadline, arguments
            ):
                with calls.of_one_version(request, results):
                    response = self._call("Generate", request, deadline)
                results.append(result_of(response.samples, response))
        return calls.joined(results)

    def _generations(
        self,
        model: str,
        n: int | None,
        version: int,
        initial_states: Any,
        request_id: str,
        deadline: Deadline,
        arguments: Any,
    ) -> Iterator[tuple[int, Any]]:
        """The requests that n samples take, and the first sample of each."""
        generation, options = split_arguments(arguments)
        n = samples_wanted(n, generation)
        for part in self._parts(model, version, n, options, deadline):
            yield (
                part.start,
                requests.generate(
                    model,
                    version,
                    part.stop - part.start,
                    calls.states_of(initial_states, n, part),
                    request_id,
                    calls.rows_of(generation, n, part),
                    options,
                ),
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
        deadline = self._deadline(timeout)
        with self._asking_anew(model, version):
            for first, request in self._generations(
                model, n, version, initial_states, request_id, deadline, arguments
            ):
                before = len(results)
                with calls.of_one_version(request, results):
                    for event in self._events("StreamGenerate", request, deadline):
                        if event.HasField("result"):
                            results.append(result_of(event.result.samples, event.result))
                        else:
                            yield Progress.of(event.progress, first)
                if len(results) != before + 1:
                    raise errors.InternalError("bad reply: the stream ended without a result")
        yield calls.joined(results)

    def _events(self, name: str, request: Any, deadline: Deadline) -> Iterator[Any]:
        """Those of a stream, which ends with this iterator."""
        metadata, trace_id = connection.metadata_of(self._access)
        with self._failures(trace_id):
            stream = self._methods[name](request, timeout=deadline.left(), metadata=metadata)
            try:
                yield from stream
            finally:
                stream.cancel()

    def compare(
        self,
        model: str,
        inputs: Any = None,
        *,
        n: int | None = None,
        version: int = 0,
        solvers: str | Iterable[str | Options] = (),
        repetitions: int = 0,
        timeout: float | None = None,
        **generation: Unpack[Generation],
    ) -> Comparison:
        """Runs the same input through several solvers: what each took, and how far it was off."""
        request = requests.compare(model, version, inputs, n, generation, solvers, repetitions)
        return Comparison(self._call("Compare", request, self._deadline(timeout)))

    def gradient(
        self,
        model: str,
        inputs: Any = None,
        *,
        n: int | None = None,
        version: int = 0,
        timeout: float | None = None,
        options: Options | None = None,
        **arguments: Unpack[GradientArguments],
    ) -> Gradients:
        """What the outputs, or a loss of them, change by with what went in.

        options: of the forward solve.
        """
        request = requests.gradient(model, version, inputs, n, options or {}, arguments)
        return gradients_of(self._call("Gradient", request, self._deadline(timeout)))

    def parameter_gradients(
        self,
        model: str,
        inputs: Any = None,
        *,
        n: int | None = None,
        version: int = 0,
        timeout: float | None = None,
        options: Options | None = None,
        **arguments: Unpack[GradientArguments],
    ) -> tuple[dict[str, Floats], Gradients]:
        """Gradients by the model's tensors, summed over the samples, and what Gradient says."""
        request = requests.gradient(model, version, inputs, n, options or {}, arguments)

        pieces = requests.Pieces()
        for event in self._events("StreamGradient", request, self._deadline(timeout)):
            if event.HasField("result"):
                return pieces.tensors(), gradients_of(event.result)
            pieces.add(event.piece)
        raise errors.InternalError("bad reply: the stream ended without a result")

    def models(self, *, timeout: float | None = None) -> tuple[Any, ...]:
        """ModelSummary of every version that is there, sorted by name and version."""
        return tuple(
            self._call(
                "ListModels", protocol.message_class("ListModelsRequest")(), self._deadline(timeout)
            ).models
        )

    def model(self, model: str, version: int = 0, *, timeout: float | None = None) -> Any:
        """GetModelResponse: shapes, configuration, plans."""
        return self._call(
            "GetModel",
            requests.of_model("GetModelRequest", model, version),
            self._deadline(timeout),
        )

    def load(self, model: str, version: int = 0, *, timeout: float | None = None) -> Any:
        """Loads or reloads a model; for administrators. ModelSummary of what serves then."""
        response = self._call(
            "LoadModel",
            requests.of_model("LoadModelRequest", model, version),
            self._deadline(timeout),
        )
        with self._lock:
            self._batch_sizes.clear()
        return response.summary

    def unload(self, model: str, version: int = 0, *, timeout: float | None = None) -> None:
        """Unloads a version, or all of them; for administrators."""
        self._call(
            "UnloadModel",
            requests.of_model("UnloadModelRequest", model, version),
            self._deadline(timeout),
        )

    def is_ready(self, *, timeout: float = 5.0) -> bool:
        """True if a server is there, and all that it should serve is."""
        check = self._channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            with self._failures():
                # HealthCheckResponse{status: SERVING}
                return bool(check(b"", timeout=timeout) == b"\x08\x01")
        except errors.DeepPcrError:
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
        self._shape: tuple[Any, ...] = ()  # what the states are of: rows and steps

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
        rows = self._n
        if not self._generates:
            rows = len(observation) if np.ndim(observation) > 1 else 1
        shape = (rows, how.get("num_inference_steps"), how.get("first_step"))
        if self._states is not None and shape == self._shape:
            how |= {"initial_states": self._states, "initial_guess": "previous"}
        self._states = None  # unless this goes well
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
        if report is not None and report.converged:
            self._states, self._shape = result.trajectory, shape
        return result
