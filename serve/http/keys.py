"""API keys: who may send requests, and which requests may share cached texts."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mxspec.formats.errors import MxspecError
from mxspec.runtime.cli.command import read_text
from mxspec.serve.http.errors import AUTHENTICATION, ApiError
from mxspec.serve.http.log import entry_of

OPEN = ("/health", "/")  # open to requests without a key
SALT_BYTES = 32
SHORTEST = 8  # least number of characters of a key


def new_salt() -> bytes:
    """Random bytes that turn API keys into cache keys: those of another salt are others."""
    return secrets.token_bytes(SALT_BYTES)


def kept_salt(folder: Path) -> bytes:
    """The salt of a folder that keeps prompts, for their cache keys; made with the folder. Raises MxspecError."""
    path = folder / "salt"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError), open(path, "xb", opener=partial(os.open, mode=0o600)) as file:
            file.write(new_salt())
        salt = path.read_bytes()
    except OSError as error:
        raise MxspecError(f"--prompt-cache {folder}: {error.strerror}") from None
    if len(salt) != SALT_BYTES:
        raise MxspecError(f"--prompt-cache {folder}: its salt is damaged; delete the folder")
    return salt


def read_keys(path: Path) -> list[str]:
    """One key a line; empty lines and those that begin with # are skipped. Raises MxspecError, which shows no key."""
    lines = [line.strip() for line in read_text(path, "--api-key-file").splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise MxspecError(f"--api-key-file {path}: holds no key; one line is one key")
    for number, key in enumerate(keys, 1):
        if len(key) < SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
            raise MxspecError(
                f"--api-key-file {path}: key {number} is invalid, "
                f"expected at least {SHORTEST} printable ASCII characters"
            )
        if key in keys[: number - 1]:
            raise MxspecError(f"--api-key-file {path}: key {number} appears twice")
    return keys


class Keys:
    """Around the routes: lets requests with one of the keys through, and notes the owner of each."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], salt: bytes) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]
        self._owners = [hmac.new(salt, key, hashlib.sha256).hexdigest() for key in self._keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._keys and scope["path"] not in OPEN:
            number = self._number(scope)
            if number is None:
                message = "key: got none that is known; send Authorization: Bearer KEY"
                error = ApiError(401, message, kind=AUTHENTICATION, code="invalid_api_key")
                await error.response()(scope, receive, send)
                return
            entry = entry_of(scope)
            entry.key, entry.owner = number + 1, self._owners[number]
        await self._app(scope, receive, send)

    def _number(self, scope: Scope) -> int | None:
        """The number of the key that a request brings; takes the same time for every key."""
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        token = given.encode("latin-1").strip() if scheme.lower() == "bearer" else b""
        same = [hmac.compare_digest(token, key) for key in self._keys]
        return same.index(True) if any(same) else None


def cache_key(owner: str, own: str) -> str:
    """The cache key of texts that may share prompts and guesses: of one API key, and of one cache key of its client."""
    return f"{owner}:{own}"
