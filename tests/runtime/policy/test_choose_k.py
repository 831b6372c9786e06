"""K is chosen by cost: against simulated pairs whose best K is known by trying all of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from scipy.optimize import isotonic_regression

from mxspec.runtime.events import Round
from mxspec.runtime.policy.choose_k import KEEP_STEPS, KByLoad, Load, expected_tokens
from mxspec.runtime.policy.costs import FORGET, Costs, interpolate
from mxspec.runtime.policy.shares import Share

MOST = 8


@dataclass(frozen=True)
class Pair:
    """Costs in steps of the target: a draft call, and scoring so many tokens more than one."""

    acceptance: float
    draft: float
    score: Callable[[int], float]

    def accepted(self, k: int, rng: random.Random) -> int:
        return next((i for i in range(k) if rng.random() >= self.acceptance), k)

    def tokens_per_second(self, k: int, texts: int = 1) -> float:
        tokens = texts * sum(self.acceptance**i for i in range(k + 1))
        return tokens / (k * self.draft + self.score(texts * (k + 1) - 1))


class Texts:
    """Some texts of a pair that run together, each with what is known of its acceptance."""

    def __init__(self, auto: KByLoad, pair: Pair, count: int = 1, seed: int = 0) -> None:
        self.auto, self.pair, self.rng = auto, pair, random.Random(seed)
        self.acceptances = [Share() for _ in range(count)]
        self.rounds: list[Round] = []

    def step(self, room: int = MOST, slower: float = 1.0, seen: set[int] | None = None) -> list[int]:
        """One step, its times longer by up to a tenth, as on a machine with other work."""
        ks = self.auto.choose([Load(acceptance.value, room) for acceptance in self.acceptances])
        tokens = sum(ks) + len(ks)
        if seen is not None and tokens not in seen:  # the first call of each size takes ten times as long
            slower, _ = 10 * slower, seen.add(tokens)
        draft, score = (
            t * slower * (1 + self.rng.random() / 10) for t in (self.pair.draft, self.pair.score(tokens - 1))
        )
        calls = [("model", sum(k > i for k in ks), draft) for i in range(max(ks))]
        self.auto.observe(tokens, score, calls)
        for k, acceptance in zip(ks, self.acceptances, strict=True):
            accepted = self.pair.accepted(k, self.rng)
            done = Round(
                k, min(accepted + 1, k), accepted, accepted + 1, max(ks) * draft, score, max(ks) * draft + score
            )
            acceptance.observe_round(done)
            self.rounds.append(done)
        return ks

    def run(self, steps: int) -> list[Round]:
        first = len(self.rounds)
        for _ in range(steps):
            self.step()
        return self.rounds[first:]


CHEAP = Pair(0.8, 0.02, lambda k: 1 + 0.03 * k)
USUAL = Pair(0.65, 0.25, lambda k: 1 + 0.15 * k)
STEEP = Pair(0.8, 0.05, lambda k: 1 + 0.05 * k if k < 4 else 2 + 0.4 * k)
HOPELESS = Pair(0.1, 0.5, lambda k: 1 + 0.6 * k)
DEAR = Pair(0.6, 0.9, lambda k: 1 + 0.3 * k)


def speed(rounds: list[Round], texts: int = 1) -> float:
    return texts * sum(r.emitted for r in rounds) / sum(r.seconds for r in rounds) * 1.05  # times are 5 % longer


def drafted(rounds: list[Round]) -> float:
    return sum(r.drafted for r in rounds) / len(rounds)


@pytest.mark.parametrize("texts", [1, 2, 4, 8])
@pytest.mark.parametrize("pair", [CHEAP, USUAL, STEEP, HOPELESS, DEAR], ids=["cheap", "usual", "steep", "none", "dear"])
def test_nearly_as_fast_as_the_best_k_and_never_slower_than_plain(pair: Pair, texts: int) -> None:
    best = max(pair.tokens_per_second(k, texts) for k in range(MOST + 1))
    found = speed(Texts(KByLoad(MOST), pair, texts).run(2000), texts)
    assert found >= 0.94 * best
    assert found >= 0.97 * pair.tokens_per_second(0, texts)


@pytest.mark.parametrize("pair", [CHEAP, HOPELESS], ids=["cheap", "none"])
def test_choosing_takes_a_small_share_of_a_small_models_time(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which each choice takes 0.4 steps; the demo's target took 0.6 ms, a choice 0.5 ms."""
    clock = itertools.count(0, 0.4)
    monkeypatch.setattr("mxspec.runtime.policy.choose_k.perf_counter", clock.__next__)
    rounds = Texts(KByLoad(MOST), pair).run(1000)
    chosen = (next(clock) - 0.4) / 2
    assert chosen < 0.04 * sum(r.seconds for r in rounds)  # 0.1 where a choice stands for four steps


def test_a_choice_falls_when_a_text_becomes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a choice takes, so that it stands for 32 steps."""
    monkeypatch.setattr("mxspec.runtime.policy.choose_k.perf_counter", itertools.count(0, 0.4).__next__)
    auto = KByLoad(MOST)
    texts = Texts(auto, CHEAP)
    texts.run(300)
    for _ in range(KEEP_STEPS):
        auto.choose([Load(0.8, MOST)])
        auto.observe(1, 1.0)
    assert max(auto.choose([Load(0.02, MOST)])) == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_other_k_promises_more(seed: int) -> None:
    """Of a text, beside one with a fixed K and a drafter of its own; costs are any that rise."""
    rng, auto = random.Random(seed), KByLoad(MOST)
    score = list(itertools.accumulate(0.5 + rng.random() for _ in range(MOST + 5)))
    draft, other = 0.5 * rng.random(), 0.5 * rng.random()
    auto.score.remember(list(enumerate(score)))
    auto.draft["model"].remember([(1, draft)])
    auto.draft["other"].remember([(1, other)])
    free, fixed = Load(rng.random() ** 0.3, rng.randrange(3, MOST + 1)), Load(rng.random(), 4, k=2, drafter="other")

    def speed(k: int) -> float:
        gained = sum(free.acceptance**i for i in range(k + 1)) + sum(fixed.acceptance**i for i in range(3))
        return gained / (score[k + 4] + k * draft + 2 * other)

    assert auto._best([free, fixed]) == [max(range(free.room + 1), key=speed), 2]


def test_the_more_texts_the_less_each_drafts() -> None:
    """Scoring is cheap up to eight tokens and dear beyond, as where memory bounds a call and then arithmetic does."""
    pair = Pair(0.75, 0.05, lambda k: 1 + 0.02 * k if k < 8 else 1.14 + 0.12 * (k - 7))
    found = [drafted(Texts(KByLoad(MOST), pair, texts).run(500)[-200:]) for texts in (1, 2, 4, 8)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 4
    assert found[3] < 2


def test_each_text_drafts_by_its_own_acceptance() -> None:
    auto = KByLoad(MOST)
    texts = Texts(auto, USUAL, 2)
    texts.run(50)
    good, bad, _ = auto.choose([Load(0.95, MOST), Load(0.05, MOST), Load(0.5, MOST)])
    assert good > bad


def test_a_fixed_k_is_never_touched() -> None:
    auto = KByLoad(MOST)
    Texts(auto, HOPELESS).run(100)
    ks = auto.choose([Load(0.1, MOST), Load(0.1, MOST, k=5), Load(0.1, 2, k=5)])
    assert ks[1:] == [5, 2]


def test_rarely_tries_a_k_that_would_not_pay_even_if_all_were_accepted() -> None:
    dear = Pair(0.5, 1.5, lambda k: 1 + 0.6 * k)
    assert drafted(Texts(KByLoad(MOST), dear, 4).run(2000)[2000:]) < 0.01


def test_drafts_nothing_if_it_does_not_pay_and_rarely_tries_again() -> None:
    rounds = Texts(KByLoad(MOST), Pair(0.05, 0.3, lambda k: 1 + 0.2 * k)).run(2000)[50:]
    tried = [i for i, r in enumerate(rounds) if r.drafted]
    assert 3 <= len(tried) <= 60
    assert max(rounds[i].drafted for i in tried) <= 2


def test_changing_machine_speed_causes_no_drafting_of_rejected_tokens() -> None:
    """Its speed changes by up to 2.2 times every 20 steps: of two costs one was seen in a slower moment."""
    pair, lost = Pair(0.0, 0.08, lambda k: 1 + 0.02 * k), []
    for seed in range(6):
        texts, rng = Texts(KByLoad(MOST), pair, seed=seed), random.Random(seed)
        for _ in range(75):
            slower = 1.5 ** rng.uniform(-1, 1)
            for _ in range(20):
                texts.step(slower=slower)
        ks = [r.drafted for r in texts.rounds]
        lost.append(sum(k * pair.draft + pair.score(k) - 1 for k in ks) / len(ks))
    assert max(lost) < 0.02  # 0.041 where each cost is believed as it was seen


def test_notices_that_a_text_has_become_easy_and_hard_again() -> None:
    hard, easy = Pair(0.1, 0.2, CHEAP.score), Pair(0.9, 0.2, CHEAP.score)
    texts = Texts(KByLoad(MOST), hard)
    assert drafted(texts.run(300)[200:]) < 0.3
    texts.pair = easy
    assert drafted(texts.run(600)[500:]) > 2.5
    texts.pair = hard
    assert drafted(texts.run(300)[200:]) < 0.3


def olmoe_bytes(tokens: int) -> float:
    """Bytes that a call of OLMoE-1B-7B in E2M3 reads, of those of one token: 8 of 64 experts each, the rest shared."""
    return (295 + 5029 * (1 - (1 - 8 / 64) ** tokens)) / 924


def mixture_speeds(acceptance: float, growth: float) -> list[float]:
    """Of the best fixed K, in texts of 128 tokens: twenty first texts of an engine, and the second of each.

    Rows beyond the first cost `growth` of their bytes.
    """
    pair = Pair(acceptance, 0.025, lambda k: 1 + growth * (olmoe_bytes(k + 1) - 1))
    best = max(pair.tokens_per_second(k) for k in range(MOST + 1))
    speeds = []
    for seed in range(20):
        auto = KByLoad(MOST, score=Costs(olmoe_bytes))
        for text in range(2):
            texts = Texts(auto, pair, seed=100 * text + seed)
            texts.acceptances = [Share.like(auto.pair["model"])]
            while sum(done.emitted for done in texts.rounds) < 128:
                texts.step()
                auto.pair["model"].observe_round(texts.rounds[-1])
            speeds.append(speed(texts.rounds) / best)
    return speeds


@pytest.mark.parametrize("growth", [0.8, 1.0, 1.2])
def test_a_mixture_loses_a_hundredth_where_no_guess_is_kept(growth: float) -> None:
    """0.96 where the first tries have a K of 4, as for other models, and 0.92 in first texts."""
    assert sum(mixture_speeds(0.0, growth)) / 40 >= 0.99


@pytest.mark.parametrize("growth", [0.8, 1.0, 1.2])
def test_a_mixture_drafts_where_guesses_are_kept(growth: float) -> None:
    assert sum(mixture_speeds(0.7, growth)) / 40 >= 0.95


def test_a_slower_machine_changes_nothing() -> None:
    texts = Texts(KByLoad(MOST), USUAL)
    before = drafted(texts.run(200)[100:])
    for _ in range(200):
        texts.step(slower=3.0)
    assert drafted(texts.run(100)) == pytest.approx(before, abs=1)


def test_the_preparation_of_a_size_does_not_count() -> None:
    """The first call of each size takes ten times as long, which says nothing about those that follow."""
    texts, seen = Texts(KByLoad(MOST), CHEAP), set[int]()
    for _ in range(60):
        texts.step(seen=seen)
    assert drafted(texts.run(50)) > 6


@pytest.mark.parametrize("most", [1, 2])
def test_small_bundles(most: int) -> None:
    ks = {r.drafted for r in Texts(KByLoad(most), CHEAP).run(50)}
    assert ks <= set(range(most + 1))
    assert max(ks) == most


def test_rounds_that_were_cut_short_are_no_trouble() -> None:
    """The end of a text leaves room for fewer tokens than asked for, or for none."""
    texts = Texts(KByLoad(MOST), USUAL)
    for _ in range(30):
        room = texts.rng.randrange(3)
        assert max(texts.step(room=room)) <= room


def test_after_any_number_of_plain_rounds_the_acceptance_is_a_number() -> None:
    acceptance = Share()
    for _ in range(50_000):
        acceptance.observe_round(Round(0, 0, 0, 1, 0.0, 1.0, 1.0))
    assert acceptance.value == pytest.approx(0.75)
    acceptance.observe_round(Round(4, 1, 0, 1, 0.1, 1.0, 1.1))
    assert acceptance.value < 0.05  # anything new decides


def test_a_call_of_the_draft_in_vain_counts() -> None:
    acceptance = Share()
    for _ in range(100):
        acceptance.observe_round(Round(0, 0, 0, 1, 0.1, 1.0, 1.1, stopped=True))
    assert acceptance.value < 0.2
    kept, cut = Share(), Share()
    kept.observe_round(Round(2, 2, 2, 3, 0.1, 1.0, 1.1))
    cut.observe_round(Round(2, 2, 1, 2, 0.1, 1.0, 1.1, stopped=True))
    assert kept.value > cut.value


def test_costs_are_medians_and_lines_between_them() -> None:
    costs = Costs()
    for seconds in (9.0, 1.0, 1.1, 0.9, 1.0):
        costs.add(1, seconds)
    for seconds in (30.0, 3.0):
        costs.add(5, seconds)
    assert costs.seconds(1) == 1.0
    assert costs.seconds(3) == 2.0
    assert costs.seconds(0) == costs.seconds(1)
    assert costs.count(1) > 0
    assert costs.count(100) == 0
    assert costs.affordable(1, 2.0, 100) == 4  # 5 tokens take 3 seconds, 2 more than one


def test_only_recent_costs_are_kept_for_the_next_run() -> None:
    costs = Costs()
    costs.remember([(1, 1.0), (2, 7.0), (5, 8.0)])
    for _ in range(150):
        costs.add(1, 1.0)
    assert [size for size, _ in costs.recent_points] == [1, 2, 5]
    for _ in range(100):
        costs.add(1, 1.0)
    assert costs.recent_points == [(1, 1.0)]


@pytest.mark.parametrize("seed", range(5))
def test_a_call_of_more_tokens_never_costs_less(seed: int) -> None:
    rng, costs = random.Random(seed), Costs()
    seen = {}
    for call, size in enumerate([1, 2, 3, 5, 9, *rng.choices((1, 2, 3, 5, 9), k=60)]):
        costs.add(size, rng.random() + size / 20)
        seen[size] = call
    sizes, seconds = zip(*costs.points, strict=True)
    weights = [FORGET ** -seen[size] for size in sizes]
    fitted = isotonic_regression(seconds, weights=weights).x
    assert [costs.seconds(size) for size in sizes] == pytest.approx(fitted)
    assert [costs.seconds(n) for n in range(1, 20)] == sorted(costs.seconds(n) for n in range(1, 20))


def test_affordable_tokens_are_known_after_one_size() -> None:
    costs = Costs()
    for _ in range(2):
        costs.add(10, 2.0)
    assert costs.affordable(3, 1.0, 100) == 5
    assert costs.affordable(3, 1e9, 100) == 100
    assert costs.affordable(3, 1e-9, 100) == 1


def test_tokens_whose_cost_is_expected_are_affordable_by_measured_sizes_alone() -> None:
    costs = Costs(lambda tokens: min(tokens, 2))  # reading grows no more, but computing does
    for tokens, seconds in ((1, 1.0), (2, 2.0)):
        for _ in range(2):
            costs.add(tokens, seconds)
    assert costs.seconds(50) == 2.0
    assert costs.affordable(1, 3.0, 100) == 3


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


LOADED = [(1, 0.070), (2, 0.260), (3, 0.292), (4, 0.305), (5, 0.233), (6, 0.275), (7, 0.293), (64, 0.503)]


@pytest.mark.parametrize("acceptance", [0.0, 0.6, 0.8])
def test_costs_that_an_earlier_run_measured_under_load_do_not_last(acceptance: float) -> None:
    """As a run wrote them that shared its cores; alone, five rows take hardly more than one."""
    pair = Pair(acceptance, 0.0005, lambda k: 0.037 + 0.0006 * k)
    auto = KByLoad(MOST)
    auto.score.remember(LOADED)
    auto.draft["model"].remember([(1, 0.0006)])
    auto.pair["model"] = Share.like(Share(0.25, 1.0))
    texts = Texts(auto, pair)
    texts.acceptances = [Share.like(auto.pair["model"])]
    best = max(pair.tokens_per_second(k) for k in range(MOST + 1))
    assert speed(texts.run(256)) >= 0.9 * best
    assert speed(texts.run(1000)) >= 0.95 * best
