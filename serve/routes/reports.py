"""GET /v1/models, /health, /metrics and /tokenizer_info: the models, and the state of the server."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mxspec.serve.engines.metrics import CONTENT_TYPE
from mxspec.serve.engines.models import describe
from mxspec.serve.engines.service import Service
from mxspec.serve.routes.tokens import tokenizer_info


class Reports:
    """Endpoints without a body."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self, _request: Request) -> Response:
        self._service.require_ready()
        entries = [describe(served) for served in self._service.served.values()]
        return JSONResponse({"object": "list", "data": entries})

    async def model(self, request: Request) -> Response:
        self._service.require_ready()
        return JSONResponse(describe(self._service.find(request.path_params["model"])))

    async def tokenizer(self, request: Request) -> Response:
        self._service.require_ready()
        return JSONResponse(tokenizer_info(self._service, request.query_params.get("model")))

    async def health(self, _request: Request) -> Response:
        state = self._service.state
        if state == "ready":
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": state}, 503, headers={"Retry-After": "1"})

    async def metrics(self, _request: Request) -> Response:
        return Response(self._service.metrics.text(), media_type=None, headers={"Content-Type": CONTENT_TYPE})
