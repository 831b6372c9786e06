"""GET /: the page, one self-contained file."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from mxspec.serve.errors import ApiError

# The page asks this server alone, and nobody shows it inside another page.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


async def page(_request: Request) -> Response:
    """The page where it is installed; raises ApiError 404."""
    file = files("mxspec.serve").joinpath("page", "index.html")
    if not file.is_file():
        raise ApiError(404, "page: is not installed")
    return HTMLResponse(file.read_text(encoding="utf-8"), headers=_HEADERS)
