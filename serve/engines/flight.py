"""A request under way: its texts, their events as they come, and why it was aborted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from enum import Enum
from types import TracebackType
from typing import Any, Self

from mxspec.runtime.events import Event
from mxspec.runtime.handle import Handle
from mxspec.serve.engines.models import Served
from mxspec.serve.http.errors import SERVER, ApiError


class AbortReason(Enum):
    """Why a request was aborted."""

    DISCONNECTED = "disconnected"
    STALLED = "stalled"
    TIME = "time"
    SHUTDOWN = "shutdown"


class Flight:
    """A request under way, aborted by the first reason that comes; used by the event loop alone."""

    def __init__(self, time_seconds: float) -> None:
        self.served: Served | None = None  # the model among whose texts these are counted
        self.texts = 0
        self.abort_reason: AbortReason | None = None
        self.handles: list[Handle] = []
        self._time_seconds = time_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._time_seconds, self.abort, AbortReason.TIME)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._cancel()

    def begin(self, handles: Sequence[Handle]) -> None:
        """Take over the handles of its texts."""
        self.handles = list(handles)
        if self.abort_reason is not None:
            self._cancel()

    def abort(self, why: AbortReason) -> None:
        """End the texts early; their slots are free within a step."""
        if self.abort_reason is None:
            self.abort_reason = why
            self._over.set()
            self._cancel()

    def _cancel(self) -> None:
        for handle in self.handles:
            handle.cancel()

    async def finish(self, works: Sequence[Future[Any]]) -> None:
        """Wait for works on other threads, or until the request is aborted; raises as `raise_if_aborted`."""
        done = asyncio.gather(*map(asyncio.wrap_future, works))
        over = asyncio.create_task(self._over.wait())
        waited: set[asyncio.Future[Any]] = {done, over}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            self.raise_if_aborted()
            await done
        finally:
            over.cancel()
            done.cancel()

    def raise_if_aborted(self) -> None:
        """Raise ApiError, or ClientDisconnected, if the request was aborted."""
        if self.abort_reason is AbortReason.TIME:
            raise ApiError(504, f"server: took longer than {self._time_seconds:g} s", kind=SERVER, code="timeout")
        if self.abort_reason is AbortReason.SHUTDOWN:
            raise ApiError(503, "server: shutting down", kind=SERVER, code="draining", retry_after=1)
        if self.abort_reason is not None:
            raise ClientDisconnected

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """Events of all its texts as they come, with the number of the prompt; raises the error that a text ends in."""
        if len(self.handles) == 1:
            while (event := await self.handles[0].next_async()) is not None:
                yield 0, event
            return
        arrived: asyncio.Queue[tuple[int, Event] | Exception | None] = asyncio.Queue()

        async def read(number: int, handle: Handle) -> None:
            try:
                while (event := await handle.next_async()) is not None:
                    arrived.put_nowait((number, event))
                arrived.put_nowait(None)
            except Exception as error:
                arrived.put_nowait(error)

        readers = [asyncio.create_task(read(number, handle)) for number, handle in enumerate(self.handles)]
        left = len(readers)
        try:
            while left:
                found = await arrived.get()
                if isinstance(found, Exception):
                    raise found
                if found is None:
                    left -= 1
                else:
                    yield found
        finally:
            for reader in readers:
                reader.cancel()


class ClientDisconnected(Exception):
    """The client has closed the connection before it was answered."""
