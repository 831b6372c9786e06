"""The messages of a chat, as requests give them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from mxspec.serve.texts.fields import Lenient


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
