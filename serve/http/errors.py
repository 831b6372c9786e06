"""Errors in the form that OpenAI's clients expect: a status, a type, and the field that the error is about."""

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
        """The error as the body of an answer, or as the last object of a stream."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def unsupported(param: str, why: str) -> ApiError:
    """The error for a field of OpenAI's API that this server refuses."""
    return ApiError(400, f"{param}: {why}", param=param, code="unsupported_parameter")


def busy(message: str) -> ApiError:
    """The error for a server with too many requests under way; the client may try again."""
    return ApiError(503, message, kind=SERVER, code="queue_full", retry_after=1)
