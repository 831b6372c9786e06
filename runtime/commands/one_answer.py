"""One prompt and its answer, or its answers: reported whole, or written as they come."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mxspec.runtime.cli.command import print_json
from mxspec.runtime.cli.interrupts import EXIT_INTERRUPTED, on_interrupt
from mxspec.runtime.cli.plain_console import shown
from mxspec.runtime.cli.progress import shown_while_waiting
from mxspec.runtime.cli.report import answers_as_json, closing_line
from mxspec.runtime.commands.trace_file import TraceFile
from mxspec.runtime.commands.writing import on_terminal, write_answer

if TYPE_CHECKING:
    from mxspec.runtime.engine import Engine
    from mxspec.runtime.events import FinishReason
    from mxspec.runtime.handle import Answer, Handle
    from mxspec.runtime.request import Request


def answer_once(engine: Engine, request: Request, *, json_output: bool, trace: Path | None = None) -> int:
    """Put the text on standard output, with how it went beside it; the exit code. Ctrl-C ends the text."""
    handle = engine.submit(request)
    traced = None if trace is None else TraceFile(trace, engine, request)
    with on_interrupt(handle.cancel):
        if json_output:
            reasons = _report(handle, request, traced)
        elif request.samples > 1:
            reasons = _write_several(handle, request, traced)
        else:
            reasons = [_stream(handle, request, traced)]
    if traced is not None:
        traced.write(handle.statistics)
    return EXIT_INTERRUPTED if "cancelled" in reasons else 0


def _report(handle: Handle, request: Request, traced: TraceFile | None) -> list[FinishReason]:
    answers = _wait(handle, request, traced)
    print_json(answers_as_json(answers, request))
    return [answer.reason for answer in answers]


def _write_several(handle: Handle, request: Request, traced: TraceFile | None) -> list[FinishReason]:
    """Write each answer when all are complete: their tokens come mixed, and the best are known last."""
    answers, terminal = _wait(handle, request, traced), on_terminal()
    for number, answer in enumerate(answers, 1):
        if request.n > 1:
            click.secho(f"{number} of {request.n}:", dim=True)
        click.echo(shown(answer.text) if terminal else answer.text)
        click.secho(closing_line(answer.statistics, answer.reason), err=not terminal, dim=True)
    return [answer.reason for answer in answers]


def _stream(handle: Handle, request: Request, traced: TraceFile | None) -> FinishReason:
    """Write an answer as it is made; on a terminal, after the prompt that it continues."""
    terminal = on_terminal()
    echo = request.prompt if terminal and isinstance(request.prompt, str) else ""
    last = write_answer(handle, request.max_new_tokens, echo=echo, watch=traced.add if traced else None).last
    click.secho(closing_line(last.statistics, last.reason), err=not terminal, dim=True)
    return last.reason


def _wait(handle: Handle, request: Request, traced: TraceFile | None) -> list[Answer]:
    with shown_while_waiting(handle, request.max_new_tokens):
        if traced is not None:
            for event in handle:
                traced.add(event)
        return handle.results()
