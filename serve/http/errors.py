"""Errors in the form that OpenAI's clients expect: a status, a type, and the field that the error is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.responses import JSONResponse

INVALID, AUTHENTICATION, SERVER = "invalid_request_error", "authentication_error", "server_error"


class ApiError(Exception):
    """An answer that is an error; `param` is the field of the request that it is about."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def as_json(self) -> dict[str, Any]:
        """The error as the body of an answer, or as the last object of a stream."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self, more: Mapping[str, str] | None = None) -> JSONResponse:
        """The error as an answer, with the headers that its status needs, and `more`."""
        from starlette.responses import JSONResponse  # late: `specserve --help` needs no server

        headers = dict(more or {})
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.status in (408, 413, 503):
            headers["Connection"] = "close"  # its body may not have been read
        return JSONResponse(self.as_json(), self.status, headers)


def wrong(param: str, why: str, code: str | None = None) -> ApiError:
    """The error for a mistake in a field of a request."""
    return ApiError(400, f"{param}: {why}", param=param, code=code)


def unsupported(param: str, why: str) -> ApiError:
    """The error for a field of OpenAI's API that this server refuses."""
    return wrong(param, why, "unsupported_parameter")


def busy(message: str) -> ApiError:
    """The error for a server with too many requests under way; the client may try again."""
    return ApiError(503, message, kind=SERVER, code="queue_full", retry_after=1)
