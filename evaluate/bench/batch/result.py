"""What `specbench batch` found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.table import Table

from mxspec.evaluate.result import Result, Value


@dataclass(slots=True)
class Trials:
    """Every repetition's figures of one number of texts."""

    texts: int
    call_seconds: list[float] = field(default_factory=list)  # of a call of one token of each
    tokens_per_second: list[float] = field(default_factory=list)  # without drafting
    outside_models: list[float] = field(default_factory=list)  # share of the time outside the models
    outside_models_sampled: list[float] = field(default_factory=list)
    time_over_plain_loop: list[float] = field(default_factory=list)  # of one text
    tokens_per_second_by_k: dict[str, list[float]] = field(default_factory=dict)  # acceptance imposed


class TextsTimes(Value):
    """So many texts at once; medians over the repetitions."""

    texts: int
    call_seconds: float
    tokens_per_second: float
    over_one_text: float
    of_what_the_call_allows: float
    outside_models: float
    outside_models_sampled: float
    time_over_plain_loop: float | None  # one text's
    best_k: int
    tokens_per_second_by_k: dict[str, float]
    by_load_over_best_k: float
    by_load_over_plain: float
    trials: Trials


class SecondTurn(Value):
    """The first token of a second turn, and of the same prompt read from its first token."""

    tokens: tuple[int, int]
    seconds: float
    whole_seconds: float
    ratio: float
    trials: tuple[tuple[float, float], ...]


class Shaping(Value):
    """What shaping a row of logits to a nucleus takes, and of eight of them as a share of a call."""

    vocabulary: int
    nucleus: int
    seconds_a_row: float
    share_of_a_step: float


class BatchResult(Result):
    """Many texts at once, each of so many new tokens after as many in the cache."""

    bundle: str
    threads: int
    cached: int
    new_tokens: int
    rows: tuple[TextsTimes, ...]
    second_turn: SecondTurn
    shaping: Shaping

    def tables(self) -> Sequence[Table]:
        return [texts_table(self), single_figures(self)]


def texts_table(result: BatchResult) -> Table:
    table = Table(
        "texts",
        "tok/s",
        "over one text",
        "of what the call allows",
        "outside the models, greedy",
        "sampled",
        "best fixed K",
        "K by load over the best",
        "over K = 0",
        title=(
            f"{result.bundle}, {result.threads} threads; {result.new_tokens:,} tokens after {result.cached:,} cached "
            "in each text"
        ),
        title_justify="left",
    )
    for row in result.rows:
        table.add_row(
            str(row.texts),
            f"{row.tokens_per_second:.1f}",
            f"{row.over_one_text:.2f}",
            f"{row.of_what_the_call_allows:.1%}",
            f"{row.outside_models:.1%}",
            f"{row.outside_models_sampled:.1%}",
            str(row.best_k),
            f"{row.by_load_over_best_k:.2f}",
            f"{row.by_load_over_plain:.2f}",
        )
    return table


def single_figures(result: BatchResult) -> Table:
    """What does not depend on how many texts there are."""
    turn, shaping = result.second_turn, result.shaping
    first, more = turn.tokens
    table = Table("whatever the number of texts", "")
    table.add_row("time of one text over a bare loop over calls", f"{result.rows[0].time_over_plain_loop:.3f}")
    table.add_row(
        f"first token of a second turn, {more} tokens after {first:,}",
        f"{turn.seconds * 1e3:.0f} ms, {turn.ratio:.3f} of reading all again",
    )
    table.add_row(
        f"shaping a row of {shaping.vocabulary:,} to a nucleus of about {shaping.nucleus:,}",
        f"{shaping.seconds_a_row * 1e6:.0f} us; for 8 texts {shaping.share_of_a_step:.1%} of a call",
    )
    return table
