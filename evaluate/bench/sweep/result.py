"""What `specbench sweep` found: a point for everything that was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from mxspec.evaluate.bench.columns.result import Percentiles
from mxspec.evaluate.bench.speculate.result import ANSWER_TOKENS
from mxspec.evaluate.result import Result, Value


class SweepTrial(Value):
    """Some texts written together, speculating and then without: seconds after the first token of each."""

    prompt: int  # the first of them
    repetition: int
    texts: int
    tokens: int  # of all texts, after the first of each
    decode_seconds: float
    plain_seconds: float

    @property
    def speedup(self) -> float:
        return self.plain_seconds / self.decode_seconds

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.decode_seconds

    @property
    def plain_tokens_per_second(self) -> float:
        return self.tokens / self.plain_seconds

    @property
    def answer_seconds(self) -> float:
        """Of ANSWER_TOKENS tokens of each text."""
        return ANSWER_TOKENS * self.texts / self.tokens_per_second

    @property
    def plain_answer_seconds(self) -> float:
        return ANSWER_TOKENS * self.texts / self.plain_tokens_per_second


class Point(Value):
    """What is varied."""

    bundle: str
    threads: int
    batch: int  # texts at once
    context: int  # tokens of each prompt
    temperature: float
    drafter: str
    verifier: str
    k: int | str


class SweepPoint(Point):
    """One point, measured; c and v are what a drafted token and a scored round cost over a plain step."""

    tokens_per_second: float  # of all texts; medians over the trials, as all that has trials
    plain_tokens_per_second: float
    speedup: float
    predicted: float | None  # by the formula, for a fixed K
    acceptance: float
    tokens_per_round: float  # of a text
    c: float
    v: float
    answer_seconds: Percentiles
    plain_answer_seconds: Percentiles
    evaluated_by_position: tuple[int, ...]  # of the first drafted token of a round, of the second …
    accepted_by_position: tuple[int, ...]
    trials: tuple[SweepTrial, ...]

    @property
    def point(self) -> Point:
        return Point(**{name: getattr(self, name) for name in Point.model_fields})


class SweepResult(Result):
    """All points, each of so many prompts and repetitions."""

    prompts: int
    new_tokens: int
    repetitions: int
    points: tuple[SweepPoint, ...]

    def tables(self) -> Sequence[Table]:
        table = Table(
            *Point.model_fields,
            "tok/s",
            "plain",
            "speedup",
            "predicted",
            "acceptance",
            "tokens a round",
            f"{ANSWER_TOKENS} tokens, s",
            "90 %",
            title=f"{self.prompts} prompts, {self.new_tokens} tokens each, {self.repetitions} repetitions",
            title_justify="left",
        )
        for point in self.points:
            table.add_row(
                *(str(value) for _, value in point.point),
                f"{point.tokens_per_second:.1f}",
                f"{point.plain_tokens_per_second:.1f}",
                f"{point.speedup:.2f}",
                "" if point.predicted is None else f"{point.predicted:.2f}",
                f"{point.acceptance:.3f}",
                f"{point.tokens_per_round:.2f}",
                f"{point.answer_seconds.median:.3f}",
                f"{point.answer_seconds.p90:.3f}",
            )
        return [table]
