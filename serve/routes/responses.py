"""POST /v1/responses: the chat that it asks for, answered as output items."""

from __future__ import annotations

from dataclasses import replace

from mxspec.serve.engines.flight import Flight
from mxspec.serve.engines.service import Prepared, Service
from mxspec.serve.routes.chat import prepare_chat
from mxspec.serve.schema.chat import ChatRequest
from mxspec.serve.schema.fields import parse_body, parse_object
from mxspec.serve.schema.responses import REFUSALS, ResponsesRequest
from mxspec.serve.texts.generation import Generation
from mxspec.serve.texts.response_shape import ResponseShape

NAMES = {"prompt": "input", "max_new_tokens": "max_output_tokens", "grammar": "text"}


def prepare(service: Service, flight: Flight, body: bytes, owner: str) -> Prepared[Generation]:
    """From a body to what begins its answer; raises ApiError."""
    asked = parse_body(body, ResponsesRequest, REFUSALS)
    chat = parse_object(asked.chat(), ChatRequest, {})
    chat.ignored_besides(asked.ignored)
    prepared = prepare_chat(service, flight, chat, owner, ResponseShape(asked.echoed()))
    return replace(prepared, names={**prepared.names, **NAMES})
