"""Sampled text has the target's distribution: joint sequences of whole generations against exact enumeration.

A G-test over all sequences of four tokens. A right verifier fails it once in a million seeds; the seeds are fixed, so
it passes always or never. Each broken verifier that is known from the wild must fail it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from mxspec.runtime import sequence
from mxspec.runtime.drafters import model
from mxspec.runtime.drafters.drafter import Wanted
from mxspec.runtime.events import Token
from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shape import shape
from mxspec.runtime.verifiers import mrs
from mxspec.runtime.verifiers.verdict import Verdict

VOCAB, LENGTH, PROMPT = 4, 4, [1, 2]
SAMPLES = 2500
FALSE_ALARM = 1e-6
Probs = NDArray[np.float64]
Logits = Callable[[tuple[int, ...]], NDArray[np.float32]]


def exact(logits: Logits, temperature: float, top_k: int) -> dict[tuple[int, ...], float]:
    """Probability of every sequence, by plain float64 code."""

    def row(text: tuple[int, ...]) -> Probs:
        values = logits(text).astype(np.float64) / temperature
        weights = np.exp(values) * (values >= np.sort(values)[-top_k])
        return weights / weights.sum()

    joint = {}
    for text in itertools.product(range(VOCAB), repeat=LENGTH):
        steps = [row((*PROMPT, *text[:i]))[text[i]] for i in range(LENGTH)]
        joint[text] = float(np.prod(steps))
    return joint


def surprise(toys: Any, k: int, samples: int = SAMPLES) -> float:
    """The probability of a G statistic as large as that of `samples` generations; 0 if an impossible one came up."""
    settings = {"temperature": 0.7, "top_k": 3}
    target_logits, draft_logits = toys.random_logits(VOCAB, 1), toys.random_logits(VOCAB, 2)
    target, draft = toys.Session(target_logits), toys.Session(draft_logits)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(samples):
        limit = LENGTH + k + 1  # so that no round is cut short
        events = toys.generate(target, draft, PROMPT, k=k, max_new_tokens=limit, seed=seed, **settings)
        tokens = (event.id for event in events if isinstance(event, Token))
        counts[tuple(itertools.islice(tokens, LENGTH))] += 1
    expected = exact(target_logits, **settings)  # type: ignore[arg-type]
    possible = {sequence: samples * p for sequence, p in expected.items() if p > 0}
    if counts.keys() - possible.keys():
        return 0.0
    # Cells of fewer than five expected are joined to one: the chi-square law holds for cells that are not thin.
    cells = [(counts[s], e) for s, e in possible.items() if e >= 5]
    thin = [(counts[s], e) for s, e in possible.items() if e < 5]
    cells.append((sum(n for n, _ in thin), sum(e for _, e in thin)))
    statistic = 2 * sum(n * np.log(n / e) for n, e in cells if n)
    return float(chi2.sf(statistic, len(cells) - 1))


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_generations_have_the_targets_distribution(toys: Any, k: int) -> None:
    assert surprise(toys, k) > FALSE_ALARM


def test_residual_without_subtraction_is_caught(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mrs, "residual", lambda target, draft: target)
    assert surprise(toys, 2) < FALSE_ALARM


def test_acceptance_with_the_wrong_tokens_probability_is_caught(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def keeps(target: Distribution, draft: Distribution, token: int, uniform: float) -> bool:
        return uniform * draft.probability(token) < target.probability((token + 1) % VOCAB)

    monkeypatch.setattr(mrs, "keeps", keeps)
    assert surprise(toys, 2) < FALSE_ALARM


def test_a_bonus_token_drawn_one_position_late_is_caught(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bonus comes from the row that judged the last drafted token, as one well-known engine has it."""
    right = mrs.verify_mrs

    def verify_mrs(
        target: Callable[[int], Distribution],
        draft: Sequence[Distribution],
        drafted: Sequence[int],
        accept_uniform: Callable[[int], float],
        sample_uniform: Callable[[int], float],
    ) -> Verdict:
        verdict = right(target, draft, drafted, accept_uniform, sample_uniform)
        if drafted and verdict.accepted == len(drafted):
            late = target(len(drafted) - 1).draw(sample_uniform(len(drafted)))
            return Verdict(verdict.accepted, verdict.evaluated, late)
        return verdict

    monkeypatch.setattr(sequence, "verify_mrs", verify_mrs)
    assert surprise(toys, 2) < FALSE_ALARM


def test_an_unprocessed_draft_distribution_is_caught(toys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft's token is drawn from the shaped distribution and judged by the plain softmax."""
    right = mrs.verify_mrs
    plain: list[Distribution] = []
    add_choice = model._add_choice

    def add_choice_and_note(want: Wanted, row: NDArray[np.float32]) -> None:
        plain.append(shape(row, Sampling(1.0)))
        add_choice(want, row)

    def verify_mrs(target: Any, draft: Sequence[Distribution], drafted: Sequence[int], *rest: Any) -> Verdict:
        unprocessed = plain[len(plain) - len(draft) :]
        return right(target, unprocessed, drafted, *rest)

    monkeypatch.setattr(model, "_add_choice", add_choice_and_note)
    monkeypatch.setattr(sequence, "verify_mrs", verify_mrs)
    assert surprise(toys, 2) < FALSE_ALARM
