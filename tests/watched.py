"""A page in a headless Chromium, and all that it says and asks for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 30_000  # milliseconds; a loaded machine is slow


@contextmanager
def headless_browser() -> Iterator[Any]:
    """Chromium, driven by Playwright; the test is skipped where one of them is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the path; Debian's package is chromium")
    playwright.expect.set_options(timeout=PATIENCE)
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """A page, and all that it said and asked for."""

    def __init__(self, browser: Any, url: str | None = None, **settings: Any) -> None:
        self.context = browser.new_context(**settings)
        self.context.set_default_timeout(PATIENCE)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        if url is not None:
            self.page.goto(url)

    def close(self) -> None:
        self.context.close()
