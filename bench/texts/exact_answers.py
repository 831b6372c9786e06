"""How many answers are right to the last character, and how much speculation saves: the pair of recipes/seq2seq.

    python -m bench exact-answers BUNDLE --record build/records/exact_answers.json

Every way of writing answers every held-out function, alternating. All ways except beams write the same texts. Times are
those of whole answers, including the encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from bench.measurement import measurement
from bench.pairs.skeletons import held_out_functions
from bench.results import ExactResult, ExactRow
from mxspec.evaluate.bench.harness import alternate, median, same_texts
from mxspec.evaluate.bench.options import bundle_argument
from mxspec.runtime import ops
from mxspec.runtime.engine import Engine
from mxspec.runtime.handle import Answer
from mxspec.runtime.request import Request

PLAIN, BEAMS = "plain", "4 beams"
WAYS: dict[str, dict[str, Any]] = {
    PLAIN: {"k": 0},
    "draft, K by cost": {"k": "auto"},
    "draft, K = 4": {"k": 4},
    "draft, K = 8": {"k": 8},
    "suffix": {"drafter": "suffix"},
    BEAMS: {"k": 0, "beams": 4},
}


def held_out() -> list[tuple[str, str]]:
    """Pairs of a function's first lines and its skeleton, which the pair was not trained on."""
    return [(function.source, function.text) for function in held_out_functions()]


def writer(engine: Engine, way: str) -> Callable[[tuple[str, str], int], Answer]:
    """A function that answers one question in the given way."""

    def answer(question: tuple[str, str], repetition: int) -> Answer:
        source, _ = question
        return engine.submit(Request(prompt=source, temperature=0, cache_key=f"{way} {source}", **WAYS[way])).result()

    return answer


def row_of(way: str, answers: Sequence[Answer], plain: Sequence[Answer], texts: Sequence[str]) -> ExactRow:
    """The row of one way, compared with the plain way; `texts` are the right answers to the questions."""
    right = sum(answer.text == texts[number % len(texts)] for number, answer in enumerate(answers))
    tokens = sum(answer.statistics.emitted - 1 for answer in answers)
    seconds = seconds_of_repetitions(answers, len(texts))
    speedups = seconds_of_repetitions(plain, len(texts)) / seconds
    return ExactRow(
        way=way,
        exact=right / len(answers),
        tokens_a_call=tokens / sum(answer.statistics.rounds - 1 for answer in answers),
        tokens_per_second=tokens / float(seconds.sum()),
        speedup=median(speedups),
        trials_speedup=tuple(speedups.tolist()),
    )


def seconds_of_repetitions(answers: Sequence[Answer], questions: int) -> NDArray[np.float64]:
    """float64[repetitions]: seconds that all answers of each repetition took."""
    seconds = [answer.statistics.prefill_seconds + answer.statistics.decode_seconds for answer in answers]
    each: NDArray[np.float64] = np.reshape(seconds, (-1, questions)).sum(axis=1)
    return each


@measurement
@bundle_argument
@click.option("--repetitions", type=click.IntRange(min=1), default=3, show_default=True)
def main(bundle: Path, repetitions: int) -> ExactResult:
    """Answer every held-out function in every way."""
    questions = held_out()
    with Engine(bundle, slots=8) as engine:
        turns = alternate([writer(engine, way) for way in WAYS], questions, repetitions)
        answers = dict(zip(WAYS, zip(*(given for _, _, given in turns), strict=True), strict=True))
    texts = {way: [answer.text for answer in found] for way, found in answers.items() if way != BEAMS}
    for written in texts.values():
        same_texts(texts[PLAIN], written)
    right = [text for _, text in questions]
    rows = tuple(row_of(way, found, answers[PLAIN], right) for way, found in answers.items())
    return ExactResult(bundle=bundle.name, threads=ops.threads(), questions=len(questions), rows=rows)
