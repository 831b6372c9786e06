"""What goes wrong, as OpenAI's clients expect to be told: a status, a type, and the field that it is about."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mxspec.formats.errors import MxspecError

INVALID, AUTHENTICATION, SERVER = "invalid_request_error", "authentication_error", "server_error"

# Settings of the runtime that requests have under the same name, and those that stand under `mxspec`.
_SAME = {
    *("prompt", "messages", "tools", "temperature", "top_p", "seed", "stop", "n", "best_of", "logprobs"),
    *("presence_penalty", "frequency_penalty", "logit_bias"),
}
_OWN = {
    *("k", "drafter", "verifier", "proposal", "draft_temperature", "lenience", "top_k", "min_p", "typical_p"),
    *("repetition_penalty", "min_new_tokens", "ignore_eos", "cache_key"),
}


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


def refused(error: MxspecError, names: Mapping[str, str] | None = None) -> ApiError:
    """What the engine refuses to begin; `names` are those of its settings that the request calls otherwise."""
    message = str(error)
    found = re.match(r"(\w+)(?= of token \d+: |: )", message)
    name = found[1] if found else ""
    known = {own: f"mxspec.{own}" for own in _OWN} | {same: same for same in _SAME} | dict(names or {})
    if name not in known:
        return ApiError(400, message)
    message = known[name] + message[len(name) :]
    for inner, outer in (names or {}).items():
        message = message.replace(f" {inner},", f" {outer},")
    return ApiError(400, message, param=known[name])
