"""Options that checks and benchmarks share: the number of threads, and where the result goes."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from mxspec.evaluate.record import write_record
from mxspec.evaluate.render import renderables
from mxspec.evaluate.result import Result
from mxspec.runtime import ops
from mxspec.runtime.cli.command import print_json, report_console

Progress = Callable[[str], object]
"""Called with the name of the step that begins."""

Count = Callable[[str, int, int], None]
"""Called with what is done, how much of it is, and of how much."""


def silent(step: str) -> None:
    """No progress."""


@dataclass(frozen=True, slots=True)
class Run:
    """The number of threads of a command, and where its result goes."""

    threads: int | None
    json_output: bool
    record: Path | None

    @property
    def console(self) -> Console:
        """The console for tables and progress."""
        return report_console(json_output=self.json_output)

    def set_threads(self) -> None:
        """Set the operators' threads, if a number was given."""
        if self.threads is not None:
            ops.set_threads(self.threads)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Set the threads, then show progress."""
        self.set_threads()
        with self.console.status("preparing") as status:
            yield status.update

    @contextmanager
    def counted(self, first: str) -> Iterator[Count]:
        """A progress bar on a terminal; `first` names the work that comes before anything is counted."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = self.console
        with ProgressBar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task(first, total=None)
            yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)

    def finish(self, result: Result) -> None:
        """Write the record, and print the result."""
        found = json.loads(result.model_dump_json())  # null for values that are not finite
        if self.record is not None:
            write_record(self.record, result.kind, found)
        if self.json_output:
            print_json(found)
            return
        console = report_console()
        for sheet in result.sheets():
            for part in renderables(sheet, console.width):
                console.print(part)


def record_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--json and --record, as the argument `run`."""

    @click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")
    @click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Write a record of the run.")
    @functools.wraps(command)
    def with_run(*, json_output: bool, record: Path | None, run_threads: int | None = None, **others: Any) -> Any:
        return command(run=Run(run_threads, json_output, record), **others)

    return with_run


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--threads, --json and --record, as the argument `run`."""
    threads = "Number of threads.  [default: all cores]"
    return click.option("--threads", "run_threads", type=click.IntRange(min=1), help=threads)(record_options(command))
