"""The Host names that a server without keys accepts if only its own machine can reach it.

A hostile page can let its name point to 127.0.0.1 and then read the answers of a server there (DNS rebinding);
its requests carry that name in their Host header.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from mxspec.serve.http.errors import ApiError

HOST = re.compile(r"(?:\[(?P<address>[^\]]*)\]|(?P<name>[^:\[\]]+))(?::\d*)?")  # RFC 9110, 7.2


def is_loopback(host: str) -> bool:
    """Whether only the machine itself can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Hosts:
    """Around the routes: refuses requests whose Host is a name that is not allowed; addresses are always allowed."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = {"localhost", *names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._allowed(scope):
            error = ApiError(403, "host: got a name that is not allowed (specserve --allow-host NAME)")
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        given = Headers(scope=scope).get("host", "")
        found = HOST.fullmatch(given)
        if found is None:
            return False
        name = found["address"] or found["name"]
        if name.lower() in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
