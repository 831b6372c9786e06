"""How many answers are right to the last character, and what speculation gives on them: the pair of recipes/seq2seq.

    python bench/exact_answers.py BUNDLE --record build/records/exact_answers.json

Each held-out function is asked for without speculation and in every way that is named, alternating. Greedily all write
the same texts. Time is that of whole answers, what
encoders take included.
"""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from results import ExactResult, ExactRow

from mxspec.evaluate.bench.medians import median
from mxspec.evaluate.options import Run, record_options
from mxspec.runtime import ops
from mxspec.runtime.cli.command import Command
from mxspec.runtime.engine import Engine
from mxspec.runtime.request import Request

SCRIPT = Path(__file__).resolve().parents[1] / "recipes" / "seq2seq" / "train.py"
WAYS: dict[str, dict[str, Any]] = {
    "plain": {"k": 0},
    "draft, K by cost": {"k": "auto"},
    "draft, K = 4": {"k": 4},
    "draft, K = 8": {"k": 8},
    "suffix": {"drafter": "suffix"},
    "4 beams": {"k": 0, "beams": 4},
}


@dataclass(slots=True)
class Total:
    """What all answers of a way came to."""

    right: int = 0
    tokens: int = 0
    calls: int = 0
    seconds: float = 0.0


def held_out() -> list[tuple[str, str]]:
    """First lines that the pair was not trained on, and their skeletons."""
    script = runpy.run_path(str(SCRIPT))
    return [(function.source, function.text) for function in script["held_out_functions"]()]


@click.command(cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--repetitions", type=click.IntRange(min=1), default=3, show_default=True)
@record_options
def main(bundle: Path, repetitions: int, run: Run) -> None:
    """Answer every held-out function in every way."""
    questions, totals = held_out(), {way: Total() for way in WAYS}
    speeds: dict[str, list[float]] = {way: [] for way in WAYS}
    with Engine(bundle, slots=8) as engine:
        for _ in range(repetitions):
            seconds = dict.fromkeys(WAYS, 0.0)
            for number, (source, text) in enumerate(questions):
                written: dict[int, str] = {}
                for way, settings in WAYS.items():
                    asked = Request(prompt=source, temperature=0, cache_key=f"{way} {number}", **settings)
                    answer = engine.submit(asked).result()
                    same = written.setdefault(settings.get("beams", 1), answer.text)
                    assert answer.text == same, f"{way}: {answer.text!r} is not {same!r}"
                    total, found = totals[way], answer.statistics
                    total.right += answer.text == text
                    total.tokens += found.emitted - 1
                    total.calls += found.rounds - 1
                    seconds[way] += found.prefill_seconds + found.decode_seconds
            for way in WAYS:
                totals[way].seconds += seconds[way]
                speeds[way].append(seconds["plain"] / seconds[way])
    answers = len(questions) * repetitions
    run.finish(
        ExactResult(
            bundle=bundle.name,
            threads=ops.threads(),
            questions=len(questions),
            rows=tuple(
                ExactRow(
                    way=way,
                    exact=total.right / answers,
                    tokens_a_call=total.tokens / total.calls,
                    tokens_per_second=total.tokens / total.seconds,
                    speedup=median(speeds[way]),
                    trials_speedup=tuple(speeds[way]),
                )
                for way, total in totals.items()
            ),
        )
    )


if __name__ == "__main__":
    main()
