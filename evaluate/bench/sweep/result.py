"""What `specbench sweep` found: a point for every combination of settings."""

from __future__ import annotations

from collections.abc import Sequence

from mxspec.evaluate.bench.medians import Percentiles
from mxspec.evaluate.bench.speculate.result import ANSWER, ANSWER_TOKENS, PREDICTED
from mxspec.evaluate.result import Result, Value
from mxspec.evaluate.sheet import Column, Sheet


class SweepTrial(Value):
    """Texts written together, with and without speculation: seconds after the first token of each."""

    prompt: int  # number of the first prompt
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
        """Seconds for ANSWER_TOKENS tokens of each text."""
        return ANSWER_TOKENS * self.texts / self.tokens_per_second

    @property
    def plain_answer_seconds(self) -> float:
        return ANSWER_TOKENS * self.texts / self.plain_tokens_per_second


class Point(Value):
    """The settings that a sweep varies."""

    bundle: str
    threads: int
    batch: int  # texts at once
    context: int  # tokens of each prompt
    temperature: float
    drafter: str
    verifier: str
    k: int | str


class SweepPoint(Point):
    """The figures of one point; c and v are the costs of a drafted token and of a scored round over a plain step."""

    tokens_per_second: float  # of all texts together; figures with trials are medians over the trials
    plain_tokens_per_second: float
    speedup: float
    predicted: float | None  # by the formula, only for a fixed K
    acceptance: float
    tokens_per_round: float  # of a text
    c: float | None
    v: float | None
    answer_seconds: Percentiles
    plain_answer_seconds: Percentiles
    evaluated_by_position: tuple[int, ...]  # of the first drafted token of a round, of the second …
    accepted_by_position: tuple[int, ...]
    trials: tuple[SweepTrial, ...]

    @property
    def point(self) -> Point:
        return Point(**{name: getattr(self, name) for name in Point.model_fields})


class SweepResult(Result):
    """All points, with the prompts and repetitions of each."""

    prompts: int
    new_tokens: int
    repetitions: int
    points: tuple[SweepPoint, ...]

    def sheets(self) -> Sequence[Sheet]:
        """Varied settings stand in the rows, the others in the title."""
        settings = {name: [str(getattr(point, name)) for point in self.points] for name in Point.model_fields}
        varied = [name for name, values in settings.items() if len(set(values)) > 1] or ["k"]
        columns = (
            *map(Column, varied),
            Column("tok/s", ".1f"),
            Column("plain", ".1f"),
            Column("speedup", ".2f"),
            Column("predicted", ".2f"),
            Column("acceptance (α)", ".3f"),
            Column("tokens a round", ".2f"),
            Column(f"{ANSWER_TOKENS} tokens, s", ".3f"),
            Column("90 %", ".3f"),
        )
        rows = tuple(
            (
                *(settings[name][number] for name in varied),
                point.tokens_per_second,
                point.plain_tokens_per_second,
                point.speedup,
                point.predicted,
                point.acceptance,
                point.tokens_per_round,
                point.answer_seconds.median,
                point.answer_seconds.p90,
            )
            for number, point in enumerate(self.points)
        )
        same = [f"{name} {values[0]}" for name, values in settings.items() if name not in varied]
        sizes = [f"{self.prompts} prompts", f"{self.new_tokens} new tokens each", f"{self.repetitions} repetitions"]
        return [Sheet(", ".join([*same, *sizes]), columns, rows, (PREDICTED, ANSWER), keys=len(varied))]
