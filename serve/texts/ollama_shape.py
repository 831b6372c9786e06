"""The shape of Ollama's /api/chat and /api/generate: a line of JSON for each piece, and one with the counts."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

from mxspec.serve.http.errors import ApiError
from mxspec.serve.texts.shapes import Object, as_json


class OllamaShape:
    """Lines of a chat, or of a text that is generated."""

    content_type = "application/x-ndjson"

    def __init__(self, *, chat: bool) -> None:
        self._chat = chat
        self._began = time.perf_counter_ns()
        self._model = ""
        self._reason: str | None = None
        self._usage: Object = {}
        self._timings: Object = {}

    def whole(self, answer: Object) -> Object:
        (choice,) = answer["choices"]
        self._note(answer, choice)
        self._usage = answer["usage"]
        message = choice.get("message") or {"content": choice.get("text")}
        return self._line(message) | self._counts()

    def chunk(self, chunk: Object) -> bytes:
        sent = b""
        for choice in chunk["choices"]:
            self._note(chunk, choice)
            piece = choice.get("delta") or {"content": choice.get("text")}
            if piece.get("content") or piece.get("tool_calls"):
                sent += as_json(self._line(piece) | {"done": False}) + b"\n"
        self._usage = chunk.get("usage") or self._usage
        return sent

    def end(self) -> bytes:
        return as_json(self._line({}) | self._counts()) + b"\n"

    def error(self, error: ApiError) -> bytes:
        return as_json({"error": error.message}) + b"\n"

    def _note(self, source: Object, choice: Object) -> None:
        self._model = source["model"]
        self._reason = choice["finish_reason"] or self._reason
        self._timings = source.get("timings") or self._timings

    def _line(self, piece: Object) -> Object:
        text = piece.get("content") or ""
        head: Object = {"model": self._model, "created_at": datetime.now(UTC).isoformat().replace("+00:00", "Z")}
        if not self._chat:
            return {**head, "response": text}
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if piece.get("tool_calls"):
            message["tool_calls"] = [_call(call["function"]) for call in piece["tool_calls"]]
        return {**head, "message": message}

    def _counts(self) -> Object:
        return {
            "done": True,
            "done_reason": "length" if self._reason == "length" else "stop",
            "total_duration": time.perf_counter_ns() - self._began,
            "load_duration": 0,
            "prompt_eval_count": self._usage.get("prompt_tokens", 0),
            "prompt_eval_duration": round(self._timings.get("prompt_ms", 0) * 1e6),
            "eval_count": self._usage.get("completion_tokens", 0),
            "eval_duration": round(self._timings.get("predicted_ms", 0) * 1e6),
        }


def _call(function: Object) -> Object:
    return {"function": {"name": function["name"], "arguments": json.loads(function["arguments"])}}
