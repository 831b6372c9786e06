"""An answer on standard output: written piece by piece, or reported whole when it is complete."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mxspec.runtime.cli.command import print_json
from mxspec.runtime.cli.interrupts import EXIT_INTERRUPTED, on_interrupt
from mxspec.runtime.cli.plain_console import shown
from mxspec.runtime.cli.progress import shown_while_waiting
from mxspec.runtime.cli.report import answers_as_json, closing_line

if TYPE_CHECKING:
    from mxspec.runtime.engine import Engine
    from mxspec.runtime.events import Event
    from mxspec.runtime.handle import Answer, Handle
    from mxspec.runtime.request import Request

DRAFTED_COLOUR = "green"


def on_terminal() -> bool:
    """Whether standard output is a terminal, where colours show."""
    return sys.stdout.isatty()


def answer_once(engine: Engine, request: Request, *, json_output: bool, trace: Path | None = None) -> int:
    """Put the text on standard output, with how it went beside it; the exit code. Ctrl-C ends the text."""
    handle = engine.submit(request)
    events: list[Event] = []
    with on_interrupt(handle.cancel):
        if json_output or request.samples > 1:  # their tokens come mixed, and the best are known last
            with shown_while_waiting(handle, request.max_new_tokens):
                if trace is not None:
                    events.extend(handle)
                answers = handle.results()
            if json_output:
                print_json(answers_as_json(answers, request))
            else:
                _write_several(answers, request)
        else:
            echo = request.prompt if on_terminal() and isinstance(request.prompt, str) else ""
            answers = [write_answer(handle, request.max_new_tokens, events, echo=echo)]
            _close(answers[0])
    if trace is not None:
        from mxspec.runtime.commands.trace_file import write_trace

        write_trace(trace, engine, request, events)
    return EXIT_INTERRUPTED if any(answer.reason == "cancelled" for answer in answers) else 0


def write_answer(handle: Handle, max_new_tokens: int, events: list[Event], *, echo: str = "") -> Answer:
    """Write an answer as it comes, and a newline; on a terminal after `echo`, and what the draft guessed in green.

    Every event is added to `events`.
    """
    from mxspec.runtime.events import Finished, Token

    with shown_while_waiting(handle, max_new_tokens):
        first = next(handle)
    if echo:
        click.secho(shown(echo), nl=False, bold=True)
    for event in itertools.chain([first], handle):
        events.append(event)
        if isinstance(event, Token):
            _write(event.text, drafted=event.drafted)
        elif isinstance(event, Finished):
            _write(event.tail, drafted=False)
    click.echo()
    return handle.result()


def _write(text: str, *, drafted: bool) -> None:
    if on_terminal():
        text = click.style(shown(text), fg=DRAFTED_COLOUR) if drafted and text else shown(text)
    if text:
        click.echo(text, nl=False)


def _write_several(answers: list[Answer], request: Request) -> None:
    for number, answer in enumerate(answers, 1):
        if request.n > 1:
            click.secho(f"{number} of {request.n}:", dim=True)
        click.echo(shown(answer.text) if on_terminal() else answer.text)
        _close(answer)


def _close(answer: Answer) -> None:
    click.secho(closing_line(answer.statistics, answer.reason), err=not on_terminal(), dim=True)
