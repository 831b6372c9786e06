"""The access log: a line of JSON on standard error for each answer, without prompts, texts or keys."""

from __future__ import annotations

import json
import secrets
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mxspec.serve.http.errors import SERVER, ApiError

_KEY = "mxspec.entry"
Write = Callable[[dict[str, Any]], None]


@dataclass(slots=True)
class Entry:
    """The facts that the log has about a request."""

    id: str = field(default_factory=lambda: f"req-{secrets.token_hex(8)}")
    owner: str = ""  # prefix of the cache keys of its API key; never written
    key: int | None = None  # the number of its API key in the file
    facts: dict[str, Any] = field(default_factory=dict)  # about its texts, and why they were cut
    error: str | None = None


def entry_of(scope: Scope) -> Entry:
    """The entry of a request, made at the first call."""
    found = scope.get(_KEY)
    if not isinstance(found, Entry):
        found = scope[_KEY] = Entry()
    return found


def write_line(line: dict[str, Any]) -> None:
    """Write a line on standard error, unbuffered."""
    sys.stderr.write(json.dumps(line, ensure_ascii=False) + "\n")
    sys.stderr.flush()


class AccessLog:
    """Around the whole application: counts and logs each answer, and answers 500 for an unexpected error."""

    def __init__(self, app: ASGIApp, count: Callable[[str, int], None], write: Write | None) -> None:
        self._app = app
        self._count = count
        self._write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        entry, began, status = entry_of(scope), time.perf_counter(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", entry.id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:
            entry.error = f"{type(error).__name__}: {error}"
            traceback.print_exc()
            if not status:
                failed = ApiError(500, "server: failed; its log says how", kind=SERVER)
                await failed.response()(scope, receive, noting)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._count(route, status)
            if self._write is not None and scope["path"] != "/health":
                self._write(_line(scope, entry, status, time.perf_counter() - began))


def _line(scope: Scope, entry: Entry, status: int, seconds: float) -> dict[str, Any]:
    client = scope.get("client")
    line: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "id": entry.id,
        "client": client[0] if client else None,
        "key": entry.key,
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "ms": round(seconds * 1e3, 1),
    }
    line |= entry.facts
    if entry.error is not None:
        line["error"] = entry.error
    return line
