"""What goes wrong, as OpenAI's clients expect it: a status, a type, and the field that it is about."""

from __future__ import annotations

from typing import Any

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
        """The object that is the answer, or the last of a stream that has begun."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def unsupported(param: str, why: str) -> ApiError:
    """A field that OpenAI knows and this server refuses."""
    return ApiError(400, f"{param}: {why}", param=param, code="unsupported_parameter")


def busy(message: str) -> ApiError:
    """Too much is under way; the client may try again."""
    return ApiError(503, message, kind=SERVER, code="queue_full", retry_after=1)
