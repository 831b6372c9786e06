"""What `specbench beams` found."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from mxspec.evaluate.result import Result, Value


class MeasuredBeams(Value):
    """Searches with a draft of K steps, or of as many as are chosen, over those without around them."""

    k: str
    tokens_per_second: float  # steps of the search, each of which gives the text a token
    steps_per_call: float
    kept: float | None  # share of the drafted steps that were looked at; None where none was
    drafting_rounds: float  # share of the rounds in which anything was drafted
    speedup: float  # geometric mean of the trials
    low: float | None  # of its interval of 95 %
    high: float | None
    trials_speedup: tuple[float, ...]


class BeamsResult(Result):
    """Beam search of some prompts, each for so many steps."""

    bundle: str
    threads: int
    slots: int
    beams: int
    new_tokens: int
    prompts: int
    plain_tokens_per_second: float
    plain_outside_models: float  # share of a search's time without a draft that is not the call's
    rows: tuple[MeasuredBeams, ...]

    def tables(self) -> Sequence[Table]:
        table = Table(
            "K",
            "tok/s",
            "steps a call",
            "kept of steps",
            "rounds that drafted",
            "over plain beam search",
            "interval of 95 %",
            title=(
                f"{self.bundle}, {self.threads} threads: {self.beams} beams in {self.slots} slots, {self.new_tokens:,} "
                f"tokens; without a draft {self.plain_tokens_per_second:.1f} tok/s, "
                f"{self.plain_outside_models:.1%} of it outside the model"
            ),
            title_justify="left",
        )
        for row in self.rows:
            table.add_row(
                row.k,
                f"{row.tokens_per_second:.1f}",
                f"{row.steps_per_call:.2f}",
                "" if row.kept is None else f"{row.kept:.2f}",
                f"{row.drafting_rounds:.0%}",
                f"{row.speedup:.3f}",
                "" if row.low is None or row.high is None else f"{row.low:.3f} to {row.high:.3f}",
            )
        return [table]
