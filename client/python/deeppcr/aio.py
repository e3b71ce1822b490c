# SPDX-License-Identifier: Apache-2.0
"""The client for asyncio: the calls of deeppcr.Client, to be awaited, on one event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
import grpc.aio
from typing_extensions import Self, Unpack

from deeppcr import arrays, calls, connection, errors, protocol, requests
from deeppcr.client import (
    GenerationOptions,
    GradientArguments,
    gradients_of,
    samples_wanted,
    split_arguments,
)
from deeppcr.requests import Generation, Options
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
        self._channel: Any = None
        self._methods: dict[str, Any] = {}
        self._batch_sizes: dict[tuple[str, int], int] = {}

    def _connect(self) -> Any:
        # Not before the first call: a channel is of the event loop that runs when it is made.
        if self._channel is None:
            options = connection.channel_options(self._target)
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
        if self._channel is not None:
            await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<deeppcr.aio.Client of {self.server}>"

    def _how(self, timeout: float | None) -> tuple[dict[str, Any], str]:
        self._connect()
        metadata, trace_id = connection.metadata_of(self._access)
        return {
            "timeout": self.timeout if timeout is None else timeout,
            "metadata": metadata,
        }, trace_id

    async def _call(self, name: str, request: Any, timeout: float | None) -> Any:
        how, trace_id = self._how(timeout)
        try:
            return await self._methods[name](request, **how)
        except grpc.aio.AioRpcError as error:
            raise errors.error_from(error, self.server, trace_id) from None

    async def _events(self, name: str, request: Any, timeout: float | None) -> AsyncIterator[Any]:
        how, trace_id = self._how(timeout)
        stream = self._methods[name](request, **how)
        try:
            async for event in stream:
                yield event
        except grpc.aio.AioRpcError as error:
            raise errors.error_from(error, self.server, trace_id) from None
        finally:
            stream.cancel()

    async def _parts(self, model: str, version: int, n: int, timeout: float | None) -> list[slice]:
        if n > 1 and (model, version) not in self._batch_sizes:
            info = await self.model(model, version, timeout=timeout)
            self._batch_sizes[(model, version)] = int(info.max_batch_size)
        return list(calls.parts_of(n, n if n == 1 else self._batch_sizes[(model, version)]))

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
        results = []
        for part in await self._parts(model, version, len(rows), timeout):
            states = None if initial_states is None else initial_states[part]
            request = requests.forward(model, version, rows[part], states, request_id, options)
            response = await self._call("Forward", request, timeout)
            results.append(result_of(response.outputs, response))
        return calls.joined(results)

    async def _generations(
        self,
        model: str,
        n: int | None,
        version: int,
        initial_states: Any,
        request_id: str,
        timeout: float | None,
        arguments: Any,
    ) -> list[Any]:
        generation, options = split_arguments(arguments)
        n = samples_wanted(n, generation)
        return [
            requests.generate(
                model,
                version,
                part.stop - part.start,
                None if initial_states is None else initial_states[part],
                request_id,
                calls.rows_of(generation, n, part),
                options,
            )
            for part in await self._parts(model, version, n, timeout)
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
        results = []
        for request in await self._generations(
            model, n, version, initial_states, request_id, timeout, arguments
        ):
            response = await self._call("Generate", request, timeout)
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
        wanted = await self._generations(
            model, n, version, initial_states, request_id, timeout, arguments
        )
        for count, request in enumerate(wanted, start=1):
            async for event in self._events("StreamGenerate", request, timeout):
                if event.HasField("result"):
                    results.append(result_of(event.result.samples, event.result))
                else:
                    yield Progress.of(event.progress)
            if len(results) != count:
                raise errors.InternalError("bad reply: the stream ended without a result")
        yield calls.joined(results)

    async def compare(
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
        rows: list[Options] = [
            {"solver": each} if isinstance(each, str) else each for each in solvers
        ]
        request = requests.compare(model, version, inputs, n, generation, rows, repetitions)
        return Comparison(await self._call("Compare", request, timeout))

    async def gradient(
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
        request = requests.gradient(model, version, inputs, n, options or {}, arguments)
        return gradients_of(await self._call("Gradient", request, timeout))

    async def models(self, *, timeout: float | None = None) -> tuple[Any, ...]:
        request = protocol.message_class("ListModelsRequest")()
        return tuple((await self._call("ListModels", request, timeout)).models)

    async def model(self, model: str, version: int = 0, *, timeout: float | None = None) -> Any:
        request = requests.of_model("GetModelRequest", model, version)
        return await self._call("GetModel", request, timeout)

    async def load(self, model: str, version: int = 0, *, timeout: float | None = None) -> Any:
        request = requests.of_model("LoadModelRequest", model, version)
        response = await self._call("LoadModel", request, timeout)
        self._batch_sizes.clear()
        return response.summary

    async def unload(self, model: str, version: int = 0, *, timeout: float | None = None) -> None:
        request = requests.of_model("UnloadModelRequest", model, version)
        await self._call("UnloadModel", request, timeout)

    async def is_ready(self, *, timeout: float = 5.0) -> bool:
        check = self._connect().unary_unary("/grpc.health.v1.Health/Check")
        try:
            return bool(await check(b"", timeout=timeout) == b"\x08\x01")
        except grpc.aio.AioRpcError:
            return False
