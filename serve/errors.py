"""What goes wrong, as OpenAI's clients expect to be told: a status, a type, and the field that it is about."""

from __future__ import annotations

import re
from typing import Any

from mxspec.formats.errors import MxspecError

INVALID, AUTHENTICATION, SERVER = "invalid_request_error", "authentication_error", "server_error"

# Names of the runtime's settings that a request has under another name. The rest of them stand under `mxspec`.
_OPENAI_NAMES = {
    "max_new_tokens": "max_tokens",
    "grammar": "response_format",
    **dict.fromkeys(
        ("prompt", "messages", "tools", "temperature", "top_p", "seed", "stop", "n", "best_of", "logprobs"), None
    ),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "logit_bias"), None),
}
_OWN_NAMES = {
    *("k", "drafter", "verifier", "proposal", "draft_temperature", "lenience", "top_k", "min_p", "typical_p"),
    *("repetition_penalty", "min_new_tokens", "ignore_eos", "cache_key", "regex", "lark"),
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


def refused(error: MxspecError, limit_name: str = "max_tokens") -> ApiError:
    """What the engine refuses to begin; `limit_name` is what the request calls the most tokens to write."""
    message = str(error)
    found = re.match(r"(\w+)(?= of token \d+: |: )", message)
    name = found[1] if found else ""
    if name in _OWN_NAMES:
        param = f"mxspec.{name}"
    elif name in _OPENAI_NAMES:
        param = limit_name if name == "max_new_tokens" else _OPENAI_NAMES[name] or name
    else:
        return ApiError(400, message)
    message = param + message[len(name) :]
    return ApiError(400, message.replace("max_new_tokens", limit_name), param=param)
