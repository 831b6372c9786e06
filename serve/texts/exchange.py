"""A request for texts, from its body to the last byte of its answer, or until the client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from mxspec.formats.errors import GenerationError, MxspecError, UnavailableError
from mxspec.serve.engines.flight import AbortReason, ClientDisconnected, Flight
from mxspec.serve.engines.service import Prepared, Service
from mxspec.serve.http.body import read_body
from mxspec.serve.http.errors import SERVER, ApiError
from mxspec.serve.http.log import entry_of
from mxspec.serve.texts.fields import refused
from mxspec.serve.texts.generation import Generation
from mxspec.serve.texts.shape import Object

Prepare = Callable[[Service, Flight, bytes, str], Prepared[Generation]]
"""From a request's body, and the prefix of its owner's cache keys, to what begins its texts; runs on a thread."""

_STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx would hold the stream back


class TextRoute:
    """An endpoint that writes texts."""

    def __init__(self, service: Service, prepare: Prepare) -> None:
        self._service = service
        self._prepare = prepare

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, entry = self._service, entry_of(scope)
        with service.flight() as flight:
            try:
                body = await read_body(scope, receive, service.limits)
                watcher = asyncio.create_task(_watch(receive, flight))
                try:
                    generation = await self._begin(flight, body, entry.owner)
                    flight.begin(generation.handles)
                    try:
                        await self._answer(generation, flight, scope, receive, send)
                    finally:
                        entry.facts |= generation.facts()
                finally:
                    watcher.cancel()
            except (ClientDisconnected, ClientDisconnect):
                entry.facts["cut"] = (flight.abort_reason or AbortReason.DISCONNECTED).value
            else:
                if flight.abort_reason is not None:
                    entry.facts["cut"] = flight.abort_reason.value

    async def _begin(self, flight: Flight, body: bytes, owner: str) -> Generation:
        """The request's texts, begun; raises ApiError."""
        service = self._service
        prepared = await service.prepare(lambda: self._prepare(service, flight, body, owner))
        try:
            return await service.begin(flight, prepared)
        except MxspecError as error:
            raise refused(error, prepared.names) from None

    async def _answer(self, generation: Generation, flight: Flight, scope: Scope, receive: Receive, send: Send) -> None:
        await flight.finish(generation.scoring)
        if generation.asked.stream:
            await self._send_stream(generation, flight, send)
            return
        async for prompt, event in _events(generation, flight):
            generation.add(prompt, event, self._service.metrics)
        flight.raise_if_aborted()
        answer = JSONResponse(generation.shape.whole(generation.whole()), headers=_ignored(generation))
        await answer(scope, receive, send)

    async def _send_stream(self, generation: Generation, flight: Flight, send: Send) -> None:
        """Send each chunk as it comes; abort the request of a client that reads no chunk for too long."""
        headers = _STREAM_HEADERS | _ignored(generation)
        stream = StreamingResponse(self._stream(generation, flight), 200, headers, generation.shape.content_type)

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self._service.limits.stall_seconds):
                await send(message)

        try:
            await stream.stream_response(send_in_time)
        except TimeoutError:
            flight.abort(AbortReason.STALLED)
            raise ClientDisconnected from None  # the server closes a connection whose answer is not whole

    async def _stream(self, generation: Generation, flight: Flight) -> AsyncIterator[bytes]:
        """The pieces of the body; some chunks make none."""
        shape = generation.shape
        try:
            async for chunk in self._chunks(generation, flight):
                if piece := shape.chunk(chunk):
                    yield piece
            yield shape.end()
        except ApiError as error:
            yield shape.error(error)
        except ClientDisconnected:
            raise
        except Exception:
            yield shape.error(ApiError(500, "server: failed; its log says how", kind=SERVER))
            raise

    async def _chunks(self, generation: Generation, flight: Flight) -> AsyncIterator[Object]:
        for text in generation.texts:
            if (opening := text.opening()) is not None:
                yield generation.chunk([opening])
        async for prompt, event in _events(generation, flight):
            added = generation.add(prompt, event, self._service.metrics)
            if added is None or flight.abort_reason is not None:
                continue
            if (chunk := generation.chunk_of(*added)) is not None:
                yield chunk
        flight.raise_if_aborted()
        if generation.asked.include_usage:
            yield {**generation.chunk([]), "usage": generation.usage()}


async def _events(generation: Generation, flight: Flight) -> AsyncIterator[Any]:
    """The events of a flight; raises a text's error as ApiError: some grammars fail when first used."""
    try:
        async for found in flight.events():
            yield found
    except MxspecError as error:
        if isinstance(error, UnavailableError) or (isinstance(error, GenerationError) and error.field == "grammar"):
            raise refused(error, generation.asked.names) from error
        raise ApiError(500, str(error), kind=SERVER) from error


def _ignored(generation: Generation) -> dict[str, str]:
    """A header that names the fields that were accepted and change nothing."""
    names = ", ".join(generation.asked.ignored)
    return {"X-Ignored-Fields": names} if names else {}


async def _watch(receive: Receive, flight: Flight) -> None:
    """Abort the flight when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    flight.abort(AbortReason.DISCONNECTED)
