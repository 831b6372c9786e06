"""GET /: the page, whose headers allow its own script and requests to its own server, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

FOLDER = Path(__file__).parents[1] / "page"


async def page(_request: Request) -> Response:
    """The page; it needs no key, and asks for one if the API needs it."""
    return _response()


@cache
def _response() -> Response:
    markup = read_page()
    return HTMLResponse(
        markup,
        headers={
            "Content-Security-Policy": content_security_policy(markup),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        },
    )


def read_page() -> str:
    """The page in one piece, with the renderer of Markdown as a script of its own."""
    markup, markdown = ((FOLDER / name).read_text(encoding="utf-8") for name in ("index.html", "markdown.js"))
    return markup.replace("/* markdown.js */", markdown)


def content_security_policy(markup: str) -> str:
    """A policy that allows only the scripts and styles of the markup, by their hashes."""
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hashes(markup, 'script')}",
            f"style-src {_hashes(markup, 'style')}",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _hashes(markup: str, tag: str) -> str:
    texts = re.findall(rf"<{tag}>(.*?)</{tag}>", markup, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
