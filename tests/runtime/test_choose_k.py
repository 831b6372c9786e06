"""K is chosen by cost: against simulated pairs whose best K is known by trying all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from mxspec.runtime.choose_k import AutoK, FixedK, expected_tokens, interpolate
from mxspec.runtime.events import Round

MOST = 8


@dataclass(frozen=True)
class Pair:
    """Costs in steps of the target: a draft step, and scoring k + 1 tokens."""

    acceptance: float
    draft: float
    score: Callable[[int], float]

    def round(self, k: int, rng: random.Random, slower: float = 1.0) -> Round:
        """One round, its times longer by up to a tenth, as on a machine with other work."""
        accepted = next((i for i in range(k) if rng.random() >= self.acceptance), k)
        draft, target = (t * slower * (1 + rng.random() / 10) for t in (k * self.draft, self.score(k)))
        return Round(k, min(accepted + 1, k), accepted, accepted + 1, draft, target, draft + target)

    def tokens_per_second(self, k: int) -> float:
        tokens = sum(self.acceptance**i for i in range(k + 1))
        return tokens / (k * self.draft + self.score(k))


CHEAP = Pair(0.8, 0.02, lambda k: 1 + 0.03 * k)
USUAL = Pair(0.65, 0.25, lambda k: 1 + 0.15 * k)
STEEP = Pair(0.8, 0.05, lambda k: 1 + 0.05 * k if k < 4 else 2 + 0.4 * k)
HOPELESS = Pair(0.1, 0.5, lambda k: 1 + 0.6 * k)
DEAR = Pair(0.6, 0.9, lambda k: 1 + 0.3 * k)


def run(auto: AutoK, pair: Pair, rounds: int, seed: int = 0) -> list[Round]:
    rng = random.Random(seed)
    done = []
    for _ in range(rounds):
        done.append(pair.round(auto.next_k(), rng))
        auto.observe(done[-1])
    return done


def speed(rounds: list[Round]) -> float:
    return sum(r.emitted for r in rounds) / sum(r.seconds for r in rounds) * 1.05  # times are 5 % longer on average


def drafted(rounds: list[Round]) -> float:
    return sum(r.drafted for r in rounds) / len(rounds)


@pytest.mark.parametrize("pair", [CHEAP, USUAL, STEEP, HOPELESS, DEAR], ids=["cheap", "usual", "steep", "none", "dear"])
def test_nearly_as_fast_as_the_best_k_and_never_slower_than_plain(pair: Pair) -> None:
    best = max(pair.tokens_per_second(k) for k in range(MOST + 1))
    found = speed(run(AutoK(MOST), pair, 2000))
    assert found >= 0.94 * best
    assert found >= 0.97 * pair.tokens_per_second(0)


def test_drafts_nothing_where_it_does_not_pay_and_rarely_tries_again() -> None:
    rounds = run(AutoK(MOST), HOPELESS, 2000)[50:]
    tried = [i for i, r in enumerate(rounds) if r.drafted]
    assert 3 <= len(tried) <= 60
    assert max(rounds[i].drafted for i in tried) <= 2


def test_notices_that_a_text_has_become_easy_and_hard_again() -> None:
    auto = AutoK(MOST)
    hard, easy = Pair(0.1, 0.2, CHEAP.score), Pair(0.9, 0.2, CHEAP.score)
    assert drafted(run(auto, hard, 300)[200:]) < 0.3
    assert drafted(run(auto, easy, 600)[500:]) > 2.5
    assert drafted(run(auto, hard, 300)[200:]) < 0.3


def test_a_slower_machine_changes_nothing() -> None:
    auto, rng = AutoK(MOST), random.Random(0)
    before = drafted(run(auto, USUAL, 200)[100:])
    for _ in range(200):
        auto.observe(USUAL.round(auto.next_k(), rng, slower=3.0))
    assert drafted(run(auto, USUAL, 100)) == pytest.approx(before, abs=1)


def test_first_rounds_do_not_count_the_preparation_of_a_size() -> None:
    """The first call of each size takes ten times as long, which says nothing about those that follow."""
    auto, rng, seen = AutoK(MOST), random.Random(0), set[int]()
    for _ in range(60):
        k = auto.next_k()
        auto.observe(CHEAP.round(k, rng, slower=1.0 if k in seen else 10.0))
        seen.add(k)
    assert drafted(run(auto, CHEAP, 50)) > 6


@pytest.mark.parametrize("most", [1, 2])
def test_small_bundles(most: int) -> None:
    ks = {r.drafted for r in run(AutoK(most), CHEAP, 50)}
    assert ks <= set(range(most + 1))
    assert max(ks) == most


def test_rounds_that_were_cut_short_are_no_trouble() -> None:
    """The end of a text leaves room for fewer tokens than asked for, or for none."""
    auto, rng = AutoK(MOST), random.Random(0)
    for _ in range(30):
        auto.observe(USUAL.round(min(auto.next_k(), rng.randrange(3)), rng))
    assert 0 <= auto.next_k() <= MOST


def test_fixed_is_fixed() -> None:
    fixed = FixedK(3)
    fixed.observe(HOPELESS.round(3, random.Random(0)))
    assert fixed.next_k() == 3


@pytest.mark.parametrize(("acceptance", "k"), [(0.0, 3), (0.5, 1), (0.75, 8), (1.0, 4)])
def test_expected_tokens_is_the_sum_over_prefixes(acceptance: float, k: int) -> None:
    assert expected_tokens(acceptance, k) == pytest.approx(sum(acceptance**i for i in range(k + 1)))


@pytest.mark.parametrize(
    ("points", "x", "y"),
    [
        ([(0, 2.0)], 5, 2.0),
        ([(0, 1.0), (4, 3.0)], 2, 2.0),
        ([(0, 1.0), (4, 3.0)], 6, 4.0),
        ([(0, 1.0), (4, 3.0)], 0, 1.0),
        ([(0, 1.0), (4, 0.5)], 8, 0.5),
        ([(0, 1.0), (2, 1.5), (4, 3.5)], 1, 1.25),
        ([(0, 1.0), (2, 1.5), (4, 3.5)], 3, 2.5),
    ],
)
def test_interpolate(points: list[tuple[int, float]], x: int, y: float) -> None:
    assert interpolate(points, x) == pytest.approx(y)
