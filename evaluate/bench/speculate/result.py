"""What `specbench speculate` found: a point for every combination of settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mxspec.evaluate.bench.harness import Percentiles
from mxspec.evaluate.result import Column, Result, Sheet, Value

ANSWER_TOKENS = 128  # whose time Chen et al. (2023) show in figure 1
ANSWER = f"{ANSWER_TOKENS} tokens, s: median over the answers, then the 90th percentile."
PREDICTED = "predicted: (1 - α^(K+1)) / ((1 - α)(cK + v)), the formula of Leviathan et al. with the cost v of scoring."
READ = "GB/s: bytes of matrices that the rounds read; of a read: over the speed of a plain read in the same minute."


class SpeculationTrial(Value):
    """Texts written together, with and without speculation: seconds after the first token of each."""

    prompt: int  # number of the first prompt
    repetition: int
    texts: int
    tokens: int  # of all texts, after the first of each
    decode_seconds: float
    plain_tokens: int
    plain_seconds: float
    fp16_tokens: int | None  # of the baseline, if it was timed
    fp16_seconds: float | None
    read_bytes: int  # of matrices, by the speculating rounds
    read_bytes_per_second: float  # of a plain read of the weights' file, right after the texts

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.decode_seconds

    @property
    def plain_tokens_per_second(self) -> float:
        return self.plain_tokens / self.plain_seconds

    @property
    def fp16_tokens_per_second(self) -> float | None:
        return self.fp16_tokens / self.fp16_seconds if self.fp16_tokens and self.fp16_seconds else None

    @property
    def speedup(self) -> float:
        return self.tokens_per_second / self.plain_tokens_per_second

    @property
    def over_fp16(self) -> float | None:
        fp16 = self.fp16_tokens_per_second
        return self.tokens_per_second / fp16 if fp16 else None

    @property
    def answer_seconds(self) -> float:
        """Seconds for ANSWER_TOKENS tokens of each text."""
        return ANSWER_TOKENS * self.texts / self.tokens_per_second

    @property
    def plain_answer_seconds(self) -> float:
        return ANSWER_TOKENS * self.texts / self.plain_tokens_per_second

    @property
    def bytes_per_second(self) -> float:
        return self.read_bytes / self.decode_seconds

    @property
    def share_of_read(self) -> float:
        return self.bytes_per_second / self.read_bytes_per_second


class Point(Value):
    """The settings that are varied."""

    bundle: str
    threads: int
    batch: int  # texts at once
    context: int  # tokens of each prompt; 0 for questions and lines, which have their own lengths
    temperature: float
    drafter: str
    verifier: str
    k: int | str


class SpeculationPoint(Point):
    """The figures of one point; c and v are the costs of a drafted token and of a scored round over a plain step."""

    tokens_per_second: float  # of all texts together; figures with trials are medians over the trials
    plain_tokens_per_second: float
    fp16_tokens_per_second: float | None
    speedup: float
    over_fp16: float | None
    predicted: float | None  # by the formula, only for a fixed K
    acceptance: float
    tokens_per_round: float  # of a text
    drafted_per_round: float
    c: float
    v: float
    outside_models: float  # share of the time
    bytes_per_second: float
    share_of_read: float
    answer_seconds: Percentiles
    plain_answer_seconds: Percentiles
    evaluated_by_position: tuple[int, ...]  # of the first drafted token of a round, of the second …
    accepted_by_position: tuple[int, ...]
    trials: tuple[SpeculationTrial, ...]

    @property
    def point(self) -> Point:
        return Point(**{name: getattr(self, name) for name in Point.model_fields})


class SpeculationResult(Result):
    """All points, with the prompts and repetitions of each."""

    kind: ClassVar[str] = "speculation"
    faster_if_more = (
        "bytes_per_second",
        "fp16_tokens_per_second",
        "over_fp16",
        "plain_tokens_per_second",
        "read_bytes_per_second",
        "share_of_read",
        "speedup",
        "tokens_per_second",
    )
    faster_if_less = ("answer_seconds", "decode_seconds", "fp16_seconds", "plain_answer_seconds", "plain_seconds")

    prompts: int
    new_tokens: int
    repetitions: int
    points: tuple[SpeculationPoint, ...]

    def sheets(self) -> Sequence[Sheet]:
        """Varied settings stand in the rows, the others in the title."""
        settings = {name: [str(getattr(point, name)) for point in self.points] for name in Point.model_fields}
        varied = [name for name, values in settings.items() if len(set(values)) > 1] or ["k"]
        columns = (
            *map(Column, varied),
            Column("tok/s", ".1f"),
            Column("plain", ".1f"),
            Column("fp16", ".1f"),
            Column("speedup", ".2f"),
            Column("over fp16", ".2f"),
            Column("predicted", ".2f"),
            Column("acceptance (α)", ".3f"),
            Column("tokens a round", ".2f"),
            Column(f"{ANSWER_TOKENS} tokens, s", ".3f"),
            Column("90 %", ".3f"),
            Column("GB/s", ".1f", 1e-9),
            Column("of a read", ".0%"),
        )
        rows = tuple(
            (
                *(settings[name][number] for name in varied),
                point.tokens_per_second,
                point.plain_tokens_per_second,
                point.fp16_tokens_per_second,
                point.speedup,
                point.over_fp16,
                point.predicted,
                point.acceptance,
                point.tokens_per_round,
                point.answer_seconds.median,
                point.answer_seconds.p90,
                point.bytes_per_second,
                point.share_of_read,
            )
            for number, point in enumerate(self.points)
        )
        same = [f"{name} {values[0]}" for name, values in settings.items() if name not in varied]
        sizes = [f"{self.prompts} prompts", f"{self.new_tokens} new tokens each", f"{self.repetitions} repetitions"]
        return [Sheet(", ".join([*same, *sizes]), columns, rows, (PREDICTED, ANSWER, READ), keys=len(varied))]
