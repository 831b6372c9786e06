"""The request of POST /v1/responses, and the chat that it asks for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from mxspec.formats.validation import Strict
from mxspec.serve.http.errors import ApiError
from mxspec.serve.schema.fields import Lenient, Own

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
                        raise _missing(number, "role")
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


def _missing(number: int, field: str) -> ApiError:
    param = f"input.{number}.{field}"
    return ApiError(400, f"{param}: is missing", param=param, code="missing_required_parameter")
