"""One point: the same prompts with and without speculation, alternating, beside what the formula predicts.

Leviathan et al. (2023), theorem 3.8, with the cost v of scoring K + 1 tokens in one call, over that of one step, in the
place of 1: speedup = (1 - a^(K+1)) / ((1 - a) (c K + v)). Each answer is compared with the formula for its own
acceptance, for as many tokens as each of its rounds drafted (the last drafts no more than is left to write, and text
drafters often fewer), and for c and v of its own rounds beside the plain rounds of the same prompt and
repetition. The rest is what the formula misses: a rejection makes the next one likelier, and there is time outside the
models.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxspec.evaluate.bench.harness import Percentiles, alternate, median, same_texts
from mxspec.evaluate.bench.machine import ReadCeiling, pieces_of_file
from mxspec.evaluate.bench.prompts import Prompts
from mxspec.evaluate.bench.speculate.result import MEDIANS, Point, SpeculationPoint, SpeculationTrial
from mxspec.evaluate.options import Progress, silent
from mxspec.runtime import ops
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Round, Token
from mxspec.runtime.models.weight_reads import read_bytes
from mxspec.runtime.policy.choose_k import expected_tokens
from mxspec.runtime.request import Request


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """Texts that were written together: their tokens, and the rounds of each, with the one that gives its first."""

    texts: list[list[int]]
    rounds: list[list[Round]]

    @property
    def longest(self) -> Rounds:
        """The rounds, after the first token, of the text with the most rounds: all other texts share its steps."""
        return Rounds(max(self.rounds, key=len)[1:])

    @property
    def tokens(self) -> int:
        """Tokens of all texts after the first of each."""
        return sum(map(len, self.texts)) - len(self.texts)


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of one answer after its first token, which reading the prompt gives."""

    rounds: list[Round]

    @property
    def seconds(self) -> float:
        return sum(r.seconds for r in self.rounds)

    @property
    def target_seconds(self) -> float:
        """Target seconds of one round."""
        return sum(r.target_seconds for r in self.rounds) / len(self.rounds)

    @property
    def draft_seconds(self) -> float:
        """Draft seconds of one drafted token; 0 without drafted tokens."""
        drafted = sum(r.drafted for r in self.rounds)
        return sum(r.draft_seconds for r in self.rounds) / drafted if drafted else 0.0

    @property
    def acceptance(self) -> float:
        """Accepted tokens over evaluated ones; 0 without evaluated tokens."""
        evaluated = sum(r.evaluated for r in self.rounds)
        return sum(r.accepted for r in self.rounds) / evaluated if evaluated else 0.0

    def predicted_over(self, plain: Rounds) -> float:
        """The formula's speedup over plain decoding: tokens a round over (c K + v).

        The tokens are those that the rounds would give if each guess were right with one independent probability.
        """
        tokens = sum(expected_tokens(self.acceptance, r.drafted) for r in self.rounds)
        drafted = sum(r.drafted for r in self.rounds) / len(self.rounds)
        cost = self.draft_seconds / plain.target_seconds * drafted + self.target_seconds / plain.target_seconds
        return tokens / len(self.rounds) / cost


def beside_plain(plain: Sequence[Rounds], found: Sequence[Rounds]) -> dict[str, float]:
    """Speculating answers beside the plain ones of the same prompts and repetitions: medians over the pairs.

    `outside_models` is a share of the time of all speculating rounds.
    """
    pairs = [(a, b) for a, b in zip(plain, found, strict=True) if a.rounds and b.rounds]
    rounds = [r for _, b in pairs for r in b.rounds]
    return {
        "c": median([b.draft_seconds / a.target_seconds for a, b in pairs]),
        "v": median([b.target_seconds / a.target_seconds for a, b in pairs]),
        "predicted": median([b.predicted_over(a) for a, b in pairs]),
        "outside_models": 1 - sum(r.draft_seconds + r.target_seconds for r in rounds) / sum(r.seconds for r in rounds),
    }


Write = Callable[[Engine, Sequence[Sequence[int]], Mapping[str, Any]], TimedAnswer]


def write_together(engine: Engine, prompts: Sequence[Sequence[int]], settings: Mapping[str, Any]) -> TimedAnswer:
    """Write texts for the prompts together, after reading all prompts except for their last tokens."""
    reading = {**settings, "max_new_tokens": 1, "min_new_tokens": 0}
    for handle in engine.submit_all([Request(prompt=prompt, **reading) for prompt in prompts]):
        handle.result()
    events = [list(handle) for handle in engine.submit_all([Request(prompt=prompt, **settings) for prompt in prompts])]
    return TimedAnswer(
        texts=[[event.id for event in found if isinstance(event, Token)] for found in events],
        rounds=[[event for event in found if isinstance(event, Round)] for found in events],
    )


@dataclass(frozen=True, slots=True)
class Measurement:
    """What all points share; `write` has an engine write texts, and is another one only where guesses are imposed."""

    paths: Mapping[str, Path]
    prompts: Prompts
    new_tokens: int
    repetitions: int
    fp16: bool = False  # whether the baseline is timed, too
    write: Write = write_together

    def run(self, points: Sequence[Point], progress: Progress = silent) -> Iterator[SpeculationPoint]:
        """Yield each point as soon as it is measured. Raises MxspecError if the prompts are too few or too long."""
        done, threads = 0, ops.threads()
        try:
            for (bundle, on, batch), group in itertools.groupby(points, lambda p: (p.bundle, p.threads, p.batch)):
                with ExitStack() as engines:
                    opened = [engines.enter_context(Engine(self.paths[bundle], slots=batch, threads=on))]
                    if self.fp16:
                        path = self.paths[bundle]
                        opened.append(engines.enter_context(Engine(path, slots=batch, threads=on, model="baseline")))
                    for point in group:
                        done += 1
                        shown = ", ".join(f"{name} {value}" for name, value in point)
                        progress(f"point {done} of {len(points)}: {shown}")
                        yield self._measure(opened, point)
        finally:
            ops.set_threads(threads)

    def _measure(self, engines: Sequence[Engine], point: Point) -> SpeculationPoint:
        engine = engines[0]
        sets = self.prompts.sets(engine, point.context, point.batch, self.new_tokens)
        settings: dict[str, Any] = {
            "temperature": point.temperature,
            "max_new_tokens": self.new_tokens,
            "min_new_tokens": 2,  # so that each answer has a round to time
            "ignore_eos": self.prompts.goes_on,
        }
        guessing = {"k": point.k, "drafter": point.drafter}
        guessing |= {"verifier": point.verifier} if point.temperature else {}
        repeatable = point.k != "auto" and engine.drafters[point.drafter].repeatable
        repeats = point.temperature and (repeatable or point.verifier == "match")  # where a seed means one text

        def variant(engine: Engine, own: dict[str, Any]) -> Callable[[list[list[int]], int], TimedAnswer]:
            def answer(prompts: list[list[int]], repetition: int) -> TimedAnswer:
                seeded = settings | ({"seed": repetition + 1} if repeats else {})
                return self.write(engine, prompts, seeded | own)

            return answer

        plain = {"k": 0, "drafter": "none"}
        ceiling = ReadCeiling(pieces_of_file(engine.bundle.weights_path("target")))
        variants = [variant(engine, plain), variant(engine, guessing), *(variant(each, plain) for each in engines[1:])]
        answers, trials = [], []
        for repetition, number, answered in alternate(variants, sets, self.repetitions, warm=True):
            first, guessed = answered[:2]
            if not point.temperature:
                same_texts(first.texts, guessed.texts)
            answers.append((first, guessed))
            read = ceiling.bytes_per_second()
            trials.append(_trial(engine, number * point.batch, repetition, answered, read))
        return _described(point, answers, trials)


def _trial(
    engine: Engine, prompt: int, repetition: int, answers: Sequence[TimedAnswer], read: float
) -> SpeculationTrial:
    plain, guessed, *fp16 = answers
    return SpeculationTrial(
        prompt=prompt,
        repetition=repetition,
        texts=len(guessed.texts),
        tokens=guessed.tokens,
        decode_seconds=guessed.longest.seconds,
        plain_tokens=plain.tokens,
        plain_seconds=plain.longest.seconds,
        fp16_tokens=fp16[0].tokens if fp16 else None,
        fp16_seconds=fp16[0].longest.seconds if fp16 else None,
        read_bytes=_read_bytes(engine, guessed),
        read_bytes_per_second=read,
    )


def _read_bytes(engine: Engine, answered: TimedAnswer) -> int:
    """Bytes of the matrices that the rounds read: a step reads the target's once for all texts, and a draft's."""
    rounds, texts = answered.longest.rounds, len(answered.texts)
    found = sum(read_bytes(engine.target.entry, texts * (r.drafted + 1)) for r in rounds)
    if engine.draft is None or not any(r.draft_seconds for r in rounds):
        return found
    return found + sum(r.drafted for r in rounds) * read_bytes(engine.draft.entry)


def _described(
    point: Point, answers: Sequence[tuple[TimedAnswer, TimedAnswer]], trials: Sequence[SpeculationTrial]
) -> SpeculationPoint:
    beside = beside_plain([plain.longest for plain, _ in answers], [guessed.longest for _, guessed in answers])
    rounds = [r for _, guessed in answers for text in guessed.rounds for r in text[1:]]
    evaluated, accepted = sum(r.evaluated for r in rounds), sum(r.accepted for r in rounds)
    positions = range(max(r.evaluated for r in rounds))
    medians: dict[str, float | None] = {}
    for name in MEDIANS:
        values = [value for trial in trials if (value := getattr(trial, name)) is not None]
        medians[name] = median(values) if values else None
    return SpeculationPoint(
        **{**dict(point), **beside, "predicted": beside["predicted"] if isinstance(point.k, int) else None, **medians},
        acceptance=accepted / evaluated if evaluated else 0.0,
        tokens_per_round=sum(r.emitted for r in rounds) / len(rounds),
        drafted_per_round=sum(r.drafted for r in rounds) / len(rounds),
        answer_seconds=Percentiles.of([trial.answer_seconds for trial in trials]),
        plain_answer_seconds=Percentiles.of([trial.plain_answer_seconds for trial in trials]),
        evaluated_by_position=tuple(sum(r.evaluated > i for r in rounds) for i in positions),
        accepted_by_position=tuple(sum(r.accepted > i for r in rounds) for i in positions),
        trials=tuple(trials),
    )
