"""Suffix decoding: what it proposes, how far, and what it learns from whom."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mxspec.formats.errors import BundleError
from mxspec.runtime.drafters.drafter import Drafter, Proposal
from mxspec.runtime.drafters.suffix import SuffixDrafter
from mxspec.runtime.drafters.suffixes.suffix_automaton import BREAK, BYTES_PER_TOKEN, PastAnswers
from mxspec.runtime.drafters.suffixes.suffix_corpus import SuffixCorpus, suffix_order
from mxspec.runtime.policy.break_even import BreakEven
from mxspec.runtime.sampling.settings import Sampling
from tests.runtime.conftest import make_want

VOCAB = 100
SAID = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4]  # goes on with 5, 6, …


class Text:
    """A text that a drafter guesses at."""

    def __init__(self, drafter: Drafter, tokens: Sequence[int], cache_key: str = "", greedy: bool = True) -> None:
        self.drafter, self.tokens = drafter, list(tokens)
        self.memory = drafter.begin(self.tokens, cache_key)
        self.sampling = Sampling() if greedy else Sampling(temperature=1.0, seed=1)

    def propose(self, k: int, break_even: float = 0.0, ahead: Sequence[int] = ()) -> Proposal:
        proposal = Proposal(list(ahead), ["grammar"] * len(ahead))
        given = {"sampling": self.sampling, "memory": self.memory, "break_even": BreakEven(row=break_even)}
        want = make_want(self.tokens, k, vocab_size=VOCAB, proposal=proposal, **given)  # type: ignore[arg-type]
        assert self.drafter.propose([want]) == []
        return proposal

    def guess(self, k: int, break_even: float = 0.0, ahead: Sequence[int] = ()) -> list[int]:
        return self.propose(k, break_even, ahead).tokens[len(ahead) :]

    def end(self) -> None:
        self.drafter.end(self.memory, self.tokens)


@pytest.fixture
def drafter() -> SuffixDrafter:
    return SuffixDrafter()


def test_the_tokens_that_followed_before_are_proposed(drafter: Drafter) -> None:
    proposal = Text(drafter, SAID, greedy=False).propose(4)
    assert proposal.tokens == [5, 6, 7, 8]
    assert proposal.origins == [drafter.name] * 4
    assert [d.probability(token) for d, token in zip(proposal.distributions, proposal.tokens, strict=True)] == [1] * 4


def test_nothing_is_proposed_after_unknown_tokens(drafter: Drafter) -> None:
    assert Text(drafter, [1, 2, 3, 4]).guess(4) == []
    assert Text(drafter, [1]).guess(4) == []


def test_tokens_that_a_grammar_forces_come_first(drafter: Drafter) -> None:
    assert Text(drafter, SAID).guess(3, ahead=[5, 6]) == [7, 8, 9]
    assert Text(drafter, SAID).guess(3, ahead=[6]) == [7, 8, 9]
    assert Text(drafter, SAID).guess(3, ahead=[99]) == []


def test_a_text_may_grow_in_any_pieces(drafter: Drafter) -> None:
    text = Text(drafter, SAID[:3])
    for token in SAID[3:]:
        text.guess(2)
        text.tokens.append(token)
    assert text.guess(4) == [5, 6, 7, 8]


def test_guesses_that_are_never_accepted_are_proposed_no_longer(drafter: Drafter) -> None:
    """After 1 always comes another token; a fixed K proposes all the same."""
    text = Text(drafter, [token for other in range(2, 62) for token in (1, other)] + [1])
    assert text.guess(4, break_even=0.05) == []
    assert len(Text(drafter, [1, 2, 3, 1]).guess(4, break_even=0.05)) == 1  # nothing is known of it yet
    assert len(text.guess(4)) == 4


def test_a_longer_match_is_trusted_with_more() -> None:
    short = Text(SuffixDrafter(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 1]).guess(8, break_even=0.25)
    middle = Text(SuffixDrafter(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]).guess(8, break_even=0.25)
    long = Text(SuffixDrafter(), [*range(1, 30), *range(1, 20)]).guess(8, break_even=0.25)
    assert len(short) < len(middle) < len(long) == 8


def test_a_seeds_text_is_not_touched_by_other_texts() -> None:
    assert SuffixDrafter().repeatable
    assert not SuffixDrafter(shared_bytes=1 << 20).repeatable


def test_past_answers_are_guessed_only_by_texts_with_their_key() -> None:
    drafter = SuffixDrafter(shared_bytes=1 << 20)
    first = Text(drafter, [50, 51], cache_key="a")
    first.tokens += [1, 2, 3, 4, 5]
    first.end()
    assert Text(drafter, [60, 1, 2], cache_key="a").guess(8) == [3, 4, 5]
    assert Text(drafter, [60, 1, 2], cache_key="b").guess(8) == []
    assert Text(drafter, [60, 50], cache_key="a").guess(8) == []  # a prompt is not an answer
    alone = Text(SuffixDrafter(), [50, 51])
    alone.tokens += [1, 2, 3]
    alone.end()
    assert Text(alone.drafter, [60, 1, 2]).guess(8) == []


def test_an_answer_that_comes_while_a_text_is_written_serves_it() -> None:
    drafter = SuffixDrafter(shared_bytes=1 << 20)
    text, other = Text(drafter, [60, 1, 2]), Text(drafter, [50])
    assert text.guess(4) == []
    other.tokens += [1, 2, 3, 4]
    other.end()
    assert text.guess(4) == [3, 4]
    text.tokens += [3]
    assert text.guess(4) == [4]


def test_two_generations_stay_within_the_bound() -> None:
    past = PastAnswers(40 * BYTES_PER_TOKEN)  # 20 tokens a generation
    for answer in range(10):
        past.add([answer] * 7, "key")
        kept = [automaton.tokens for automaton in past.of("key")]
        assert sum(map(len, kept)) <= 40
        assert len(kept[0]) <= 20
        assert kept[0][-8:] == [answer] * 7 + [BREAK]
    past.add(range(100), "key")  # longer than a generation: its end is kept
    assert past.of("key")[0].tokens == [*range(81, 100), BREAK]
    PastAnswers(1).add([1, 2], "key")


def corpus(tokens: Sequence[int]) -> SuffixCorpus:
    ids = np.array(tokens, np.int32)
    return SuffixCorpus.of({"tokens": ids, "ends": suffix_order(ids)}, VOCAB)


@pytest.mark.parametrize("seed", range(30))
def test_the_longest_match_of_a_corpus_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 3, rng.integers(1, 150)).tolist()
    found = corpus(tokens)
    for _ in range(20):
        text = rng.integers(0, 4, rng.integers(0, 10)).tolist()
        fits = [
            n for n in range(len(text) + 1) for e in range(n, len(tokens)) if tokens[e - n : e] == text[len(text) - n :]
        ]
        matched, following = found.continuation(text, 3)
        assert matched == max(fits)
        if matched:
            places = [e for e in range(matched, len(tokens)) if tokens[e - matched : e] == text[-matched:]]
            assert following in [tokens[e : e + 3] for e in places]


def test_a_repetitive_corpus_is_ordered_soon() -> None:
    ids = np.zeros(50_000, np.int32)
    assert sorted(suffix_order(ids).tolist()) == list(range(50_000))
    assert corpus(ids.tolist()).continuation([0] * 10, 2) == (10, [0, 0])


def test_a_corpus_serves_where_the_text_itself_has_no_more() -> None:
    drafter = SuffixDrafter(corpus=corpus([1, 2, 3, 4, 5, 6]))
    assert Text(drafter, [60, 61, 2, 3]).guess(2) == [4, 5]
    own = [2, 3, 4, 5, 9, 61, 2, 3, 4, 5]
    assert Text(drafter, own).guess(1) == [9]


def test_an_invalid_corpus_is_refused() -> None:
    ids = np.arange(3, dtype=np.int32)
    with pytest.raises(BundleError, match="expected tokens"):
        SuffixCorpus.of({"tokens": ids}, VOCAB)
    with pytest.raises(BundleError, match="expected tokens"):
        SuffixCorpus.of({"tokens": ids, "ends": ids[:2]}, VOCAB)
    damaged = SuffixCorpus.of({"tokens": ids, "ends": ids}, 2)  # seen where it is met: a large one is not read through
    with pytest.raises(BundleError, match="corpus: token 2, but the vocabulary has 2"):
        damaged.continuation([1], 2)
    lost = {"tokens": ids, "ends": np.array([-9, 99, 7], np.int32)}
    assert SuffixCorpus.of(lost, VOCAB).continuation([1], 2)[0] <= 1  # whatever it says
