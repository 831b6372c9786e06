"""Records that an earlier `specbench speculate` wrote, whose measurement is now a part of `specbench speculate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mxspec.evaluate.bench.harness import Percentiles
from mxspec.evaluate.result import Column, Result, Sheet, Value

ANSWER_TOKENS = 128  # whose time Chen et al. (2023) show in figure 1
ANSWER = f"{ANSWER_TOKENS} tokens, s: median over the answers, then the 90th percentile."
PREDICTED = "predicted: (1 - α^(K+1)) / ((1 - α)(cK + v)), the formula of Leviathan et al. with the cost v of scoring."
COSTS = (
    "c and v: what a drafted token and a scored round cost over a plain step. ideal: the formula's tokens a round. "
    "auto: K chosen for each round by its cost, with the mean of drafted tokens."
)


class Plain(Value):
    """Plain decoding, the basis of every comparison."""

    seconds_per_token: float
    answer_seconds: Percentiles | None = None  # for ANSWER_TOKENS tokens after the prompt; missing in old records


class Encoded(Value):
    """Seconds of reading a source, also as a share of a plain answer of ANSWER_TOKENS tokens."""

    source_tokens: int
    seconds: float
    share: float


class StepSeconds(Value):
    """Seconds of one step of each model."""

    target: float
    draft: float


class TurnsTrial(Value):
    """Steps of one repetition: each model alone, and both alternating."""

    alone_seconds: StepSeconds
    turns_seconds: StepSeconds


class Turns(Value):
    """The cost of alternating target and draft on the same threads; medians over the repetitions."""

    target_seconds: float
    draft_seconds: float
    target_over_alone: float
    draft_over_alone: float
    over_alone: float
    trials: tuple[TurnsTrial, ...]


class Measured(Value):
    """Speculative decoding; c and v are the costs of a drafted token and of a scored round over a plain step."""

    acceptance: float
    drafted_per_round: float
    c: float | None = None  # missing in old records for K chosen by cost
    v: float | None = None
    tokens_per_round: float
    speedup: float
    outside_models: float
    answer_seconds: Percentiles | None = None
    trials_speedup: tuple[float, ...]


class MeasuredK(Measured):
    """Speculative decoding at a fixed K, beside the formula."""

    k: int
    ideal_tokens_per_round: float | None = None
    predicted: float
    measured_over_predicted: float


class OfDrafter(Value):
    """One drafter at every K, and with K chosen for each round by its cost."""

    rows: tuple[MeasuredK, ...]
    auto: Measured | None = None


class SpeculateResult(Result):
    """Speculative beside plain decoding, by drafter."""

    kind: ClassVar[str] = "speculate"
    faster_if_more = ("speedup",)
    faster_if_less = ("alone_seconds", "turns_seconds")

    bundle: str
    threads: int
    new_tokens: int
    prompts: int
    imposed_acceptance: float | None
    plain: Plain
    turns: Turns | None  # None without a draft
    drafters: dict[str, OfDrafter]
    encoded: Encoded | None = None  # of models with encoders

    def sheets(self) -> Sequence[Sheet]:
        return [drafter_sheet(self, name, found) for name, found in self.drafters.items()]


def drafter_sheet(result: SpeculateResult, drafter: str, found: OfDrafter) -> Sheet:
    """A row for each K, and one for K chosen by cost."""
    columns = (
        Column("K"),
        Column("acceptance (α)", ".3f"),
        Column("c", ".4f"),
        Column("v", ".2f"),
        Column("tokens a round", ".2f"),
        Column("ideal", ".2f"),
        Column("speedup", ".2f"),
        Column("predicted", ".2f"),
        Column(f"{ANSWER_TOKENS} tokens, s", ".3f"),
        Column("90 %", ".3f"),
        Column("outside the models", ".1%"),
    )
    auto = () if found.auto is None else ((f"auto ({found.auto.drafted_per_round:.1f})", found.auto),)
    rows = tuple(
        (
            k,
            row.acceptance,
            row.c,
            row.v,
            row.tokens_per_round,
            row.ideal_tokens_per_round if isinstance(row, MeasuredK) else None,
            row.speedup,
            row.predicted if isinstance(row, MeasuredK) else None,
            row.answer_seconds and row.answer_seconds.median,
            row.answer_seconds and row.answer_seconds.p90,
            row.outside_models,
        )
        for k, row in (*((str(row.k), row) for row in found.rows), *auto)
    )
    timed = [] if result.plain.answer_seconds is None else [ANSWER]
    title = f"{result.bundle}, {result.threads} threads, drafter {drafter}"
    if result.imposed_acceptance is not None:
        title += f", an acceptance of {result.imposed_acceptance:g} imposed"
    return Sheet(title, columns, rows, (PREDICTED, COSTS, *timed, plain_note(result)))


def plain_note(result: SpeculateResult) -> str:
    """Plain decoding, and the costs of an encoder and of alternating on the same threads, in words."""
    plain, encoded, turns = result.plain, result.encoded, result.turns
    said = f"Plain decoding writes {1 / plain.seconds_per_token:,.1f} tok/s"
    if plain.answer_seconds is not None:
        said += (
            f", {ANSWER_TOKENS} tokens in {plain.answer_seconds.median:.3f} s (90 %: {plain.answer_seconds.p90:.3f})"
        )
    said += "."
    if encoded is not None:
        said += (
            f" The encoder reads a source of {encoded.source_tokens} tokens in {encoded.seconds:.2f} s, "
            f"{encoded.share:.0%} of a plain answer of {ANSWER_TOKENS} tokens."
        )
    if turns is not None:
        said += (
            f" Alternating, a step of the target takes {turns.target_seconds * 1e6:,.0f} us "
            f"({turns.target_over_alone:.2f} x alone), one of the draft {turns.draft_seconds * 1e6:,.0f} us "
            f"({turns.draft_over_alone:.2f} x), both together {turns.over_alone:.2f} x as long as alone."
        )
    return said
