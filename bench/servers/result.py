"""The results of attacks on a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mxspec.evaluate.bench.harness import median
from mxspec.evaluate.result import Column, Result, Sheet, Value

MILLISECONDS = 1e3


class Family(Value):
    """What became of the grammars of one family."""

    name: str
    refused: int  # with status 400
    written: int
    others: int
    slowest_seconds: float


class BesideTimes(Value):
    """A stream of text and good requests beside something else."""

    beside: str
    worst_gap_seconds: float
    trials_gap_seconds: tuple[float, ...]  # the longest hundred gaps of the stream
    pieces: int
    good_seconds: tuple[float, ...]


class GrammarAttackResult(Result):
    """`serve-grammars`: what a server made of hurtful grammars, and what others had of them."""

    kind: ClassVar[str] = "serve-grammars"
    faster_if_less = ("gap_seconds",)

    bundle: str
    slots: int
    clients: int
    grammars: int
    seconds: float
    process_ends: int
    wrong: tuple[str, ...]  # answers to good requests that are no good, and errors that ended a stream
    others: tuple[str, ...]  # answers to hurtful ones that are neither a text nor a refusal
    families: tuple[Family, ...]
    times: tuple[BesideTimes, ...]
    anonymous_bytes: tuple[int, int]  # before and after

    @property
    def failure(self) -> str | None:
        """What went wrong, in a line."""
        if not (self.process_ends or self.wrong or self.others):
            return None
        return f"{self.process_ends} process ends, {len(self.wrong)} wrong answers, {len(self.others)} other ones"

    def sheets(self) -> Sequence[Sheet]:
        columns = (
            Column("beside"),
            Column("process ends"),
            Column("pieces of the stream"),
            Column("worst gap, ms", ",.0f", MILLISECONDS),
            Column("good requests"),
            Column("median, ms", ",.0f", MILLISECONDS),
            Column("worst, ms", ",.0f", MILLISECONDS),
            Column("wrong"),
        )
        rows = []
        for time in self.times:
            good = time.good_seconds
            attacked = time is self.times[-1]
            ends, wrong = (f"{self.process_ends}", f"{len(self.wrong)}") if attacked else (None, None)
            shown = (f"{time.pieces:,}", time.worst_gap_seconds, f"{len(good)}", median(good), max(good))
            rows.append((time.beside, ends, *shown, wrong))
        memory = ", ".join(f"{size / 1e6:.0f}" for size in self.anonymous_bytes)
        title = f"{self.clients} clients, {self.slots} slots, {self.seconds:.0f} s; MB before and after: {memory}"
        return [Sheet(title, columns, tuple(rows)), self._by_family()]

    def _by_family(self) -> Sheet:
        columns = (
            Column("family"),
            Column("refused"),
            Column("written"),
            Column("other"),
            Column("slowest, s", ".2f"),
        )
        rows = [(f.name, f"{f.refused}", f"{f.written}", f"{f.others}", f.slowest_seconds) for f in self.families]
        return Sheet("", columns, tuple(rows))
