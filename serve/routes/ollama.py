"""Ollama's POST /api/chat and /api/generate, and GET /api/tags and /api/version."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mxspec.formats.sampling import PARAMETERS
from mxspec.formats.validation import Strict
from mxspec.serve.engines.flight import Flight
from mxspec.serve.engines.models import Served
from mxspec.serve.engines.service import Prepared, Service
from mxspec.serve.http.errors import ApiError, wrong
from mxspec.serve.routes.chat import ChatRequest, prepare_chat
from mxspec.serve.routes.completions import CompletionRequest, prepare_completion
from mxspec.serve.texts.fields import Lenient, parse_body, parse_object
from mxspec.serve.texts.generation import Generation
from mxspec.serve.texts.shape import Object, as_json

REFUSALS: dict[str, tuple[tuple[Any, ...], str]] = {
    "think": ((False,), "is not supported"),
    "suffix": (("",), "is not supported: no model here was made to fill in a middle"),
    "images": (([],), "is not supported: the models here read only text"),
    "template": (("",), "is not supported: a bundle has its own"),
    "context": (([],), "is not supported: nothing is kept after the answer"),
}
# Our names of Ollama's options; those of how it is run, not of what is written, change nothing.
_OPTIONS = {each.ollama: each.openai or each.vllm for each in PARAMETERS.values() if each.ollama} | {"stop": "stop"}
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
                raise wrong(f"options.{name}", "unknown option")
        if self.format == "json":
            given["response_format"] = {"type": "json_object"}
        elif isinstance(self.format, dict):
            given["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": self.format}}
        elif self.format:
            raise wrong("format", f"got {self.format!r}, expected json or a schema")
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


VERSION = "0.5.0"  # of Ollama's API, whose fields are understood here


def prepare_message(service: Service, flight: Flight, body: bytes, owner: str) -> Prepared[Generation]:
    """From a body of /api/chat to what begins its answer; raises ApiError."""
    asked = parse_body(body, OllamaChat, REFUSALS)
    chat = parse_object(asked.chat(), ChatRequest, {}, asked.ignored)
    return prepare_chat(service, flight, chat, owner, OllamaShape(chat=True))


def prepare_text(service: Service, flight: Flight, body: bytes, owner: str) -> Prepared[Generation]:
    """From a body of /api/generate to what begins its answer; raises ApiError."""
    asked = parse_body(body, OllamaGenerate, REFUSALS)
    shape = OllamaShape(chat=False)
    if asked.raw or not service.find(asked.model.removesuffix(":latest")).chat:
        completion = parse_object(asked.asked() | {"prompt": asked.prompt}, CompletionRequest, {}, asked.ignored)
        return prepare_completion(service, flight, completion, owner, shape)
    chat = parse_object(asked.chat(), ChatRequest, {}, asked.ignored)
    return prepare_chat(service, flight, chat, owner, shape)


def tags(service: Service) -> Callable[[Request], Response]:
    """GET /api/tags: the models, as Ollama lists them."""

    def answer(_request: Request) -> Response:
        service.require_ready()
        return JSONResponse({"models": [_tag(served) for served in service.served.values()]})

    return answer


def version(_request: Request) -> Response:
    """GET /api/version."""
    return JSONResponse({"version": VERSION})


def _tag(served: Served) -> dict[str, object]:
    manifest = served.engine.bundle.manifest
    size = sum(entry.bytes for entry in manifest.files.values())
    details = {"format": "mxspec", "quantization_level": manifest.models[served.model.kind].format}
    name = f"{served.id}:latest"
    modified = datetime.fromtimestamp(served.created, UTC).isoformat().replace("+00:00", "Z")
    return {"name": name, "model": name, "modified_at": modified, "size": size, "digest": "", "details": details}
