"""The results of the comparison with llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from bench.llama_cpp.answers import K
from mxspec.evaluate.bench.harness import median, median_ratio
from mxspec.evaluate.result import Cell, Column, Result, Sheet, Value

PEER, OURS = "llama.cpp", "mxspec"


class Trial(Value):
    """One answer."""

    prompt: int
    repetition: int
    tokens: int  # after the first
    seconds: float  # of these tokens
    drafted: int
    accepted: int
    same_text: bool | None  # whether the target alone writes the same; None for the target alone


class Row(Value):
    """One target of one program, with or without a draft, and all of its answers."""

    program: str
    target: str
    weight_bytes: int  # of the target's file
    draft: str | None
    k: K | None
    perplexity: float
    perplexity_ratio: float  # over the same program's 16-bit target
    trials: tuple[Trial, ...]

    @property
    def name(self) -> str:
        return f"{self.program} {self.target}" + (f", {self.draft}" if self.draft else "")

    @property
    def speeds(self) -> tuple[float, ...]:
        """Tokens a second of each repetition, over all of its prompts."""
        repetitions = sorted({trial.repetition for trial in self.trials})
        return tuple(_speed([t for t in self.trials if t.repetition == repetition]) for repetition in repetitions)

    @property
    def tokens_per_second(self) -> float:
        """The median of the repetitions."""
        return median(self.speeds)

    @property
    def kept(self) -> float | None:
        """Accepted tokens over drafted ones; drafted tokens after a rejected one are never evaluated."""
        drafted = sum(trial.drafted for trial in self.trials)
        return sum(trial.accepted for trial in self.trials) / drafted if drafted else None

    def over(self, other: Row) -> float:
        """How many times as fast: the median over the repetitions."""
        return median_ratio(self.speeds, other.speeds)


def _speed(trials: Sequence[Trial]) -> float:
    return sum(trial.tokens for trial in trials) / sum(trial.seconds for trial in trials)


class SpeculativeResult(Result):
    """Both programs on one pair, plain and with speculation."""

    kind: ClassVar[str] = "llama-cpp-speculative"
    faster_if_less = ("seconds",)

    peer: str  # its package
    threads: int
    prompts: int
    prompt_tokens: int
    new_tokens: int
    repetitions: int
    perplexity_tokens: int
    rows: tuple[Row, ...]

    @property
    def references(self) -> dict[str, Row]:
        """The rows to compare ours with: the peer in 16 bits, with and without speculation, and each target at best."""
        found: dict[str, Row] = {}
        for row in self.rows:
            if row.program == PEER:
                name = f"{row.target} with speculation" if row.draft else row.target
                if name not in found or found[name].tokens_per_second < row.tokens_per_second:
                    found[name] = row
        whole = {"F16", "F16 with speculation"}
        return {n: r for n, r in found.items() if n in whole} | self._at_best(found)

    @staticmethod
    def _at_best(found: dict[str, Row]) -> dict[str, Row]:
        """For each packed target, the faster of plain and speculative."""
        best: dict[str, Row] = {}
        for row in found.values():
            name = f"{row.target} at best"
            if row.target != "F16" and (name not in best or best[name].tokens_per_second < row.tokens_per_second):
                best[name] = row
        return best

    def sheets(self) -> Sequence[Sheet]:
        columns = (
            Column("program and target"),
            Column("tok/s", ".1f"),
            Column("K"),
            Column("kept of drafted", ".1%"),
            Column("same text as plain"),
            Column("perplexity over fp16", ".4f"),
            *(Column(f"over {name}") for name in self.references),
        )
        title = (
            f"greedy, {self.prompts} prompts of {self.prompt_tokens} tokens, {self.new_tokens} new ones, "
            f"{self.threads} threads"
        )
        notes = (
            f"Perplexity is of {self.perplexity_tokens:,} tokens, the second halves of windows of 512, over that of "
            "the same program's 16-bit target. Over: how many times as fast as the peer's, by repetitions.",
        )
        return [Sheet(title, columns, tuple(map(self._cells, self.rows)), notes)]

    def _cells(self, row: Row) -> tuple[Cell, ...]:
        told = [trial.same_text for trial in row.trials if trial.same_text is not None]
        return (
            row.name,
            row.tokens_per_second,
            str(row.k) if row.draft else None,
            row.kept,
            f"{sum(told)} of {len(told)}" if told else None,
            row.perplexity_ratio,
            *(f"{row.over(other):.2f} x" if row.program == OURS else None for other in self.references.values()),
        )


class PointRow(Value):
    """One kind of call: tokens a second of each runner, and ours over each peer."""

    point: str
    tokens: int
    cached: int
    tokens_per_second: dict[str, float]
    speedup: dict[str, dict[str, float]]
    trials_seconds: dict[str, tuple[float, ...]]


class ShapeResult(Result):
    """Calls of a model: of random weights in a `shape`, or of a published file."""

    kind: ClassVar[str] = "llama-cpp-calls"
    faster_if_less = ("seconds",)

    shape: str
    threads: int
    peer: str
    points: tuple[PointRow, ...]

    def sheets(self) -> Sequence[Sheet]:
        runners = list(self.points[0].tokens_per_second)
        rows = []
        for row in self.points:
            over = {name: ", ".join(f"{s:.2f} x" for s in peers.values()) for name, peers in row.speedup.items()}
            shown = {name: f" ({text})" for name, text in over.items() if text}
            rows.append((row.point, *(f"{row.tokens_per_second[name]:.1f}{shown.get(name, '')}" for name in runners)))
        columns = (Column("tok/s (over the peer)"), *map(Column, runners))
        return [Sheet(f"{self.shape}, {self.threads} threads, {self.peer}", columns, tuple(rows))]
