"""The progress of a compile: a line for each step, and a bar if the number of bytes is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

Advance = Callable[[int], object]  # gets how much more is done

_NAME = "{task.description:<16}"


class Stages:
    """Shows named stages of the work on a console, and keeps the `seconds` that each took."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.seconds: dict[str, float] = {}

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, highlight=False, soft_wrap=True)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A stage of unknown length."""
        with self._shown(name, None):
            yield

    @contextmanager
    def bytes(self, name: str, total: int) -> Iterator[Advance]:
        """A stage over `total` bytes; call the yielded function with the bytes done."""
        with self._shown(name, total, BarColumn(), DownloadColumn(), TransferSpeedColumn()) as advance:
            yield advance

    @contextmanager
    def work(self, name: str, total: int) -> Iterator[Advance]:
        """A stage of `total` units; call the yielded function with the units done. It shows the remaining time."""
        with self._shown(name, total, BarColumn(), TaskProgressColumn(), TimeRemainingColumn()) as advance:
            yield advance

    @contextmanager
    def _shown(self, name: str, total: int | None, *middle: ProgressColumn) -> Iterator[Advance]:
        columns = (SpinnerColumn(finished_text="✓"), TextColumn(_NAME), *middle, TimeElapsedColumn())
        began = time.perf_counter()
        with Progress(*columns, console=self._console, speed_estimate_period=600) as progress:
            task = progress.add_task(name, total=total)
            yield lambda count: progress.advance(task, count)
            progress.update(task, total=total or 1, completed=total or 1)
        self.seconds[name] = time.perf_counter() - began
