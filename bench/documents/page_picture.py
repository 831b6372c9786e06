"""The picture of the server's page in docs/serve.md: the three columns at their ends, and the round of a token.

    python -m bench page-picture smollm2.bundle docs/images/page.png

It needs Playwright and Debian's chromium. The speeds that it shows are those of the machine in that minute.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode

import click
from playwright.sync_api import Page, ViewportSize, expect, sync_playwright

from mxspec.evaluate.bench.serve.server import specserve
from mxspec.runtime.cli.command import Command

RUN = {
    "tab": "compare",
    "prompt": "Write a Python class called Stack with push, pop, peek, is_empty and size methods.",
    "max_tokens": "150",
    "temperature": "0",
}
SIZE: ViewportSize = {"width": 1280, "height": 1000}
PATIENCE = 600_000  # milliseconds


def draw(page: Page) -> None:
    """Have the columns write and be replayed, then point at a token of a round with something rejected."""
    expect(page.locator("#run")).to_be_enabled()
    page.click("#run")
    expect(page.locator("#progress")).to_contain_text("Each column had the machine to itself")
    for token in page.locator(".column").last.locator(".kept").all()[12:]:
        token.hover()
        if page.locator("#round .rejected").count() and page.locator("#round tr").count() > 4:
            return


@click.command(cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--k", default="auto", help="Guesses a round, or auto.  [default: auto]")
@click.option("--scheme", type=click.Choice(["light", "dark"]), default="light")
def main(bundle: Path, output: Path, k: str, scheme: Literal["light", "dark"]) -> None:
    """Serve BUNDLE, which holds a baseline, and draw its page to OUTPUT."""
    expect.set_options(timeout=PATIENCE)
    with specserve(bundle) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme=scheme)
        page.goto(f"{server.address.url}/#{urlencode(RUN | {'k': k})}")
        draw(page)
        page.screenshot(path=output, full_page=True)
        browser.close()
