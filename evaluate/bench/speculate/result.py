"""What `specbench speculate` found."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from mxspec.evaluate.result import Result, Value

ANSWER_TOKENS = 128  # whose time Chen et al. (2023) show in figure 1


class AnswerSeconds(Value):
    """What ANSWER_TOKENS tokens take, the prompt read: median and 90th percentile over the answers."""

    median: float
    p90: float


class Plain(Value):
    """Plain decoding, which all is compared with."""

    seconds_per_token: float
    answer_seconds: AnswerSeconds


class Encoded(Value):
    """What reading a source of so many tokens takes, and its share of a plain answer of ANSWER_TOKENS tokens."""

    source_tokens: int
    seconds: float
    share: float


class StepSeconds(Value):
    """Of one step of each model."""

    target: float
    draft: float


class TurnsTrial(Value):
    """Steps of one repetition: of each model alone, and of both alternating."""

    alone_seconds: StepSeconds
    turns_seconds: StepSeconds


class Turns(Value):
    """What it costs that target and draft alternate on the same threads: medians over the repetitions."""

    target_seconds: float
    draft_seconds: float
    target_over_alone: float
    draft_over_alone: float
    over_alone: float
    trials: tuple[TurnsTrial, ...]


class Measured(Value):
    """Speculative decoding; c and v are what a drafted token and a scored round cost over a plain step."""

    acceptance: float
    drafted_per_round: float
    c: float
    v: float
    tokens_per_round: float
    speedup: float
    outside_models: float
    answer_seconds: AnswerSeconds
    trials_speedup: tuple[float, ...]


class MeasuredK(Measured):
    """The same at a fixed K, beside the formula."""

    k: int
    ideal_tokens_per_round: float
    predicted: float
    measured_over_predicted: float


class OfDrafter(Value):
    """One drafter, at every K and at the K that is chosen for each round by what it costs."""

    rows: tuple[MeasuredK, ...]
    auto: Measured | None = None


class SpeculateResult(Result):
    """Speculative beside plain decoding, by drafter."""

    bundle: str
    threads: int
    new_tokens: int
    prompts: int
    imposed_acceptance: float | None
    plain: Plain
    turns: Turns | None  # None without a draft
    drafters: dict[str, OfDrafter]
    encoded: Encoded | None = None  # of models with encoders

    def tables(self) -> Sequence[Table]:
        of_drafters = [speculate_table(self.bundle, name, found) for name, found in self.drafters.items()]
        turns = [] if self.turns is None else [turns_table(self.turns)]
        encoded = [] if self.encoded is None else [encoded_table(self.encoded)]
        return [plain_table(self), *encoded, *of_drafters, *turns]


def plain_table(result: SpeculateResult) -> Table:
    table = Table("plain, tok/s", f"{ANSWER_TOKENS} tokens, s", "90th percentile", "threads")
    seconds, speed = result.plain.answer_seconds, 1 / result.plain.seconds_per_token
    table.add_row(f"{speed:.1f}", f"{seconds.median:.3f}", f"{seconds.p90:.3f}", str(result.threads))
    return table


def encoded_table(found: Encoded) -> Table:
    """What the encoder takes of an answer."""
    table = Table("a source, tokens", "ms", f"of {ANSWER_TOKENS} tokens, plain")
    table.add_row(str(found.source_tokens), f"{found.seconds * 1e3:.1f}", f"{found.share:.1%}")
    return table


def speculate_table(bundle: str, drafter: str, found: OfDrafter) -> Table:
    """A line for each K, and one for K chosen by cost."""
    columns = ("acceptance", "c", "v", "tokens a round", "ideal", "speedup", "predicted", "measured/predicted")
    answer = (f"{ANSWER_TOKENS} tokens, s", "90th percentile", "outside the models")
    table = Table("K", *columns, *answer, title=f"{bundle}, drafter {drafter}", title_justify="left")
    for row in found.rows:
        over = (f"{row.predicted:.2f}", f"{row.measured_over_predicted:.2f}")
        _add(table, str(row.k), row, f"{row.ideal_tokens_per_round:.2f}", over)
    table.add_section()
    if found.auto is not None:
        _add(table, f"auto ({found.auto.drafted_per_round:.1f})", found.auto, "", ("", ""))
    return table


def _add(table: Table, k: str, row: Measured, ideal: str, over: tuple[str, str]) -> None:
    table.add_row(
        k,
        f"{row.acceptance:.3f}",
        f"{row.c:.4f}",
        f"{row.v:.2f}",
        f"{row.tokens_per_round:.2f}",
        ideal,
        f"{row.speedup:.2f}",
        *over,
        f"{row.answer_seconds.median:.3f}",
        f"{row.answer_seconds.p90:.3f}",
        f"{row.outside_models:.1%}",
    )


def turns_table(turns: Turns) -> Table:
    """What alternating on the same threads costs both models."""
    table = Table("a step, alternating", "us", "over alone")
    both = turns.target_seconds + turns.draft_seconds
    for name, seconds, over in (
        ("target", turns.target_seconds, turns.target_over_alone),
        ("draft", turns.draft_seconds, turns.draft_over_alone),
        ("both", both, turns.over_alone),
    ):
        table.add_row(name, f"{seconds * 1e6:.1f}", f"{over:.3f}")
    return table
