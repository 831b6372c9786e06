"""How an answer's objects are sent: as OpenAI's chunks, as the events of its responses, or as Ollama's lines."""

from __future__ import annotations

import json
from typing import Any, Protocol

from mxspec.serve.http.errors import ApiError

Object = dict[str, Any]


class Shape(Protocol):
    """Turns the objects of a chat or completion into what is sent, in their order."""

    content_type: str

    def whole(self, answer: Object) -> Object:
        """The body of a whole answer."""

    def chunk(self, chunk: Object) -> bytes:
        """What is sent for a chunk of a stream; the last one has the usage and no choice."""

    def end(self) -> bytes:
        """The end of a stream."""

    def error(self, error: ApiError) -> bytes:
        """The end of a stream that has failed."""


class Chunks:
    """OpenAI's: each object is an event, and [DONE] is the end."""

    content_type = "text/event-stream; charset=utf-8"

    def whole(self, answer: Object) -> Object:
        return answer

    def chunk(self, chunk: Object) -> bytes:
        return b"data: " + as_json(chunk) + b"\n\n"

    def end(self) -> bytes:
        return b"data: [DONE]\n\n"

    def error(self, error: ApiError) -> bytes:
        return self.chunk(error.as_json())


def as_json(value: Any) -> bytes:
    """A value as JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
