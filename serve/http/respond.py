"""Answers in JSON, errors among them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from starlette.types import Send

from mxspec.serve.http.errors import ApiError


async def send_json(send: Send, status: int, content: Any, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    """Send a whole answer."""
    body = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    fixed = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *(headers or [])]})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ApiError, more: Sequence[tuple[bytes, bytes]] = ()) -> None:
    """Send an error, with the headers that its status needs, and `more`."""
    headers = [*more]
    if error.retry_after is not None:
        headers.append((b"retry-after", str(error.retry_after).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.status in (408, 413, 503):
        headers.append((b"connection", b"close"))  # its body may not have been read
    await send_json(send, error.status, error.as_json(), headers)
