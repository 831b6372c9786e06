"""The body of a request, read within the limits."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive, Scope

from mxspec.serve.http.errors import ApiError
from mxspec.serve.http.limits import Limits


async def read_body(scope: Scope, receive: Receive, limits: Limits) -> bytes:
    """The whole body; raises ApiError 413 if it is too long, 408 if it comes too late, and ClientDisconnect."""
    limit = limits.body_bytes
    said = Headers(scope=scope).get("content-length", "0")
    if said.isascii() and said.isdigit() and int(said) > limit:
        raise _too_long(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.stall_seconds):
            async for piece in Request(scope, receive).stream():
                body += piece
                if len(body) > limit:
                    raise _too_long(limit)
    except TimeoutError:
        raise ApiError(408, f"body: did not arrive within {limits.stall_seconds:g} s", code="timeout") from None
    return bytes(body)


def _too_long(limit: int) -> ApiError:
    return ApiError(413, f"body: longer than {limit:,} bytes", code="request_too_large")
