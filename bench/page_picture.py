"""The picture of the server's page in the README: the three columns at their ends, and the round of a token.

    python bench/page_picture.py build/grown/e3m2.bundle docs/images/page.png

It needs Playwright and Debian's chromium. The speeds that it shows are those of the machine in that minute.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import click
from playwright.sync_api import Page, expect, sync_playwright

RUN = {
    "tab": "compare",
    "prompt": 'class Stack:\n    """A stack of values."""\n\n    def __init__(self):\n',
    "max_tokens": "112",
    "temperature": "0.7",
    "seed": "7",
    "verifier": "match",
}
SIZE = {"width": 1280, "height": 1000}
PATIENCE = 600_000  # milliseconds


@contextmanager
def served(bundle: Path) -> Iterator[str]:
    """The address of a server that runs until the context ends."""
    command = [sys.executable, "-m", "mxspec.serve.start", str(bundle), "--port", "0", "--no-access-log"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if line.startswith("listening on "):
                    yield line.split()[-1]
                    return
            raise click.ClickException("the server does not start")
        finally:
            process.terminate()


def draw(page: Page) -> None:
    """Have the columns write and be replayed, then point at a token of a round with something rejected."""
    expect(page.locator("#run")).to_be_enabled()
    page.click("#run")
    expect(page.locator("#progress")).to_contain_text("Each column had the machine to itself")
    for token in page.locator(".column").last.locator(".kept").all()[12:]:
        token.hover()
        if page.locator("#round .rejected").count() and page.locator("#round tr").count() > 4:
            return


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--k", default="4", help="Guesses a round, or auto.  [default: 4]")
@click.option("--scheme", type=click.Choice(["light", "dark"]), default="light")
def main(bundle: Path, output: Path, k: str, scheme: str) -> None:
    """Serve BUNDLE, which holds a baseline, and draw its page to OUTPUT."""
    expect.set_options(timeout=PATIENCE)
    with served(bundle) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme=scheme)
        page.goto(f"{url}/#{urlencode(RUN | {'k': k})}")
        draw(page)
        page.screenshot(path=output, full_page=True)
        browser.close()


if __name__ == "__main__":
    main()
