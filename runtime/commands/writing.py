"""An answer on standard output, piece by piece."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from mxspec.runtime.cli.plain_console import shown
from mxspec.runtime.cli.progress import shown_while_waiting

if TYPE_CHECKING:
    from mxspec.runtime.events import Event, Finished
    from mxspec.runtime.handle import Handle

DRAFTED_COLOUR = "green"


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """What was written of an answer, and how it ended."""

    token_ids: list[int]
    text: str
    last: Finished


def on_terminal() -> bool:
    """Whether standard output is a terminal, where colours show."""
    return sys.stdout.isatty()


def write_answer(
    handle: Handle, max_new_tokens: int, *, echo: str = "", watch: Callable[[Event], None] | None = None
) -> WrittenAnswer:
    """Write an answer as it comes, and a newline; on a terminal after `echo`, and what the draft guessed in green.

    Every event goes to `watch` too.
    """
    from mxspec.runtime.events import Finished, Token

    terminal = on_terminal()
    with shown_while_waiting(handle, max_new_tokens):
        first = next(handle)
    if echo:
        click.secho(shown(echo), nl=False, bold=True)
    ids, pieces = [], []
    last: Finished | None = None
    for event in itertools.chain([first], handle):
        if watch is not None:
            watch(event)
        if isinstance(event, Token):
            ids.append(event.id)
            pieces.append(event.text)
            _write(event.text, terminal, drafted=event.drafted)
        elif isinstance(event, Finished):
            pieces.append(event.tail)
            _write(event.tail, terminal, drafted=False)
            last = event
    click.echo()
    assert last is not None, "the last event of a text is Finished"
    return WrittenAnswer(ids, "".join(pieces), last)


def _write(text: str, terminal: bool, *, drafted: bool) -> None:
    if terminal:
        text = click.style(shown(text), fg=DRAFTED_COLOUR) if drafted and text else shown(text)
    if text:
        click.echo(text, nl=False)
