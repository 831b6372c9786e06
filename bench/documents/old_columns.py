"""Records that `specbench columns` wrote, whose measurement is now a part of `specbench speculate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from bench.documents.old_speculate import ANSWER_TOKENS
from mxspec.evaluate.bench.harness import Percentiles, median_ratio
from mxspec.evaluate.result import Column, Result, Sheet, Value


class ColumnTrial(Value):
    """One answer of one column."""

    prompt: int
    repetition: int
    first_token_seconds: float
    decode_seconds: float
    tokens: int  # after the first
    rounds: int
    drafted: int
    evaluated: int
    accepted: int
    read_bytes: int
    joules: float | None

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.decode_seconds

    @property
    def answer_seconds(self) -> float:
        return ANSWER_TOKENS / self.tokens_per_second

    @property
    def bytes_per_second(self) -> float:
        return self.read_bytes / self.decode_seconds


class ColumnResult(Value):
    """The figures of one column."""

    column: str
    weights_bytes: int  # matrices that the column reads, including a draft's
    tokens_per_second: float  # median over the answers
    over_first: float  # speed over the first column's: median over pairs of answers
    first_token_seconds: Percentiles
    token_seconds: Percentiles  # a round's seconds divided by its tokens
    answer_seconds: Percentiles  # for ANSWER_TOKENS tokens
    acceptance: float | None
    tokens_per_round: float
    bytes_per_second: float  # matrices read
    share_of_read: float
    joules_per_token: float | None
    trials: list[ColumnTrial]


class ColumnsResult(Result):
    """All columns of a bundle."""

    kind: ClassVar[str] = "columns"
    faster_if_more = ("bytes_per_second", "tokens_per_second")
    faster_if_less = ("answer_seconds", "decode_seconds", "first_token_seconds")

    bundle: str
    threads: int
    prompts: int
    new_tokens: int
    temperature: float
    k: int | str
    drafter: str
    verifier: str
    read_bytes_per_second: float  # a plain read of the packed weights
    anonymous_bytes: int  # the process's, with all columns open
    same_texts: int  # answers that are equal in the last two columns
    columns: list[ColumnResult]

    @property
    def speedup(self) -> float:
        """Speed with speculation over the packed target's without: median over pairs of answers."""
        plain, *last = ([trial.tokens_per_second for trial in column.trials] for column in self.columns[-2:])
        return median_ratio(last[0], plain) if last else 1.0

    def sheets(self) -> Sequence[Sheet]:
        columns = (
            Column(f"T = {self.temperature:g}" if self.temperature else "greedy"),
            Column("tok/s", ".1f"),
            Column(f"over {self.columns[0].column}", ".2f"),
            Column("first token, ms", ".0f", 1e3),
            Column("ms a token: median / 90 % / 99 %"),
            Column(f"{ANSWER_TOKENS} tokens, s", ".1f"),
            Column("tokens a round", ".2f"),
            Column("acceptance", ".3f"),
            Column("GB/s", ".1f", 1e-9),
            Column("of a read", ".0%"),
            Column("J a token", ".2f"),
        )
        rows = tuple(
            (
                each.column,
                each.tokens_per_second,
                each.over_first,
                each.first_token_seconds.median,
                " / ".join(f"{seconds * 1e3:.0f}" for _, seconds in each.token_seconds),
                each.answer_seconds.median,
                each.tokens_per_round,
                each.acceptance,
                each.bytes_per_second,
                each.share_of_read,
                each.joules_per_token,
            )
            for each in self.columns
        )
        same = f"{self.same_texts} of {len(self.columns[0].trials)} answers are the same with and without speculation. "
        notes = (
            f"Speculation makes the packed target {self.speedup:.2f} times as fast. {'' if self.temperature else same}"
            f"A plain read of the packed weights gave "
            f"{self.read_bytes_per_second / 1e9:.1f} GB/s in the same minutes; anonymous memory "
            f"{self.anonymous_bytes / 1e6:.0f} MB.",
        )
        what = f"K = {self.k}, drafter {self.drafter}, verifier {self.verifier}"
        return [Sheet(f"{self.bundle}, {self.threads} threads; {what}", columns, rows, notes)]
