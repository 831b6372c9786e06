"""Beam search with and without a draft, alternating: both find the same texts, so their times are all that differs.

Each trial is a search of one prompt with a draft, between two without: their mean is what it is compared with, as the
machine's speed moves. The ratio is of their decoding times, after the prompt was read.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mxspec.evaluate.accuracy.interval import t_quantile
from mxspec.evaluate.bench.beams.result import BeamsResult, MeasuredBeams
from mxspec.evaluate.bench.context import require_context
from mxspec.evaluate.bench.prompts import PROMPT_TOKENS
from mxspec.evaluate.bench.speculate.guided import draft_of
from mxspec.runtime import ops
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Statistics
from mxspec.runtime.request import K, Request

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Found:
    """One search: what it found, and its figures."""

    answers: tuple[tuple[tuple[int, ...], float | None], ...]  # ids and score of each text
    statistics: Statistics

    @property
    def seconds_a_step(self) -> float:
        """After the prompt was read, which gives the first."""
        return self.statistics.decode_seconds / (self.statistics.steps - 1)


class BeamsBench:
    """An engine and its prompts; every search goes on for `new_tokens` steps."""

    def __init__(
        self,
        bundle: Path,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        beams: int,
        slots: int,
    ) -> None:
        """Raises MxspecError for a bundle without a draft, or a context that is too short."""
        self.engine = Engine(bundle, slots=slots)
        draft_of(self.engine)
        require_context(self.engine.bundle, PROMPT_TOKENS, new_tokens)
        self.prompts, self.new_tokens, self.beams = prompts, new_tokens, beams

    def find(self, prompt: int, k: K) -> Found:
        """Search for all beams' texts, which none ends before its time."""
        handle = self.engine.submit(
            Request(
                prompt=list(self.prompts[prompt]),
                temperature=0,
                k=k,
                beams=self.beams,
                n=self.beams,
                max_new_tokens=self.new_tokens,
                ignore_eos=True,
            )
        )
        answers = handle.results()
        return Found(tuple((tuple(one.token_ids), one.score) for one in answers), answers[0].statistics)


def measure(
    bench: BeamsBench, ks: Sequence[K], repetitions: int, progress: Callable[[str], object] = lambda text: None
) -> BeamsResult:
    """All K for each prompt and repetition, each between two plain searches."""
    plain: list[Found] = []
    found: dict[K, list[Found]] = {k: [] for k in ks}
    ratios: dict[K, list[float]] = {k: [] for k in ks}
    for repetition in range(repetitions):
        for prompt in range(len(bench.prompts)):
            progress(f"repetition {repetition + 1} of {repetitions}, prompt {prompt + 1} of {len(bench.prompts)}")
            before = bench.find(prompt, 0)
            for k in ks:
                done, after = bench.find(prompt, k), bench.find(prompt, 0)
                assert done.answers == before.answers == after.answers, "the texts depend on the draft"
                found[k].append(done)
                ratios[k].append((before.seconds_a_step + after.seconds_a_step) / 2 / done.seconds_a_step)
                plain.append(after)
                before = after
    outside = [1 - one.statistics.target_seconds / one.statistics.decode_seconds for one in plain]
    return BeamsResult(
        bundle=bench.engine.bundle.path.name,
        threads=ops.threads(),
        slots=bench.engine.target.slots,
        beams=bench.beams,
        new_tokens=bench.new_tokens,
        prompts=len(bench.prompts),
        plain_tokens_per_second=1 / statistics.median(one.seconds_a_step for one in plain),
        plain_outside_models=statistics.median(outside),
        rows=tuple(_row(k, found[k], ratios[k]) for k in ks),
    )


def _row(k: K, found: Sequence[Found], ratios: Sequence[float]) -> MeasuredBeams:
    rounds = sum(one.statistics.rounds - 1 for one in found)
    evaluated = sum(one.statistics.evaluated for one in found)
    low, high = interval(ratios)
    return MeasuredBeams(
        k=str(k),
        tokens_per_second=1 / statistics.median(one.seconds_a_step for one in found),
        steps_per_call=sum(one.statistics.steps - 1 for one in found) / rounds,
        kept=sum(one.statistics.accepted for one in found) / evaluated if evaluated else None,
        drafting_rounds=1 - sum(one.statistics.rounds_by_k.get(0, 0) - 1 for one in found) / rounds,
        speedup=math.exp(statistics.fmean(map(math.log, ratios))),
        low=low,
        high=high,
        trials_speedup=tuple(ratios),
    )


def interval(ratios: Sequence[float]) -> tuple[float | None, float | None]:
    """What the mean ratio lies between with CONFIDENCE, by Student's t on the logarithms; of one trial nothing."""
    if len(ratios) < 2:
        return None, None
    logs = [math.log(ratio) for ratio in ratios]
    middle, spread = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    reach = t_quantile((1 + CONFIDENCE) / 2, len(logs) - 1) * spread
    return math.exp(middle - reach), math.exp(middle + reach)
