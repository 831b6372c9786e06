"""What `specbench speculate` found: a point for every combination of settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from mxspec.evaluate.bench.harness import Percentiles
from mxspec.evaluate.result import Cell, Column, Result, Sheet, Value

ANSWER_TOKENS = 128  # whose time Chen et al. (2023) show in figure 1
ANSWER = f"{ANSWER_TOKENS} tokens, s: median over the answers, then the 90th percentile."
PREDICTED = "predicted: (1 - α^(K+1)) / ((1 - α)(cK + v)), the formula of Leviathan et al. with the cost v of scoring."
MEDIANS = (  # figures of a point that are the medians of its trials
    "tokens_per_second",
    "plain_tokens_per_second",
    "fp16_tokens_per_second",
    "speedup",
    "over_fp16",
    "bytes_per_second",
    "share_of_read",
)
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
    faster_if_more = (*MEDIANS, "read_bytes_per_second")
    faster_if_less = ("answer_seconds", "decode_seconds", "fp16_seconds", "plain_answer_seconds", "plain_seconds")

    prompts: int
    new_tokens: int
    repetitions: int
    points: tuple[SpeculationPoint, ...]

    def sheets(self) -> Sequence[Sheet]:
        """Varied settings stand in the rows, the others in the title."""
        settings = {name: [str(getattr(point, name)) for point in self.points] for name in Point.model_fields}
        varied = [name for name, values in settings.items() if len(set(values)) > 1] or ["k"]
        columns: list[tuple[Column, Callable[[SpeculationPoint], Cell]]] = [
            *((Column(name), lambda p, name=name: str(getattr(p, name))) for name in varied),
            (Column("tok/s", ".1f"), lambda p: p.tokens_per_second),
            (Column("plain", ".1f"), lambda p: p.plain_tokens_per_second),
            (Column("fp16", ".1f"), lambda p: p.fp16_tokens_per_second),
            (Column("speedup", ".2f"), lambda p: p.speedup),
            (Column("over fp16", ".2f"), lambda p: p.over_fp16),
            (Column("predicted", ".2f"), lambda p: p.predicted),
            (Column("acceptance (α)", ".3f"), lambda p: p.acceptance),
            (Column("tokens a round", ".2f"), lambda p: p.tokens_per_round),
            (Column(f"{ANSWER_TOKENS} tokens, s", ".3f"), lambda p: p.answer_seconds.median),
            (Column("90 %", ".3f"), lambda p: p.answer_seconds.p90),
            (Column("GB/s", ".1f", 1e-9), lambda p: p.bytes_per_second),
            (Column("of a read", ".0%"), lambda p: p.share_of_read),
        ]
        same = [f"{name} {values[0]}" for name, values in settings.items() if name not in varied]
        sizes = [f"{self.prompts} prompts", f"{self.new_tokens} new tokens each", f"{self.repetitions} repetitions"]
        title, notes = ", ".join([*same, *sizes]), (PREDICTED, ANSWER, READ)
        return [Sheet.of_rows(title, self.points, columns, notes, keys=len(varied))]
