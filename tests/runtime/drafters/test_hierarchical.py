"""A draft model sped up by suffix decoding proposes what it proposes alone, in fewer calls."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from mxspec.runtime.drafters import hierarchical
from mxspec.runtime.drafters.draft import Draft
from mxspec.runtime.drafters.drafter import Choice, Drafter, Proposal
from mxspec.runtime.drafters.hierarchical import HierarchicalDrafter
from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.events import Round
from mxspec.runtime.models.slots import Slot
from mxspec.runtime.policy.break_even import ALL_WANTED, BreakEven
from mxspec.runtime.sampling.settings import Sampling
from tests.runtime.conftest import make_want

VOCAB, PERIOD = 12, 5
CHOICES = {
    "greedy text": (Choice(), Sampling()),
    "sampled": (Choice(False), Sampling(temperature=0.7, top_k=4)),
    "greedy proposal": (Choice(False, "greedy"), Sampling(temperature=0.7)),
    "matched": (Choice(False, matched=True), Sampling(temperature=0.7)),
}


def copying(text: tuple[int, ...]) -> Any:
    """Mostly goes on with what stood PERIOD tokens before."""
    row = np.random.default_rng([1, *text[-3:]]).standard_normal(VOCAB).astype(np.float32)
    if len(text) >= PERIOD and (len(text) % 7 or text[-1] % 2):
        row[text[-PERIOD]] += 6
    return row


def copied(text: list[int]) -> int:
    return text[-PERIOD] if len(text) >= PERIOD else 7


class Drafting:
    """Some texts, whose rounds keep random parts of what a drafter proposes."""

    def __init__(self, drafter: Drafter, choice: Choice, sampling: Sampling) -> None:
        self.drafter, self.choice, self.sampling = drafter, choice, sampling
        self.texts = [[1, 2, 3, 4, 5, 1, 2, 3], [7, 8]]
        self.slots = [Slot(0), Slot(1)]
        self.memories = [drafter.begin(text, "") for text in self.texts]

    def round(self, ks: list[int], break_even: BreakEven = ALL_WANTED) -> list[Proposal]:
        given: dict[str, Any] = {"sampling": self.sampling, "choice": self.choice, "seed": 3, "break_even": break_even}
        wants = [
            make_want(text, k, vocab_size=VOCAB, slot=slot, memory=memory, **given)
            for text, slot, memory, k in zip(self.texts, self.slots, self.memories, ks, strict=True)
        ]
        self.calls = self.drafter.propose(wants)
        return [want.proposal for want in wants]

    def keep(self, kept: list[list[int]], counts: list[tuple[int, int]]) -> None:
        """Some of what was proposed, and so much of it was drafted and accepted."""
        rounds = zip(self.texts, self.slots, self.memories, kept, counts, strict=True)
        for text, slot, memory, new, (drafted, accepted) in rounds:
            text += new
            slot.rollback(len(text) - 1)
            evaluated = min(accepted + 1, drafted)
            self.drafter.observe(memory, Round(drafted, evaluated, accepted, accepted + 1, 0.0, 0.0, 0.0))


@pytest.mark.parametrize(
    "break_even", [ALL_WANTED, BreakEven(row=0.2, start=0.2, call=0.35)], ids=["all", "worthwhile"]
)
@pytest.mark.parametrize("name", CHOICES)
def test_it_proposes_the_same_as_the_model_alone(
    toys: Any, name: str, break_even: BreakEven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it stops where the model stops, which asks distributions alone: by a token drawn, the text would be biased."""
    monkeypatch.setattr(hierarchical, "break_even_of_row", lambda costs, texts: 0.1)  # not by the clock
    choice, sampling = CHOICES[name]
    alone, sped = (toys.Session(copying, capacity=300, slots=2) for _ in range(2))
    model = Drafting(ModelDrafter(Draft(alone)), choice, sampling)
    both = Drafting(HierarchicalDrafter(Draft(sped)), choice, sampling)
    rng, lengths, wished = random.Random(2), list[int](), list[int]()
    for _ in range(30):
        ks = [rng.randrange(0, 6), rng.randrange(1, 6)]
        wished += ks
        expected, proposals = model.round(ks, break_even), both.round(ks, break_even)
        kept, counts = [], []
        for mine, theirs in zip(proposals, expected, strict=True):
            assert mine.tokens == theirs.tokens
            for ours, reference in zip(mine.distributions, theirs.distributions, strict=True):
                np.testing.assert_array_equal(ours.weights, reference.weights)
            accepted = mine.tokens[: rng.randrange(len(mine.tokens) + 1)]
            counts.append((len(mine.tokens), len(accepted)))
            lengths.append(len(mine.tokens))
            kept.append([*accepted, copied(both.texts[len(kept)] + accepted)])
        assert len(both.calls) == len(model.calls)
        for drafting in (model, both):
            drafting.keep(kept, counts)
    assert len(sped.calls) < 0.8 * len(alone.calls)
    assert (sum(lengths) == sum(wished)) == break_even.all_wanted


def test_the_last_token_proposed_may_lie_one_beyond_the_cache(toys: Any) -> None:
    session = toys.Session(lambda text: np.eye(VOCAB, dtype=np.float32)[1], capacity=12, slots=2)
    drafting = Drafting(HierarchicalDrafter(Draft(session)), Choice(), Sampling())
    drafting.texts = [[1] * 8, [1] * 3]
    assert [len(proposal.tokens) for proposal in drafting.round([5, 8])] == [5, 8]
    assert len(session.calls) < 5
