"""What the columns did: their figures, and the table that shows them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.table import Table

from mxspec.evaluate.bench.speculate.result import ANSWER_TOKENS
from mxspec.evaluate.result import Result, Value


class Percentiles(Value):
    """Seconds."""

    median: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        middle, high, highest = np.percentile(values, (50, 90, 99)).tolist()
        return cls(median=middle, p90=high, p99=highest)


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
    """What one column did."""

    column: str
    weights_bytes: int  # of the matrices that it reads, a draft's among them
    tokens_per_second: float  # median over the answers
    over_first: float  # tokens a second over those of the first column: median over pairs
    first_token_seconds: Percentiles
    token_seconds: Percentiles  # of a token: its round's time shared by the tokens of the round
    answer_seconds: Percentiles  # of ANSWER_TOKENS tokens
    acceptance: float | None
    tokens_per_round: float
    bytes_per_second: float  # of matrices
    share_of_read: float
    joules_per_token: float | None
    trials: list[ColumnTrial]


class ColumnsResult(Result):
    """All columns of a bundle."""

    bundle: str
    threads: int
    prompts: int
    new_tokens: int
    temperature: float
    k: int | str
    drafter: str
    verifier: str
    read_bytes_per_second: float  # of the packed weights, by a loop that does nothing else
    anonymous_bytes: int  # of the process with all columns open
    same_texts: int  # answers of the last column that are those of the column before
    columns: list[ColumnResult]

    def tables(self) -> Sequence[Table]:
        table = Table(
            "",
            "tok/s",
            f"over {self.columns[0].column}",
            "first token, ms",
            "a token, ms: median",
            "90 %",
            "99 %",
            f"{ANSWER_TOKENS} tokens, s",
            "tokens a round",
            "acceptance",
            "GB/s",
            "of a read",
            "J a token",
            title=(
                f"{self.bundle}, {self.threads} threads; K = {self.k}, {self.drafter}, {self.verifier}; a plain read "
                f"{self.read_bytes_per_second / 1e9:.1f} GB/s; anonymous memory {self.anonymous_bytes / 1e6:.0f} MB"
            ),
            title_justify="left",
        )
        for column in self.columns:
            table.add_row(
                column.column,
                f"{column.tokens_per_second:.1f}",
                f"{column.over_first:.2f}",
                f"{column.first_token_seconds.median * 1e3:.0f}",
                f"{column.token_seconds.median * 1e3:.1f}",
                f"{column.token_seconds.p90 * 1e3:.1f}",
                f"{column.token_seconds.p99 * 1e3:.1f}",
                f"{column.answer_seconds.median:.2f}",
                f"{column.tokens_per_round:.2f}",
                "" if column.acceptance is None else f"{column.acceptance:.3f}",
                f"{column.bytes_per_second / 1e9:.1f}",
                f"{column.share_of_read:.0%}",
                "" if column.joules_per_token is None else f"{column.joules_per_token:.2f}",
            )
        return [table]
