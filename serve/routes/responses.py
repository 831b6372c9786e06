"""POST /v1/responses: the chat that it asks for, answered as output items."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from mxspec.formats.validation import Strict
from mxspec.serve.engines.flight import Flight
from mxspec.serve.engines.service import Prepared, Service
from mxspec.serve.http.errors import ApiError, wrong
from mxspec.serve.routes.chat import ChatRequest, prepare_chat
from mxspec.serve.texts.fields import Lenient, Own, parse_body, parse_object
from mxspec.serve.texts.generation import Generation
from mxspec.serve.texts.shape import Object, as_json

REFUSALS: dict[str, tuple[tuple[Any, ...], str]] = {
    "previous_response_id": ((), "is not supported: nothing is kept after the answer; send the whole input"),
    "conversation": ((), "is not supported: nothing is kept after the answer; send the whole input"),
    "prompt": ((), "is not supported: no prompts are kept"),
    "background": ((False,), "is not supported: nothing is kept after the answer"),
    "truncation": (("disabled",), "is not supported: a longer input is refused"),
    "max_tool_calls": ((), "is not supported: no tools are run here"),
    "reasoning": (({}, {"effort": "none"}), "is not supported"),
    "service_tier": (("auto", "default"), "is not supported: there is one"),
    "top_logprobs": ((0,), "is not supported; /v1/chat/completions has them"),
}
_NO_EFFECT = ("store", "metadata", "user", "safety_identifier", "prompt_cache_key", "include", "stream_options")


class TextFormat(Strict):
    """The form of the answer, flat as this route has it."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextSettings(Strict):
    """The field `text`."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class FlatTool(Strict):
    """A function that the model may call."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FlatChoice(Strict):
    """The function that is to be called."""

    type: Literal["function"]
    name: str


class Item(Lenient):
    """A message, a call, or a call's result; `type` may be left out of a message."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Any = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Any = None


class ResponsesRequest(Strict):
    """OpenAI's request, except for the fields in REFUSALS."""

    model: str | None = None
    input: str | list[Item]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool = False
    text: TextSettings | None = None
    tools: list[FlatTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    mxspec: Own | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    include: list[str] | None = None
    stream_options: dict[str, Any] | None = None

    @property
    def ignored(self) -> list[str]:
        """The fields that were given and change nothing."""
        return [name for name in _NO_EFFECT if name in self.model_fields_set]

    def echoed(self) -> dict[str, Any]:
        """What a response repeats of its request."""
        given = self.model_dump(by_alias=True)
        names = ("instructions", "max_output_tokens", "temperature", "top_p", "tool_choice", "metadata", "text")
        defaults = {"tool_choice": "auto", "metadata": {}, "text": {"format": {"type": "text"}}}
        found = {name: defaults.get(name) if given[name] is None else given[name] for name in names}
        parallel = self.parallel_tool_calls is not False
        return {**found, "tools": given["tools"] or [], "parallel_tool_calls": parallel, "truncation": "disabled"}

    def chat(self) -> dict[str, Any]:
        """The request of /v1/chat/completions that asks for the same; raises ApiError."""
        asked: dict[str, Any] = {
            "model": self.model,
            "messages": self._messages(),
            "max_completion_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stream": self.stream,
            "stream_options": {"include_usage": True} if self.stream else None,
            "parallel_tool_calls": self.parallel_tool_calls,
            "mxspec": None if self.mxspec is None else self.mxspec.model_dump(exclude_unset=True),
        }
        if self.tools:
            flat = [tool.model_dump(exclude_none=True, exclude={"type"}) for tool in self.tools]
            asked["tools"] = [{"type": "function", "function": tool} for tool in flat]
        choice = self.tool_choice
        if isinstance(choice, FlatChoice):
            asked["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        else:
            asked["tool_choice"] = choice
        if self.text is not None and self.text.format is not None:
            given = self.text.format.model_dump(by_alias=True, exclude_none=True)
            kind = given.pop("type")
            asked["response_format"] = {"type": kind, "json_schema": given} if given else {"type": kind}
        return {name: value for name, value in asked.items() if value is not None}

    def _messages(self) -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = []
        if self.instructions:
            said.append({"role": "system", "content": self.instructions})
        items = [Item(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        for number, item in enumerate(items):
            match item.type:
                case "message":
                    if item.role is None:
                        raise wrong(f"input.{number}.role", "is missing", "missing_required_parameter")
                    said.append({"role": item.role, "content": item.content})
                case "function_call":
                    call = {"name": item.name, "arguments": item.arguments or "{}"}
                    if not said or said[-1]["role"] != "assistant":
                        said.append({"role": "assistant", "content": None})
                    known = said[-1].setdefault("tool_calls", [])
                    known.append({"id": item.call_id, "type": "function", "function": call})
                case "function_call_output":
                    said.append({"role": "tool", "content": item.output, "tool_call_id": item.call_id})
        return said


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


NAMES = {"prompt": "input", "max_new_tokens": "max_output_tokens", "grammar": "text"}


def prepare(service: Service, flight: Flight, body: bytes, owner: str) -> Prepared[Generation]:
    """From a body to what begins its answer; raises ApiError."""
    asked = parse_body(body, ResponsesRequest, REFUSALS)
    chat = parse_object(asked.chat(), ChatRequest, {}, asked.ignored)
    prepared = prepare_chat(service, flight, chat, owner, ResponseShape(asked.echoed()))
    return replace(prepared, names={**prepared.names, **NAMES})
