"""API keys: who may ask, and whose texts are whose."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mxspec.formats.errors import MxspecError
from mxspec.runtime.cli.command import read_text
from mxspec.serve.errors import AUTHENTICATION, ApiError
from mxspec.serve.log import entry_of
from mxspec.serve.respond import send_error

OPEN = ("/health", "/")  # asked without a key
SHORTEST = 8  # characters of a key


def read_keys(path: Path) -> list[str]:
    """One key a line; empty lines and those that begin with # do not count. Raises MxspecError, naming no key."""
    lines = [line.strip() for line in read_text(path, "--api-key-file").splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise MxspecError(f"--api-key-file {path}: holds no key; one line is one key")
    for number, key in enumerate(keys, 1):
        if len(key) < SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
            raise MxspecError(
                f"--api-key-file {path}: key {number} is none, expected at least {SHORTEST} printable ASCII characters"
            )
        if key in keys[: number - 1]:
            raise MxspecError(f"--api-key-file {path}: key {number} appears twice")
    return keys


class Keys:
    """Around the routes: lets those through that bring one of the keys, and notes whose the request is."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]
        salt = secrets.token_bytes(32)  # of this process: cache keys do not outlive it
        self._owners = [hmac.new(salt, key, hashlib.sha256).hexdigest() for key in self._keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._keys and scope["path"] not in OPEN:
            number = self._number(scope)
            if number is None:
                message = "key: got none that is known; send Authorization: Bearer KEY"
                await send_error(send, ApiError(401, message, kind=AUTHENTICATION, code="invalid_api_key"))
                return
            entry = entry_of(scope)
            entry.key, entry.owner = number + 1, self._owners[number]
        await self._app(scope, receive, send)

    def _number(self, scope: Scope) -> int | None:
        """Which key a request brings; takes as long for any that it may be."""
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        token = given.encode("latin-1").strip() if scheme.lower() == "bearer" else b""
        same = [hmac.compare_digest(token, key) for key in self._keys]
        return same.index(True) if any(same) else None


def cache_key(owner: str, own: str) -> str:
    """What texts may share what was read and guessed: those of one API key, and there of one name of the client's."""
    return f"{owner}:{own}"
