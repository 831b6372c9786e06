"""The request of POST /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from mxspec.serve.http.errors import ApiError
from mxspec.serve.schema.fields import TOP_LOGPROBS, GenerationRequest

DEFAULT_TOKENS = 16  # OpenAI's default

REFUSALS: dict[str, tuple[tuple[Any, ...], str]] = {
    "suffix": (("",), "is not supported: no model here was made to fill in a middle"),
}


def _prompts(value: Any) -> Any:
    """A text, a list of texts, token ids, or a list of lists of them: always as a list of prompts."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        if value and all(isinstance(one, int) and not isinstance(one, bool) for one in value):
            return [value]
        if all(isinstance(one, str) for one in value) or all(isinstance(one, list) for one in value):
            return value
    raise ValueError("expected a text, a list of texts, token ids, or a list of lists of token ids")


class CompletionRequest(GenerationRequest):
    """OpenAI's request, except for `suffix`."""

    prompt: Annotated[list[str | list[int]], BeforeValidator(_prompts)]
    max_tokens: Annotated[int, Field(ge=0)] = DEFAULT_TOKENS
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None

    @property
    def names(self) -> Mapping[str, str]:
        return {**super().names, "max_new_tokens": "max_tokens"}

    def check(self) -> None:
        super().check()
        if self.max_tokens == 0 and not self.echo:
            raise ApiError(400, "max_tokens: got 0 without echo, which leaves nothing to answer", param="max_tokens")
        if self.max_tokens == 0 and (self.n > 1 or self.best_of is not None):
            name = "best_of" if self.best_of is not None else "n"
            raise ApiError(400, f"{name}: given with max_tokens 0, where nothing is written", param=name)
        if self.max_tokens == 0 and self.stream:
            raise ApiError(400, "stream: given with max_tokens 0, where nothing is written", param="stream")
        if self.best_of is not None and self.stream:
            raise ApiError(400, "best_of: given with stream, but the best is known only at the end", param="best_of")
        if self.best_of is not None and self.best_of < self.n:
            raise ApiError(400, f"best_of: got {self.best_of}, expected at least n, {self.n}", param="best_of")
