"""The application: the endpoint of each route, and the layers around them all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mxspec.serve.engines.service import Service
from mxspec.serve.http.errors import ApiError
from mxspec.serve.http.hosts import Hosts
from mxspec.serve.http.keys import Keys, new_salt
from mxspec.serve.http.log import AccessLog, Write, write_line
from mxspec.serve.routes import chat, completions, ollama, responses, tokens
from mxspec.serve.routes.page import page
from mxspec.serve.routes.reports import Reports
from mxspec.serve.texts.exchange import TextRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may send requests, and where answers are logged."""

    keys: Sequence[str] = ()  # empty: everybody may ask
    origins: Sequence[str] = ()  # origins of other pages that browsers may ask from; "*" for all
    hosts: Sequence[str] | None = None  # names allowed in the Host header; None: any
    log: Write | None = write_line
    page: bool = True
    salt: bytes = field(default_factory=new_salt)  # of cache keys


def build_app(service: Service, access: Access | None = None) -> Starlette:
    """The application of a service, whose models it loads when it starts and closes when it ends."""
    access = Access() if access is None else access
    reports = Reports(service)
    routes = [
        Route("/v1/models", reports.models),
        Route("/v1/models/{model:path}", reports.model),
        Route("/v1/completions", JsonOnly(TextRoute(service, completions.prepare)), methods=["POST"]),
        Route("/v1/chat/completions", JsonOnly(TextRoute(service, chat.prepare)), methods=["POST"]),
        Route("/v1/responses", JsonOnly(TextRoute(service, responses.prepare)), methods=["POST"]),
        Route("/api/chat", JsonOnly(TextRoute(service, ollama.prepare_message), any_type=True), methods=["POST"]),
        Route("/api/generate", JsonOnly(TextRoute(service, ollama.prepare_text), any_type=True), methods=["POST"]),
        Route("/api/tags", ollama.tags(service)),
        Route("/api/version", ollama.version),
        Route("/tokenize", JsonOnly(tokens.TokenRoute(service, tokens.tokenize)), methods=["POST"]),
        Route("/detokenize", JsonOnly(tokens.TokenRoute(service, tokens.detokenize)), methods=["POST"]),
        Route("/tokenizer_info", reports.tokenizer),
        Route("/health", reports.health),
        Route("/metrics", reports.metrics),
    ]
    if access.page:
        routes.append(Route("/", page))
    around = [Middleware(AccessLog, count=service.metrics.respond, write=access.log)]
    if access.hosts is not None:
        around.append(Middleware(Hosts, names=access.hosts))
    if access.origins:
        around.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(access.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type"],
            )
        )
    around.append(Middleware(Keys, keys=access.keys, salt=access.salt))

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        loading = asyncio.create_task(service.start())
        yield
        await loading
        await asyncio.to_thread(service.close)

    app = Starlette(
        routes=routes,
        middleware=around,
        exception_handlers={ApiError: _answer_error, HTTPException: _answer_http},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return app


class JsonOnly:
    """Around an endpoint: refuses other types than JSON, as a page of another origin can send them unasked.

    `any_type`: other types are refused of browsers alone, which say where a request comes from; Ollama's clients
    send JSON without its type.
    """

    def __init__(self, app: ASGIApp, *, any_type: bool = False) -> None:
        self._app = app
        self._any_type = any_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        of_browser = "origin" in headers or "sec-fetch-site" in headers
        kind = headers.get("content-type", "").partition(";")[0].strip(" \t").lower()
        if kind != "application/json" and (of_browser or not self._any_type):
            error = ApiError(415, "body: expected Content-Type: application/json")
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)


async def _answer_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}").response(error.headers)
