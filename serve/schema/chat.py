"""The request of POST /v1/chat/completions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from mxspec.formats.errors import GenerationError
from mxspec.formats.validation import Strict
from mxspec.runtime.grammars.grammar import Grammar
from mxspec.serve.http.errors import ApiError
from mxspec.serve.schema.fields import TOP_LOGPROBS, GenerationRequest, Lenient

_NO_HEARING = "is not supported: the models here read and write text alone"

REFUSALS: dict[str, tuple[tuple[Any, ...], str]] = {
    "store": ((False,), "is not supported: nothing is kept after the answer"),
    "modalities": ((["text"],), _NO_HEARING),
    "audio": ((), _NO_HEARING),
    "prediction": ((), "is not supported; mxspec.drafter: suffix guesses by the prompt"),
    "moderation": ((), "is not supported"),
    "web_search_options": ((), "is not supported: nothing is looked up"),
    "service_tier": (("auto", "default"), "is not supported: there is one"),
    "reasoning_effort": (("none",), "is not supported"),
    "verbosity": (("medium",), "is not supported"),
    "functions": (([],), "is not supported; give them as tools"),
    "function_call": (("auto", "none"), "is not supported; give tool_choice"),
    "prompt_cache_options": ((), "is not supported; what prompts share is reused by itself"),
    "prompt_cache_retention": (("in_memory",), "is not supported: slots are kept in memory until they are needed"),
}


_TEMPLATE = {"template_variables": "chat_template_kwargs", "continued": "continue_final_message"}


def _text(value: Any) -> Any:
    """The text of a content; each part of text begins a new line."""
    if not isinstance(value, list):
        return value
    texts = []
    for number, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        field = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}.get(str(kind))
        if field is None or not isinstance(part.get(field), str):
            raise ValueError(
                f"expected parts of type text, for the models here read only text; part {number} is not one"
            )
        texts.append(part[field])
    return "\n".join(texts)


Text = Annotated[str, BeforeValidator(_text)]


class FunctionCall(Lenient):
    """A call that a message says the model made; its arguments are JSON in a string."""

    name: str
    arguments: str


class ToolCall(Lenient):
    """A call of a tool that a message says the model made."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class Instruction(Lenient):
    """A message of the system or the developer; templates know only the role `system`."""

    role: Literal["system", "developer"]
    content: Text
    name: str | None = None


class Question(Lenient):
    """A message of the user."""

    role: Literal["user"]
    content: Text
    name: str | None = None


class Reply(Lenient):
    """An earlier message of the model."""

    role: Literal["assistant"]
    content: Text | None = None
    name: str | None = None
    reasoning_content: str | None = None  # which some templates show
    tool_calls: list[ToolCall] | None = None


class ToolResult(Lenient):
    """A message with the result of a tool."""

    role: Literal["tool"]
    content: Text
    tool_call_id: str
    name: str | None = None


Message = Annotated[Instruction | Question | Reply | ToolResult, Field(discriminator="role")]


class Function(Strict):
    """The function of a tool, with the JSON schema of its parameters."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function


class Schema(Strict):
    """A JSON schema by name; answers always keep to it, also with `strict` false."""

    name: str
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema", default_factory=dict)]
    strict: bool | None = None


class ResponseFormat(Strict):
    """The form of the answer: text, JSON, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None


class NamedFunction(Strict):
    """The function that is to be called."""

    name: str


class NamedTool(Strict):
    """OpenAI's `tool_choice` of one function."""

    type: Literal["function"]
    function: NamedFunction


class ChatRequest(GenerationRequest):
    """OpenAI's request, except for the fields in REFUSALS."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def names(self) -> Mapping[str, str]:
        limit = "max_tokens" if self.max_tokens is not None else "max_completion_tokens"
        by_format = self.response_format is not None and self.response_format.type != "text"
        grammar = {"grammar": "response_format"} if by_format else {}
        return {**super().names, **grammar, "max_new_tokens": limit, "prompt": "messages", **_TEMPLATE}

    def check(self) -> None:
        super().check()
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ApiError(
                400,
                "max_tokens: given with max_completion_tokens, its newer name; expected one of them",
                param="max_tokens",
            )
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs: given without logprobs", param="top_logprobs")
        if self.tool_choice not in (None, "auto", "none") and not self.tools:
            raise ApiError(400, "tool_choice: given without tools", param="tool_choice")
        names = [tool.function.name for tool in self.tools or ()]
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            known = f"expected one of the tools, {', '.join(names)}"
            raise ApiError(400, f"tool_choice: got {self.tool_choice.function.name!r}, {known}", param="tool_choice")
        if self.add_generation_prompt is not None and self.add_generation_prompt == self.continue_final_message:
            raise ApiError(
                400,
                "add_generation_prompt: an answer begins either after the generation prompt, or with "
                "continue_final_message in the last message",
                param="add_generation_prompt",
            )
        grammars = [
            name for name, given in (("regex", self.mxspec.regex), ("lark", self.mxspec.lark)) if given is not None
        ]
        wanted = self.response_format
        if wanted is not None and wanted.type != "text" and grammars:
            raise ApiError(400, f"response_format: given with mxspec.{grammars[0]}", param="response_format")
        if wanted is not None and (wanted.type == "json_schema") != (wanted.json_schema is not None):
            raise ApiError(
                400,
                "response_format.json_schema: "
                + ("is missing" if wanted.json_schema is None else f"given with type {wanted.type}"),
                param="response_format.json_schema",
            )

    def grammar(self) -> Grammar | None:
        """The grammar that the answer has to keep to; raises GenerationError."""
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return self.mxspec.grammar()
        if wanted.json_schema is None:
            return Grammar.json_schema({"type": "object"})
        return Grammar.json_schema(wanted.json_schema.schema_)

    def chat(self) -> list[dict[str, Any]]:
        """The messages in the form that templates expect; raises GenerationError."""
        chat = []
        for number, message in enumerate(self.messages):
            plain = message.model_dump(exclude_none=True)
            if plain["role"] == "developer":
                plain["role"] = "system"
            for call in plain.get("tool_calls", ()):
                call["function"]["arguments"] = _arguments(number, call["function"]["arguments"])
            plain.setdefault("content", "")  # templates do not expect a reply without
            chat.append(plain)
        return chat


def _arguments(number: int, text: str) -> dict[str, Any]:
    """The arguments of a call as the object that templates expect; raises GenerationError."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise GenerationError("messages", f"number {number} has tool_calls whose arguments are not a JSON object")
    return found
