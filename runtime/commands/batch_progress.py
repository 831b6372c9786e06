"""The progress of a batch job: a bar with tokens a second where standard error is a terminal, and its end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from mxspec.runtime.cli.command import EXIT_BAD_INPUT, print_json
from mxspec.runtime.cli.interrupts import EXIT_INTERRUPTED
from mxspec.runtime.cli.progress import error_console, watched

NAMED = 10  # number of bad lines that the last line names


@dataclass(slots=True)
class Counts:
    """Lines of the whole job, those of earlier runs included; tokens and seconds of this run."""

    lines: int
    answered: int = 0
    bad: list[int] = field(default_factory=list)
    tokens: int = 0
    drafted: int = 0
    evaluated: int = 0
    accepted: int = 0
    began: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    def add_line(self, number: int, *, bad: bool) -> None:
        """A line that is done, in this run or in one before."""
        if bad:
            self.bad.append(number)
        else:
            self.answered += 1

    def add_answer(self, report: Mapping[str, Any]) -> None:
        """An answer of this run, as it is written."""
        self.add_line(report["line"], bad="error" in report)
        if "error" in report:
            return
        for answer in report.get("answers", [report]):
            self.tokens += len(answer["token_ids"])
            self.drafted += answer["drafted"]
            self.evaluated += answer["evaluated"]
            self.accepted += answer["accepted"]

    def as_json(self) -> dict[str, Any]:
        """The object that --json prints about a job."""
        return {
            "lines": self.lines,
            "answered": self.answered,
            "bad_lines": self.bad,
            "tokens": self.tokens,
            "drafted": self.drafted,
            "evaluated": self.evaluated,
            "accepted": self.accepted,
            "seconds": self.seconds,
            "tok_per_s": self.tokens_per_second,
        }

    def closing_line(self) -> str:
        parts = [f"{self.answered:,} of {self.lines:,} lines answered"]
        if self.bad:
            names = ", ".join(map(str, self.bad[:NAMED])) + (", …" if len(self.bad) > NAMED else "")
            parts.append(f"{len(self.bad):,} bad (line {names})")
        parts += [f"{self.tokens:,} tokens in {self.seconds:.1f} s", f"{self.tokens_per_second:.1f} tok/s"]
        if self.evaluated:
            parts.append(f"acceptance {self.accepted / self.evaluated:.3f}")
        return " · ".join(parts)


class BatchProgress:
    """Shows counts as they grow; a context manager."""

    def __init__(self, counts: Counts) -> None:
        columns = (TextColumn("answering"), BarColumn(), MofNCompleteColumn(), _Speed(counts), TimeRemainingColumn())
        self._bar = Progress(
            *columns, console=error_console(), transient=True, redirect_stdout=False, disable=not watched()
        )
        self._counts = counts
        self._task = self._bar.add_task("", total=counts.lines)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def add(self, report: Mapping[str, Any], source: Path) -> None:
        """Count an answer that was written, and say so where its line of `source` is bad."""
        self._counts.add_answer(report)
        self._bar.update(self._task, completed=self._counts.answered + len(self._counts.bad))
        if "error" in report:
            self.note(f"error: {source} line {report['line']}: {report['error']}")

    def note(self, text: str) -> None:
        """A line of its own, above the bar."""
        self._bar.console.print(text, highlight=False, soft_wrap=True)


def end_job(counts: Counts, *, json_output: bool) -> int:
    """Report a job that was done to its end; the exit code."""
    if json_output:
        print_json(counts.as_json())
    else:
        click.echo(counts.closing_line(), err=True)
    return EXIT_BAD_INPUT if counts.bad else 0


def end_interrupted(counts: Counts) -> int:
    """Report a job that Ctrl-C ended; the exit code."""
    click.echo(f"{counts.closing_line()} · interrupted: the same command goes on from here", err=True)
    return EXIT_INTERRUPTED


class _Speed(ProgressColumn):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self._counts = counts

    def render(self, task: Task) -> Text:
        return Text(f"{self._counts.tokens_per_second:.1f} tok/s")
