"""The picture of a trace in docs/trace.md: an answer, and a guessed token's numbers.

    specrun smollm2.bundle 'PROMPT' --trace trace.html
    python -m bench trace-picture trace.html docs/images/trace.png

It needs Playwright and Debian's chromium.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import click
from playwright.sync_api import ViewportSize, sync_playwright

from mxspec.runtime.cli.command import Command

SIZE: ViewportSize = {"width": 960, "height": 1540}


@click.command(cls=Command)
@click.argument("trace", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--token", default=42, show_default=True, help="The guessed token to point at, counted from 0.")
def main(trace: Path, output: Path, token: int) -> None:
    """Draw the page TRACE, which specrun --trace wrote, to OUTPUT."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        page.goto(trace.absolute().as_uri())
        page.locator(".answer .token.accepted").nth(token).hover()
        page.screenshot(path=output)
        browser.close()
