"""The three columns of the comparison that mxspec is for: fp16, the packed target, and the packed target with a draft.

The columns write one after another, so that each has the machine to itself, and every event is kept with its time: a
reader can show them side by side as if they had run together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Event, Finished, Round, Token
from mxspec.runtime.handle import Answer
from mxspec.runtime.request import Request


@dataclass(frozen=True, slots=True)
class ComparedEngine:
    """The engine that writes, and whether it drafts."""

    title: str
    engine: Engine
    speculates: bool

    def request(self, wanted: Request) -> Request:
        """The request as this column answers it: all of the prompt is read, whatever another column has read."""
        own = replace(wanted, cache_key=f"{wanted.cache_key} {self.title}")
        return own if self.speculates else replace(own, k=0, drafter="none")


@dataclass(frozen=True, slots=True)
class Recording:
    """An answer with the time of each of its events, in seconds after it was asked for."""

    column: str
    events: tuple[tuple[float, Event], ...]

    @property
    def tokens(self) -> list[tuple[float, Token]]:
        return [(at, event) for at, event in self.events if isinstance(event, Token)]

    @property
    def rounds(self) -> list[Round]:
        """All rounds; the first token comes before them, from reading the prompt."""
        return [event for _, event in self.events if isinstance(event, Round)][1:]

    @property
    def first_token_seconds(self) -> float:
        return self.tokens[0][0]

    @property
    def answer(self) -> Answer:
        """The whole answer."""
        last = self.events[-1][1]
        assert isinstance(last, Finished), "the last event of a text is Finished"
        return Answer.of([token for _, token in self.tokens], last)


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
    """The answer of one column, with its times."""
    asked = time.perf_counter()
    handle = column.engine.submit(column.request(wanted))
    return Recording(column.title, tuple((time.perf_counter() - asked, event) for event in handle))
