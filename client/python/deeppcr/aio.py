# SPDX-License-Identifier: Apache-2.0
"""The client for asyncio: the calls of deeppcr.Client, to be awaited, on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import grpc
import grpc.aio
from typing_extensions import Self, Unpack

from deeppcr import arrays, calls, connection, errors, protocol, requests
from deeppcr.arrays import Floats
from deeppcr.calls import Deadline
from deeppcr.client import GenerationOptions, GradientArguments, gradients_of, split_arguments
from deeppcr.requests import Generation, Options, samples_wanted
from deeppcr.results import Comparison, Gradients, Progress, Result, result_of


class Client:
    """As deeppcr.Client, for one event loop: the one in which it makes its first call."""

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
        self._target = connection.parse_server(server)
        self._access.check(self._target)
        self._credentials = self._access.credentials()
        Deadline(timeout)  # refuses what is none
        self._is_closed = False
        self._channel: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._methods: dict[str, Any] = {}
        self._batch_sizes: dict[tuple[str, int], int] = {}

    def _connect(self) -> Any:
        # Not before the first call: a channel is of the event loop that runs when it is made.
        loop = asyncio.get_running_loop()
        if self._channel is not None and self._loop is not loop:
            raise RuntimeError("this Client is of another event loop: make one in this loop")
        if self._channel is None:
            self._loop = loop
            options = connection.channel_options(
                self._target, is_secure=self._credentials is not None
            )
            self._channel = (
                grpc.aio.insecure_channel(self._target.text, options)
                if self._credentials is None
                else grpc.aio.secure_channel(self._target.text, self._credentials, options)
            )
            for name, method in protocol.METHODS.items():
                kind = self._channel.unary_stream if method.streams else self._channel.unary_unary
                self._methods[name] = kind(
                    method.path,
                    request_serializer=method.request.SerializeToString,
                    response_deserializer=method.response.FromString,
                )
        return self._channel

    async def close(self) -> None:
        self._is_closed = True
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a Client is a connection: make one where it is used")

    def __repr__(self) -> str:
        return f"<deeppcr.aio.Client of {self.server}>"

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self.timeout if timeout is None else timeout)

    def _how(self, deadline: Deadline) -> tuple[dict[str, Any], str]:
        self._connect()
        metadata, trace_id = connection.metadata_of(self._access)
        return {"timeout": deadline.left(), "metadata": metadata}, trace_id

    @contextlib.contextmanager
    def _failures(self, trace_id: str = "") -> Iterator[None]:
        """The errors of gRPC as those of this package."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise errors.error_from(error, self.server, self._access, trace_id) from None
        except grpc.aio.UsageError:
            if not self._is_closed:
                raise
            raise errors.CancelledError("this Client is closed") from None

    async def _call(self, name: str, request: Any, deadline: Deadline) -> Any:
        how, trace_id = self._how(deadline)
        with self._failures(trace_id):
            return await self._methods[name](request, **how)

    async def _events(self, name: str, request: Any, deadline: Deadline) -> AsyncIterator[Any]:
        how, trace_id = self._how(deadline)
        with self._failures(trace_id):
            stream = self._methods[name](request, **how)
            try:
                async for event in stream:
                    yield event
            finally:
                stream.cancel()

    async def _parts(
        self, model: str, version: int, n: int, options: Options, deadline: Deadline
    ) -> list[slice]:
        key = (model, version)
        if n > 1 and not self._batch_sizes.get(key):
            request = requests.of_model("GetModelRequest", model, version)
            info = await self._call("GetModel", request, deadline)
            self._batch_sizes[key] = int(info.max_batch_size)
        # A model that does not serve, of which 0 is known, says why where it is asked.
        return calls.parts_of(n, n if n <= 1 else self._batch_sizes[key] or n, options)

    @contextlib.contextmanager
    def _asking_anew(self, model: str, version: int) -> Iterator[None]:
        """Forgets how many samples the model takes where a request was refused."""
        try:
            yield
        except errors.InvalidArgumentError:
            self._batch_sizes.pop((model, version), None)
            raise

    async def forward(
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
        rows = arrays.as_floats(inputs, "inputs")
        rows = rows[None] if rows.ndim == 1 else rows
        deadline = self._deadline(timeout)
        results: list[Result] = []
        with self._asking_anew(model, version):
            for part in await self._parts(model, version, len(rows), options, deadline):
                states = calls.states_of(initial_states, len(rows), part)
                request = requests.forward(model, version, rows[part], states, request_id, options)
                with calls.of_one_version(request, results):
                    response = await self._call("Forward", request, deadline)
                results.append(result_of(response.outputs, response))
        return calls.joined(results)

    async def _generations(
        self,
        model: str,
        n: int | None,
        version: int,
        initial_states: Any,
        request_id: str,
        deadline: Deadline,
        arguments: Any,
    ) -> list[tuple[int, Any]]:
        """The requests that n samples take, and the first sample of each."""
        generation, options = split_arguments(arguments)
        n = samples_wanted(n, generation)
        return [
            (
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
            for part in await self._parts(model, version, n, options, deadline)
        ]

    async def generate(
        self,
        model: str,
        n: int | None = None,
        *,
        version: int = 0,
        initial_states: Any = None,
        request_id: str = "",
        timeout: float | None = None,
        **arguments: Unpack[GenerationOptions],
    ) -> Result:
        deadline = self._deadline(timeout)
        results: list[Result] = []
        with self._asking_anew(model, version):
            for _, request in await self._generations(
                model, n, version, initial_states, request_id, deadline, arguments
            ):
                with calls.of_one_version(request, results):
                    response = await self._call("Generate", request, deadline)
                results.append(result_of(response.samples, response))
        return calls.joined(results)

    async def generate_events(
        self,
        model: str,
        n: int | None = None,
        *,
        version: int = 0,
        initial_states: Any = None,
        request_id: str = "",
        timeout: float | None = None,
        **arguments: Unpack[GenerationOptions],
    ) -> AsyncIterator[Progress | Result]:
        results: list[Result] = []
        deadline = self._deadline(timeout)
        with self._asking_anew(model, version):
            wanted = await self._generations(
                model, n, version, initial_states, request_id, deadline, arguments
            )
            for count, (first, request) in enumerate(wanted, start=1):
                with calls.of_one_version(request, results):
                    async for event in self._events("StreamGenerate", request, deadline):
                        if event.HasField("result"):
                            results.append(result_of(event.result.samples, event.result))
                        else:
                            yield Progress.of(event.progress, first)
                if len(results) != count:
                    raise errors.InternalError("bad reply: the stream ended without a result")
        yield calls.joined(results)

    async def compare(
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
        request = requests.compare(model, version, inputs, n, generation, solvers, repetitions)
        return Comparison(await self._call("Compare", request, self._deadline(timeout)))

    async def gradient(
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
        request = requests.gradient(model, version, inputs, n, options or {}, arguments)
        return gradients_of(await self._call("Gradient", request, self._deadline(timeout)))

    async def parameter_gradients(
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
        request = requests.gradient(model, version, inputs, n, options or {}, arguments)
        pieces = requests.Pieces()
        async for event in self._events("StreamGradient", request, self._deadline(timeout)):
            if event.HasField("result"):
                return pieces.tensors(), gradients_of(event.result)
            pieces.add(event.piece)
        raise errors.InternalError("bad reply: the stream ended without a result")

    async def models(self, *, timeout: float | None = None) -> tuple[Any, ...]:
        request = protocol.message_class("ListModelsRequest")()
        return tuple((await self._call("ListModels", request, self._deadline(timeout))).models)

    async def model(self, model: str, version: int = 0, *, timeout: float | None = None) -> Any:
        request = requests.of_model("GetModelRequest", model, version)
        return await self._call("GetModel", request, self._deadline(timeout))

    async def load(self, model: str, version: int = 0, *, timeout: float | None = None) -> Any:
        request = requests.of_model("LoadModelRequest", model, version)
        response = await self._call("LoadModel", request, self._deadline(timeout))
        self._batch_sizes.clear()
        return response.summary

    async def unload(self, model: str, version: int = 0, *, timeout: float | None = None) -> None:
        request = requests.of_model("UnloadModelRequest", model, version)
        await self._call("UnloadModel", request, self._deadline(timeout))

    async def is_ready(self, *, timeout: float = 5.0) -> bool:
        check = self._connect().unary_unary("/grpc.health.v1.Health/Check")
        try:
            with self._failures():
                return bool(await check(b"", timeout=timeout) == b"\x08\x01")
        except errors.DeepPcrError:
            return False
