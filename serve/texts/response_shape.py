"""The shape of POST /v1/responses: output items, and in a stream an event for each thing that happens to one."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from mxspec.serve.http.errors import ApiError
from mxspec.serve.texts.shapes import Object, as_json


class ResponseShape:
    """A response, from the chunks or the whole of the chat that answers it; `echoed`: fields of the request."""

    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, echoed: Mapping[str, Any]) -> None:
        self._echoed = echoed
        self._id = f"resp_{secrets.token_hex(12)}"
        self._message_id = f"msg_{secrets.token_hex(12)}"
        self._number = 0  # of the next event
        self._head: Object = {}
        self._text = ""
        self._has_text = False
        self._output: list[Object] = []
        self._reason: str | None = None
        self._usage: Object | None = None

    def whole(self, answer: Object) -> Object:
        (choice,) = answer["choices"]
        self._head, self._reason, self._usage = answer, choice["finish_reason"], answer["usage"]
        message = choice["message"]
        calls = message.get("tool_calls") or []
        if message["content"] or not calls:
            self._output.append(self._message(message["content"] or ""))
        self._output += [_call(call) for call in calls]
        return self._response(self._status())

    def chunk(self, chunk: Object) -> bytes:
        sent = b"" if self._head else self._begin(chunk)
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if delta.get("content"):
                sent += self._add(delta["content"])
            for call in delta.get("tool_calls", ()):
                sent += self._end_text() + self._add_call(call)
            self._reason = choice["finish_reason"] or self._reason
        self._usage = chunk.get("usage") or self._usage
        return sent

    def end(self) -> bytes:
        sent = b""
        if not self._output and not self._has_text:
            sent += self._begin_text()
        sent += self._end_text()
        status = self._status()
        return sent + self._event(f"response.{status}", response=self._response(status))

    def error(self, error: ApiError) -> bytes:
        return self._event("error", code=error.code, message=error.message, param=error.param)

    # --- the events of a stream ---

    def _begin(self, chunk: Object) -> bytes:
        self._head = chunk
        begun = self._response("in_progress")
        return self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)

    def _begin_text(self) -> bytes:
        self._has_text = True
        item = {**self._message(""), "status": "in_progress", "content": []}
        return self._event("response.output_item.added", output_index=len(self._output), item=item) + self._of_text(
            "response.content_part.added", part=_part("")
        )

    def _add(self, text: str) -> bytes:
        begun = b"" if self._has_text else self._begin_text()
        self._text += text
        return begun + self._of_text("response.output_text.delta", delta=text, logprobs=[])

    def _end_text(self) -> bytes:
        if not self._has_text:
            return b""
        self._has_text = False
        sent = self._of_text("response.output_text.done", text=self._text, logprobs=[])
        sent += self._of_text("response.content_part.done", part=_part(self._text))
        return sent + self._end_item(self._message(self._text))

    def _add_call(self, call: Object) -> bytes:
        item, index = _call(call), len(self._output)
        where = {"item_id": item["id"], "output_index": index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        sent = self._event("response.output_item.added", output_index=index, item=begun)
        sent += self._event("response.function_call_arguments.delta", **where, delta=item["arguments"])
        done = {"arguments": item["arguments"], "name": item["name"]}
        sent += self._event("response.function_call_arguments.done", **where, **done)
        return sent + self._end_item(item)

    def _end_item(self, item: Object) -> bytes:
        self._output.append(item)
        return self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _of_text(self, kind: str, **more: Any) -> bytes:
        where = {"item_id": self._message_id, "output_index": len(self._output), "content_index": 0}
        return self._event(kind, **where, **more)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = as_json({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    # --- objects ---

    def _status(self) -> str:
        return "incomplete" if self._reason == "length" else "completed"

    def _response(self, status: str) -> Object:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._head["created"],
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "model": self._head["model"],
            "output": list(self._output),
            **self._echoed,
            "previous_response_id": None,
            "store": False,
            "usage": None if self._usage is None else _usage(self._usage),
        }

    def _message(self, text: str) -> Object:
        return {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [_part(text)],
        }


def _part(text: str) -> Object:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call(call: Object) -> Object:
    return {
        "id": f"fc_{secrets.token_hex(12)}",
        "type": "function_call",
        "status": "completed",
        "call_id": call["id"],
        "name": call["function"]["name"],
        "arguments": call["function"]["arguments"],
    }


def _usage(usage: Object) -> Object:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
