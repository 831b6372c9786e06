"""`specrun --compare`: one prompt answered by fp16, the packed target and speculation, side by side.

The columns write one after another, each with the whole machine, and are shown together by the times that were taken.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mxspec.runtime.cli.command import print_json, report_console
from mxspec.runtime.cli.output import write_file
from mxspec.runtime.cli.plain_console import PlainConsole, shown
from mxspec.runtime.cli.report import answer_as_json
from mxspec.runtime.cli.settings import Defaults
from mxspec.runtime.commands.answer import DRAFTED_COLOUR, on_terminal
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Event, Token
from mxspec.runtime.handle import Answer
from mxspec.runtime.request import Request

FRAMES_A_SECOND = 20
PICTURE_WIDTH = 132  # characters
LINES_AROUND = 8  # lines of the terminal around the text of a column
_WEB_FONT = re.compile(r"@font-face {.*?}\s*", re.DOTALL)  # the picture stands alone; the viewer's own font will do


@dataclass(frozen=True, slots=True)
class ComparedEngine:
    """The engine that writes a column, and whether it drafts."""

    title: str
    engine: Engine
    speculates: bool


@dataclass(frozen=True, slots=True)
class Recording:
    """An answer with the time of each of its events, in seconds after it was asked for."""

    column: str
    events: tuple[tuple[float, Event], ...]
    answer: Answer

    @property
    def tokens(self) -> list[tuple[float, Token]]:
        return [(at, event) for at, event in self.events if isinstance(event, Token)]

    @property
    def first_token_seconds(self) -> float:
        return self.tokens[0][0]


@contextmanager
def open_columns(bundle: Path, threads: int | None = None) -> Iterator[list[ComparedEngine]]:
    """The columns that the bundle allows: without a baseline the packed target alone, with and without speculation.

    Raises BundleError.
    """
    with ExitStack() as engines:
        packed = engines.enter_context(Engine(bundle, slots=1, threads=threads))
        models = packed.bundle.manifest.models
        name = models["target"].format
        columns = [
            ComparedEngine(name, packed, speculates=False),
            ComparedEngine(f"{name}, speculating", packed, speculates=True),
        ]
        if "baseline" in models:
            fp16 = engines.enter_context(Engine(bundle, slots=1, model="baseline"))
            columns.insert(0, ComparedEngine("fp16", fp16, speculates=False))
        yield columns


def write_column(column: ComparedEngine, wanted: Request) -> Recording:
    """The answer of one column, with its times: all of the prompt is read, whatever another column has read."""
    own = replace(wanted, cache_key=f"{wanted.cache_key} {column.title}")
    asked = time.perf_counter()
    handle = column.engine.submit(own if column.speculates else replace(own, k=0, drafter="none"))
    events = tuple((time.perf_counter() - asked, event) for event in handle)
    return Recording(column.title, events, handle.result())


def compare(
    bundle: Path, prompt: str, defaults: Defaults, *, threads: int | None, json_output: bool, picture: Path | None
) -> int:
    """Have every column write, show them together, and say how much faster each is than the first; the exit code."""
    console = report_console(json_output=json_output)
    recordings: list[Recording] = []
    with open_columns(bundle, threads) as columns:
        request = defaults.request(columns[-1].engine, prompt)
        for number, column in enumerate(columns, 1):
            with console.status(f"{column.title} writes: {number} of {len(columns)}, one after another"):
                write_column(column, replace(request, max_new_tokens=1, min_new_tokens=0, cache_key="first"))  # pages
                recordings.append(write_column(column, request))
    if picture is not None:
        save_picture(recordings, picture)
    if json_output:
        print_json(as_json(recordings))
    elif on_terminal():
        replay(recordings)
    else:
        PlainConsole(width=PICTURE_WIDTH).print(side_by_side(recordings))
    return 0


def replay(recordings: Sequence[Recording]) -> None:
    """Show the columns as if they wrote together, in the time that the slowest took."""
    console = PlainConsole()
    lines = max(console.height - LINES_AROUND, 4)
    began, end = time.perf_counter(), max(recording.events[-1][0] for recording in recordings)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while (now := time.perf_counter() - began) < end:
            live.update(side_by_side(recordings, now, lines), refresh=True)
            time.sleep(1 / FRAMES_A_SECOND)
    console.print(side_by_side(recordings))


def side_by_side(recordings: Sequence[Recording], now: float | None = None, lines: int | None = None) -> RenderableType:
    """The columns `now` seconds after they were asked, or at their ends; no more than the last `lines` of each."""
    table = Table(expand=True, box=box.ROUNDED)
    for recording in recordings:
        table.add_column(Text(recording.column, style="bold"), ratio=1)
    table.add_row(*(_text(recording, now, lines) for recording in recordings))
    table.add_section()
    table.add_row(*(_figures(recording, recordings[0], now) for recording in recordings))
    return Group(table, Text(_verdict(recordings), style="dim"))


def _text(recording: Recording, now: float | None, lines: int | None) -> Text:
    """What has been written; tokens that were guessed and kept are coloured."""
    text = Text(overflow="fold")
    for at, token in recording.tokens:
        if now is None or at <= now:
            text.append(shown(token.text), style=DRAFTED_COLOUR if token.drafted else "")
    if now is None:
        text.append(shown(recording.answer.text[len(text.plain) :]))
    kept = text.split("\n")[-lines:] if lines else text.split("\n")
    return Text("\n", overflow="fold").join(kept)


def _figures(recording: Recording, first: Recording, now: float | None) -> Text:
    """Tokens, and at the end their speed, beside that of the first column."""
    statistics = recording.answer.statistics
    if now is not None and now < recording.events[-1][0]:
        return Text(f"{sum(at <= now for at, _ in recording.tokens)} tokens", style="dim")
    parts = [f"{statistics.emitted} tokens", f"TTFT {recording.first_token_seconds * 1e3:.0f} ms"]
    if statistics.acceptance is not None:
        parts.append(f"{statistics.acceptance:.0%} of guesses kept")
    figures = Text(" · ".join(parts), style="dim")
    rate, before = statistics.decode_tokens_per_second, first.answer.statistics.decode_tokens_per_second
    if rate is not None:
        speed = f"{rate:.1f} tok/s" + (f", {rate / before:.2f} x" if before and recording is not first else "")
        figures = Text("\n").join([Text(speed, style="bold"), figures])
    return figures


def _verdict(recordings: Sequence[Recording]) -> str:
    *_, plain, speculating = recordings
    same = plain.answer.token_ids == speculating.answer.token_ids
    return (
        f"{plain.column} writes {'the same' if same else 'another'} text with and without speculation. Each column "
        "had the machine to itself; here they run together, by the times that were taken."
    )


def as_json(recordings: Sequence[Recording]) -> dict[str, Any]:
    """Each column's answer, and whether speculation changed it."""
    *_, plain, speculating = recordings
    return {
        "columns": [
            {"column": recording.column, "time_to_first_token_s": recording.first_token_seconds}
            | answer_as_json(recording.answer)
            for recording in recordings
        ],
        "same_text": plain.answer.token_ids == speculating.answer.token_ids,
    }


def save_picture(recordings: Sequence[Recording], path: Path) -> None:
    """The columns at their ends as an SVG."""
    with Path(os.devnull).open("w") as nowhere:
        console = PlainConsole(file=nowhere, record=True, width=PICTURE_WIDTH, force_terminal=True)
        console.print(side_by_side(recordings))
        drawn = console.export_svg(title="specrun --compare")
    write_file("--picture", path, _WEB_FONT.sub("", drawn))
