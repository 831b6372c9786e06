"""Records that `specbench batch` wrote, whose measurement is now a part of `specbench speculate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from mxspec.evaluate.result import Column, Result, Sheet, Value


@dataclass(slots=True)
class Trials:
    """The figures of every repetition, for one number of texts."""

    texts: int
    call_seconds: list[float] = field(default_factory=list)  # a call with one token of each text
    tokens_per_second: list[float] = field(default_factory=list)  # without drafting
    outside_models: list[float] = field(default_factory=list)  # share of the time spent outside the models
    outside_models_sampled: list[float] = field(default_factory=list)
    time_over_plain_loop: list[float] = field(default_factory=list)  # for one text only
    tokens_per_second_by_k: dict[str, list[float]] = field(default_factory=dict)  # with the imposed acceptance


class TextsTimes(Value):
    """Medians over the repetitions, for `texts` texts at once."""

    texts: int
    call_seconds: float
    tokens_per_second: float
    over_one_text: float
    of_what_the_call_allows: float
    outside_models: float
    outside_models_sampled: float
    time_over_plain_loop: float | None  # for one text only
    best_k: int
    tokens_per_second_by_k: dict[str, float]
    by_load_over_best_k: float
    by_load_over_plain: float
    trials: Trials


class SecondTurn(Value):
    """Seconds to the first token of a second turn, and of the same prompt read from its beginning."""

    tokens: tuple[int, int]
    seconds: float
    whole_seconds: float
    ratio: float
    trials: tuple[tuple[float, float], ...]


class Shaping(Value):
    """The time to shape a row of logits to a nucleus; for eight rows, also as a share of a call."""

    vocabulary: int
    nucleus: int
    seconds_a_row: float
    share_of_a_step: float


class BatchResult(Result):
    """Many texts at once; each has `new_tokens` tokens after `cached` tokens in the cache."""

    kind: ClassVar[str] = "batch"
    faster_if_more = ("tokens_per_second", "tokens_per_second_by_k")
    faster_if_less = ("call_seconds", "outside_models", "outside_models_sampled", "time_over_plain_loop")

    bundle: str
    threads: int
    cached: int
    new_tokens: int
    rows: tuple[TextsTimes, ...]
    second_turn: SecondTurn
    shaping: Shaping

    def sheets(self) -> Sequence[Sheet]:
        columns = (
            Column("texts"),
            Column("tok/s", ".1f"),
            Column("over one text", ".2f"),
            Column("of what the call allows", ".0%"),
            Column("outside the models, greedy", ".1%"),
            Column("sampled", ".1%"),
            Column("best fixed K, tok/s"),
            Column("K by load, tok/s", ".1f"),
            Column("over the best", ".2f"),
            Column("over K = 0", ".2f"),
        )
        rows = tuple(
            (
                str(row.texts),
                row.tokens_per_second,
                row.over_one_text,
                row.of_what_the_call_allows,
                row.outside_models,
                row.outside_models_sampled,
                f"{row.tokens_per_second_by_k[str(row.best_k)]:.1f} (K = {row.best_k})",
                row.tokens_per_second_by_k["auto"],
                row.by_load_over_best_k,
                row.by_load_over_plain,
            )
            for row in self.rows
        )
        size = f"{self.new_tokens:,} tokens after {self.cached:,} cached in each text"
        return [Sheet(f"{self.bundle}, {self.threads} threads; {size}", columns, rows, (single_figures(self),))]


def single_figures(result: BatchResult) -> str:
    """The figures that do not depend on the number of texts, in words."""
    turn, shaping = result.second_turn, result.shaping
    first, more = turn.tokens
    return (
        f"One text takes {result.rows[0].time_over_plain_loop:.3f} x as long through the engine as in a bare loop over "
        f"calls. The first token of a second turn, {more} tokens after {first:,}, comes after {turn.ratio:.3f} of the "
        f"time that reading all again takes ({turn.seconds * 1e3:.0f} ms). Shaping a row of {shaping.vocabulary:,} "
        f"entries to a nucleus of about {shaping.nucleus:,} takes {shaping.seconds_a_row * 1e6:.0f} us, for eight "
        f"texts {shaping.share_of_a_step:.1%} of a step."
    )
