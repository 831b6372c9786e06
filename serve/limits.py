"""How much a server takes on, and how it reads a body within that."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from mxspec.serve.errors import ApiError

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Beyond any of these a request is refused, or ended."""

    queue: int = 64  # texts of a model that may wait for a slot
    body_bytes: int = 4 * MIB
    time_seconds: float = 600  # of a request, waiting included
    stall_seconds: float = 20  # that a client may take to read what is sent, and to send its body
    n: int = 16  # texts of a prompt; also of best_of
    prompts: int = 64  # in one request
    connections: int = 1024
    grace_seconds: float = 30  # after SIGTERM


async def read_body(scope: Scope, receive: Receive, limits: Limits) -> bytes:
    """The whole body; raises ApiError 413 where it is too long, 408 where it does not come, ClientDisconnect."""
    limit = limits.body_bytes
    said = Headers(scope=scope).get("content-length", "0")
    if said.isascii() and said.isdigit() and int(said) > limit:
        raise _too_long(limit)
    pieces: list[bytes] = []
    length, more = 0, True
    try:
        async with asyncio.timeout(limits.stall_seconds):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                piece = message.get("body", b"")
                length += len(piece)
                if length > limit:
                    raise _too_long(limit)
                pieces.append(piece)
                more = message.get("more_body", False)
    except TimeoutError:
        raise ApiError(408, f"body: did not come within {limits.stall_seconds:g} s", code="timeout") from None
    return b"".join(pieces)


def check_count(name: str, count: int, limit: int) -> None:
    """Raise ApiError where a request asks for more than the server gives."""
    if count > limit:
        raise ApiError(400, f"{name}: got {count}, expected at most {limit}", param=name)


def check_prompts(prompts: Sequence[object], limit: int) -> None:
    """Raise ApiError for none and for too many."""
    if not prompts:
        raise ApiError(400, "prompt: got an empty list", param="prompt")
    if len(prompts) > limit:
        raise ApiError(400, f"prompt: got {len(prompts)} of them, expected at most {limit}", param="prompt")


def _too_long(limit: int) -> ApiError:
    return ApiError(413, f"body: longer than {limit:,} bytes", code="request_too_large")
