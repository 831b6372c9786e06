"""The requests of POST /tokenize and /detokenize, in vLLM's form."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from mxspec.formats.validation import Strict
from mxspec.serve.schema.chat import Message


class TokenizeRequest(Strict):
    """The request for the tokens of a text, or of the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None  # default: true for a text, false for a chat, whose template writes them
    add_generation_prompt: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_them(self) -> Any:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("expected either a prompt or messages")
        return self


class DetokenizeRequest(Strict):
    """The request for the text of token ids."""

    model: str | None = None
    tokens: list[int]
