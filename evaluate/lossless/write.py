"""Texts that an engine writes in some way, with the tokens that were drafted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mxspec.evaluate.lossless.job import Job, Way
from mxspec.runtime import ops
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Round, Token
from mxspec.runtime.handle import Handle


@dataclass(slots=True)
class Written:
    """A text that an engine wrote: its tokens, which of them were at drafted positions, and its error, if any."""

    job: Job
    tokens: list[int] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    error: str | None = None


def write_all(engine: Engine, jobs: Sequence[Job], way: Way) -> Iterator[Written]:
    """Yield the texts in order, written `way.together` at a time: when one ends, the next joins the others."""
    before = ops.threads()
    ops.set_threads(way.threads)
    running: list[tuple[Job, Handle]] = []
    try:
        for job in jobs:
            if len(running) == way.together:
                yield _read(*running.pop(0))
            running.append((job, engine.submit(way.request(job))))
        while running:
            yield _read(*running.pop(0))
    finally:
        for _, handle in running:
            handle.cancel()
        ops.set_threads(before)


def _read(job: Job, handle: Handle) -> Written:
    """Read all events of a text. An error that ends the text is a finding, not an error of the check."""
    text = Written(job)
    try:
        for event in handle:
            if isinstance(event, Token):
                text.tokens.append(event.id)
            elif isinstance(event, Round):
                judged = min(event.evaluated, event.emitted)
                text.drafted += [True] * judged + [False] * (event.emitted - judged)
    except Exception as error:
        text.error = f"{type(error).__name__}: {error}"
    return text
