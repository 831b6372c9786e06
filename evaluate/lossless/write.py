"""Have an engine write texts in some way, and keep what it said of them."""

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
    """A text that an engine wrote: which of its tokens stand where one had been drafted, and why it broke off."""

    job: Job
    tokens: list[int] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    error: str | None = None


def write_all(engine: Engine, jobs: Sequence[Job], way: Way) -> Iterator[Written]:
    """The texts in their order, `way.together` at a time: as one ends, the next begins amid the others."""
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
    """All events of a text. Whatever ends it in an error is a finding, not an error of the check."""
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
