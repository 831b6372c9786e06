"""How wide and how far a draft guesses: what pays, on machines whose costs are known, and what not paying may lose."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from mxspec.runtime.beams.width import PLAIN, SearchLoad, Spent, Width, Widths
from mxspec.runtime.events import Round

BEAMS = 4


@dataclass(slots=True)
class Machine:
    """Seconds of calls, by tokens and by beams, and the share of steps that a trellis of so many beams holds."""

    score: Callable[[int], float]
    draft: Callable[[int], float]
    share: Callable[[int], float]

    def run(self, widths: Widths, steps: int, seed: int = 0) -> tuple[float, list[Width]]:
        """Seconds for so many steps, and what was chosen."""
        rng, spent, taken, chosen = random.Random(seed), 0.0, 0, []
        while taken < steps:
            load = SearchLoad(BEAMS, min(steps - taken - 1, 50), 24)
            width = widths.choose(load)
            kept = 0
            while kept < width.steps and rng.random() < self.share(width.beams):
                kept += 1
            tokens = BEAMS if width == PLAIN else round(1.2 * width.beams * (width.steps + 1))
            calls = [(BEAMS if level == 0 else width.beams) for level in range(width.steps)]
            seconds = self.score(tokens)
            spent += seconds + sum(map(self.draft, calls))
            done = Round(width.steps, min(kept + 1, width.steps), kept, kept + 1, 0, 0, 0)
            drafts = [(n, self.draft(n)) for n in calls]
            widths.observe(load, width, done, Spent(tokens, tokens, seconds, drafts, sum(map(self.draft, calls))))
            taken += kept + 1
            chosen.append(width)
        return spent, chosen


def test_what_pays_is_done() -> None:
    """A call that waits for memory, a draft of next to nothing, that holds nine steps of ten with twice the beams."""
    machine = Machine(lambda tokens: 1 + 0.002 * tokens, lambda beams: 0.02, lambda n: 0.9 if n == 8 else 0.3)
    widths = Widths(8)
    machine.run(widths, 500)
    spent, chosen = machine.run(widths, 2000)
    assert spent < 0.35 * 2000 * machine.score(BEAMS)
    assert sum(width.beams == 8 for width in chosen) > 0.9 * len(chosen)


@pytest.mark.parametrize(
    "machine",
    [
        Machine(lambda tokens: tokens, lambda beams: 0.5, lambda n: 0.6),  # bound by products
        Machine(lambda tokens: 1 + 0.01 * tokens, lambda beams: 0.8, lambda n: 0.8),  # a slow draft
        Machine(lambda tokens: 1 + 0.01 * tokens, lambda beams: 0.1, lambda n: 0.02),  # a bad one
    ],
)
@pytest.mark.parametrize("steps", [1500, 5000])
def test_what_does_not_pay_costs_next_to_nothing(machine: Machine, steps: int) -> None:
    spent, _ = machine.run(Widths(8), steps)
    assert spent < 1.01 * steps * machine.score(BEAMS)


def test_what_promises_more_than_it_gives_is_left() -> None:
    """Calls that take twice as long every fifth time: medians do not see it."""
    calls = iter(range(1_000_000))
    machine = Machine(
        lambda tokens: 1.0 if tokens == BEAMS else 1.2,
        lambda beams: 2.5 if next(calls) % 5 == 0 else 0.01,
        lambda n: 0.5,
    )
    spent, _ = machine.run(Widths(8), 3000)
    assert spent < 1.01 * 3000


def test_what_pays_only_now_and_then_is_found_again() -> None:
    """The share of steps kept changes with the text."""
    good, now = 0.0, [0]
    machine = Machine(
        lambda tokens: 1 + 0.002 * tokens, lambda beams: 0.02, lambda n: 0.9 if now[0] % 2 and n == 8 else 0.05
    )
    widths = Widths(8)
    for now[0] in range(6):
        spent, _ = machine.run(widths, 1500, seed=now[0])
        good += spent if now[0] % 2 else 0.0
    assert good < 0.6 * 3 * 1500 * machine.score(BEAMS)


def test_nothing_is_guessed_where_there_is_no_room() -> None:
    widths = Widths(8)
    for _ in range(20):
        assert widths.choose(SearchLoad(BEAMS, 0, 24)) == PLAIN
        assert widths.choose(SearchLoad(BEAMS, 9, 3)) == PLAIN
