"""The requests of Ollama's /api/chat and /api/generate, and the chats that they ask for."""

from __future__ import annotations

import json
from typing import Any, Literal

from mxspec.formats.validation import Strict
from mxspec.serve.http.errors import ApiError
from mxspec.serve.schema.fields import Lenient

REFUSALS: dict[str, tuple[tuple[Any, ...], str]] = {
    "think": ((False,), "is not supported"),
    "suffix": (("",), "is not supported: no model here was made to fill in a middle"),
    "images": (([],), "is not supported: the models here read only text"),
    "template": (("",), "is not supported: a bundle has its own"),
    "context": (([],), "is not supported: nothing is kept after the answer"),
}
# Options of Ollama by our name; those of how it is run, not of what is written, change nothing.
_OPTIONS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "stop": "stop",
}
_NO_EFFECT = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread", "num_keep", "numa", "low_vram")


class OllamaMessage(Lenient):
    """A message; calls have their arguments as an object."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class OllamaRequest(Strict):
    """What both routes share."""

    model: str
    stream: bool = True
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    keep_alive: Any = None

    @property
    def ignored(self) -> list[str]:
        """The fields that were given and change nothing."""
        options = [f"options.{name}" for name in self.options or {} if name in _NO_EFFECT]
        return [*(["keep_alive"] if "keep_alive" in self.model_fields_set else []), *options]

    def asked(self) -> dict[str, Any]:
        """The fields of OpenAI's requests; raises ApiError for an unknown option."""
        given: dict[str, Any] = {"model": self.model.removesuffix(":latest"), "stream": self.stream}
        if self.stream:
            given["stream_options"] = {"include_usage": True}
        for name, value in (self.options or {}).items():
            if name in _OPTIONS:
                given[_OPTIONS[name]] = value
            elif name == "num_predict":
                given |= {"max_tokens": value} if value != -1 else {}
            elif name not in _NO_EFFECT:
                raise ApiError(400, f"options.{name}: unknown option", param=f"options.{name}")
        if self.format == "json":
            given["response_format"] = {"type": "json_object"}
        elif isinstance(self.format, dict):
            given["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": self.format}}
        elif self.format:
            raise ApiError(400, f"format: got {self.format!r}, expected json or a schema", param="format")
        return given


class OllamaChat(OllamaRequest):
    """The request of /api/chat."""

    messages: list[OllamaMessage]
    tools: list[dict[str, Any]] | None = None

    def chat(self) -> dict[str, Any]:
        """The request of /v1/chat/completions that asks for the same; raises ApiError."""
        messages = []
        for number, message in enumerate(self.messages):
            plain = message.model_dump(exclude_none=True)
            for call in plain.get("tool_calls", ()):
                function = call.get("function", {})
                arguments = function.get("arguments", {})
                call |= {"id": call.get("id", f"call_{number}"), "type": "function"}
                call["function"] = {"name": function.get("name"), "arguments": json.dumps(arguments)}
            if plain["role"] == "tool":
                plain["tool_call_id"] = ""
            messages.append(plain)
        return {**self.asked(), "messages": messages, **({"tools": self.tools} if self.tools else {})}


class OllamaGenerate(OllamaRequest):
    """The request of /api/generate: a question of a chat, or with `raw` a text to be continued."""

    prompt: str = ""
    system: str | None = None
    raw: bool = False

    def chat(self) -> dict[str, Any]:
        """The request of /v1/chat/completions that asks for the same; raises ApiError."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return {**self.asked(), "messages": [*system, {"role": "user", "content": self.prompt}]}
