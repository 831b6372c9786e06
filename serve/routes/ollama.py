"""Ollama's POST /api/chat and /api/generate, and GET /api/tags and /api/version."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mxspec.serve.engines.flight import Flight
from mxspec.serve.engines.models import Served
from mxspec.serve.engines.service import Prepared, Service
from mxspec.serve.routes.chat import prepare_chat
from mxspec.serve.routes.completions import prepare_completion
from mxspec.serve.schema.chat import ChatRequest
from mxspec.serve.schema.completion import CompletionRequest
from mxspec.serve.schema.fields import parse_body, parse_object
from mxspec.serve.schema.ollama import REFUSALS, OllamaChat, OllamaGenerate
from mxspec.serve.texts.generation import Generation
from mxspec.serve.texts.ollama_shape import OllamaShape

VERSION = "0.5.0"  # of Ollama's API, whose fields are understood here


def prepare_message(service: Service, flight: Flight, body: bytes, owner: str) -> Prepared[Generation]:
    """From a body of /api/chat to what begins its answer; raises ApiError."""
    asked = parse_body(body, OllamaChat, REFUSALS)
    chat = parse_object(asked.chat(), ChatRequest, {})
    chat.ignored_besides(asked.ignored)
    return prepare_chat(service, flight, chat, owner, OllamaShape(chat=True))


def prepare_text(service: Service, flight: Flight, body: bytes, owner: str) -> Prepared[Generation]:
    """From a body of /api/generate to what begins its answer; raises ApiError."""
    asked = parse_body(body, OllamaGenerate, REFUSALS)
    shape = OllamaShape(chat=False)
    if asked.raw or not service.find(asked.model.removesuffix(":latest")).chat:
        completion = parse_object(asked.asked() | {"prompt": asked.prompt}, CompletionRequest, {})
        completion.ignored_besides(asked.ignored)
        return prepare_completion(service, flight, completion, owner, shape)
    chat = parse_object(asked.chat(), ChatRequest, {})
    chat.ignored_besides(asked.ignored)
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
