"""The speedup of suffix decoding when a text repeats another one: functions are written again with one name changed.

    python -m bench edits BUNDLE build/held_out.py --record build/records/edits.json

A target of a few million weights cannot follow such an instruction, so the edit is imposed: the target computes every
row, and then the edit's next token is made the likeliest. All time is that of the models.
"""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from bench.measurement import measurement
from bench.results import EditsResult, EditTrial
from mxspec.evaluate.bench.harness import median
from mxspec.evaluate.bench.options import bundle_argument
from mxspec.runtime import ops
from mxspec.runtime.drafters import NAMES
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Round
from mxspec.runtime.models.part import Part
from mxspec.runtime.request import Request
from mxspec.runtime.sampling.shape import Logits

SHORTEST, LONGEST = 700, 1500  # characters of a function
BETWEEN = "\n\n# the same with another name\n"
LIKELIEST = 1e4  # a logit


class Imposed:
    """Makes the target of an engine write a given text."""

    def __init__(self, engine: Engine) -> None:
        self.text: list[int] = []
        self._run = engine.target.run
        engine.target.run = self.run  # type: ignore[method-assign]

    def run(self, parts: Sequence[Part]) -> Logits:
        logits, row = self._run(parts), 0
        for part in parts:
            following = part.past + len(part.tokens) - part.rows + 1
            for place in range(following, following + part.rows):
                if place < len(self.text):
                    logits[row, self.text[place]] = LIKELIEST
                row += 1
        return logits


def functions(text: str, count: int) -> list[str]:
    """`count` functions and classes of a file, evenly spread."""
    found = [part for part in re.split(r"(?m)^(?=def |class )", text) if SHORTEST < len(part) < LONGEST]
    return found[:: max(len(found) // count, 1)][:count]


def renamed(source: str) -> str:
    """The source with its most frequent name changed."""
    names = re.findall(r"\b[a-z_][a-z_0-9]{2,}\b", source)
    name, _ = Counter(name for name in names if not keyword.iskeyword(name) and name != "self").most_common(1)[0]
    return re.sub(rf"\b{name}\b", f"new_{name}", source)


def seconds_a_token(engine: Engine, request: Request) -> tuple[float, float]:
    """Seconds of a token after the first, and tokens a round."""
    rounds = [event for event in engine.submit(request) if isinstance(event, Round)][1:]
    emitted = sum(r.emitted for r in rounds)
    return sum(r.seconds for r in rounds) / emitted, emitted / len(rounds)


@measurement
@bundle_argument
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@click.option("--drafter", type=click.Choice(NAMES), default="suffix", show_default=True)
@click.option("--functions", "count", type=click.IntRange(min=1), default=6, show_default=True)
@click.option("--repetitions", type=click.IntRange(min=1), default=2, show_default=True)
def main(bundle: Path, source: Path, drafter: str, count: int, repetitions: int) -> EditsResult:
    """Write edits with and without DRAFTER, alternating."""
    trials: list[EditTrial] = []
    with Engine(bundle, slots=1) as engine:
        imposed, context = Imposed(engine), engine.target.capacity
        for repetition in range(repetitions):
            for text in functions(source.read_text(encoding="utf-8"), count):
                prompt = engine.encode(text + BETWEEN)
                imposed.text = (prompt + engine.encode(renamed(text)))[:context]
                asked = Request(
                    prompt=prompt,
                    temperature=0,
                    max_new_tokens=len(imposed.text) - len(prompt),
                    ignore_eos=True,
                    k=0,
                    drafter="none",
                    cache_key=f"plain {repetition}",
                )
                plain, _ = seconds_a_token(engine, asked)
                guided = replace(asked, k="auto", drafter=drafter, cache_key=f"guided {repetition}")
                guessing, tokens_a_round = seconds_a_token(engine, guided)
                trials.append(
                    EditTrial(
                        prompt_tokens=len(prompt),
                        new_tokens=len(imposed.text) - len(prompt),
                        plain_seconds_a_token=plain,
                        seconds_a_token=guessing,
                        tokens_a_round=tokens_a_round,
                        speedup=plain / guessing,
                    )
                )
    return EditsResult(
        bundle=bundle.name,
        drafter=drafter,
        threads=ops.threads(),
        speedup=median([trial.speedup for trial in trials]),
        tokens_a_round=median([trial.tokens_a_round for trial in trials]),
        trials=tuple(trials),
    )
