"""What the comparison with speculation found."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.table import Table

from llama_cpp.answer import K
from mxspec.evaluate.result import Result, Value

PEER, OURS = "llama.cpp", "mxspec"
COLUMNS = ("tok/s", "K", "kept of drafted", "same text as plain", "perplexity over fp16")


class Trial(Value):
    """One answer."""

    prompt: int
    repetition: int
    tokens: int  # after the first
    seconds: float  # that these took
    drafted: int
    accepted: int
    same_text: bool | None  # as the same target writes without speculation; None where there is none


class Row(Value):
    """One target of one program, with a draft or without, and all of its answers."""

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
        return statistics.median(self.speeds)

    @property
    def kept(self) -> float | None:
        """Accepted tokens over drafted ones, of which those after the first that is rejected are never looked at."""
        drafted = sum(trial.drafted for trial in self.trials)
        return sum(trial.accepted for trial in self.trials) / drafted if drafted else None

    def over(self, other: Row) -> float:
        """How many times as fast: the median over the repetitions."""
        return statistics.median(mine / its for mine, its in zip(self.speeds, other.speeds, strict=True))


def _speed(trials: Sequence[Trial]) -> float:
    return sum(trial.tokens for trial in trials) / sum(trial.seconds for trial in trials)


class SpeculativeResult(Result):
    """Both programs on one pair, plain and with speculation."""

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
        """What ours are compared with: the peer at its whole precision without speculation, and each target at best."""
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
        """Of each packed target the faster of plain and speculative."""
        best: dict[str, Row] = {}
        for row in found.values():
            name = f"{row.target} at best"
            if row.target != "F16" and (name not in best or best[name].tokens_per_second < row.tokens_per_second):
                best[name] = row
        return best

    @property
    def header(self) -> list[str]:
        return ["", *COLUMNS, *(f"over {name}" for name in self.references)]

    @property
    def lines(self) -> list[list[str]]:
        """The cells of the table."""
        return [self._line(row) for row in self.rows]

    def _line(self, row: Row) -> list[str]:
        told = [trial.same_text for trial in row.trials if trial.same_text is not None]
        over = [f"{row.over(other):.2f} x" if row.program == OURS else "" for other in self.references.values()]
        return [
            row.name,
            f"{row.tokens_per_second:.1f}",
            str(row.k) if row.draft else "",
            "" if row.kept is None else f"{row.kept:.1%}",
            f"{sum(told)} of {len(told)}" if told else "",
            f"{row.perplexity_ratio:.4f}",
            *over,
        ]

    def tables(self) -> Sequence[Table]:
        first, *others = self.header
        table = Table(first, title="greedy, tokens/s", title_justify="left")
        for column in others:
            table.add_column(column, justify="right")
        for line in self.lines:
            table.add_row(*line)
        return [table]
