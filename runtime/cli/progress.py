"""Progress before there is text to see; shown only if standard error is a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from mxspec.runtime.cli.plain_console import PlainConsole

if TYPE_CHECKING:
    from mxspec.runtime.handle import Handle

PATIENCE = 0.5  # seconds before a line is shown, so that short prompts do not flicker


@contextmanager
def shown_while_waiting(handle: Handle, max_new_tokens: int) -> Iterator[None]:
    """In this block, a line shows how much of the prompt was read, then how many tokens were written."""
    if not watched():
        yield
        return
    live = Live(
        get_renderable=lambda: _line(handle, max_new_tokens),
        console=error_console(),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    timer = threading.Timer(PATIENCE, live.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        live.stop()


def watched() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def error_console() -> Console:
    """A console on standard error."""
    return PlainConsole(stderr=True)


def _line(handle: Handle, max_new_tokens: int) -> RenderableType:
    statistics = handle.statistics
    if statistics.emitted:
        doing, done, total = "writing", statistics.emitted, max_new_tokens
    else:
        doing, done, total = "reading the prompt", handle.prompt_read, statistics.prompt_tokens
    row = Table.grid(padding=(0, 1))
    row.add_row(doing, ProgressBar(total=total, completed=done, width=30), f"{done:,} of {total:,} tokens")
    return row
