"""Tables of n-grams against counting in plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mxspec.compile.guesses import count_ngrams
from mxspec.runtime.drafters.ngram import MOST_FOLLOWING, NgramTables

VOCAB = 200


def followers(tokens: list[int]) -> dict[tuple[int, ...], Counter[int]]:
    """How often what followed every one, two and no tokens."""
    found: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for place, token in enumerate(tokens):
        for order in range(min(place, 2) + 1):
            found[tuple(tokens[place - order : place])][token] += 1
    return found


def tables(tokens: list[int]) -> tuple[NgramTables, dict[str, NDArray[Any]]]:
    arrays = count_ngrams(np.array(tokens, np.int32), VOCAB)
    return NgramTables(arrays, VOCAB), arrays


@pytest.mark.parametrize("vocab", [3, 8, 60])
def test_the_following_tokens_are_those_counted(vocab: int) -> None:
    tokens = np.random.default_rng(vocab).integers(0, vocab, 500).tolist()
    made, _ = tables(tokens)
    expected = followers(tokens)
    for context in [*expected, (vocab, 0), (0, vocab), (vocab, vocab), (vocab,)]:
        longest = next(context[-n:] if n else () for n in (2, 1, 0) if (context[-n:] if n else ()) in expected)
        found = made.after(context)
        assert found is not None
        order, distribution = found
        assert order == len(longest)
        assert distribution.ids is not None
        assert dict(zip(distribution.ids.tolist(), distribution.weights.tolist(), strict=True)) == expected[longest]
        assert (np.diff(distribution.ids) > 0).all()


def test_the_most_frequent_are_kept() -> None:
    """Token 0 is followed by 100 different tokens, the later ones twice."""
    tokens = [token for other in range(1, 101) for token in (0, other) * (1 + (other > 50))]
    found = tables(tokens)[0].after([0])
    assert found is not None
    ids = found[1].ids
    assert ids is not None
    assert len(ids) == MOST_FOLLOWING
    assert set(range(51, 101)) <= set(ids.tolist())


@pytest.mark.parametrize("tokens", [[], [5], [5, 6]])
def test_texts_of_hardly_any_tokens(tokens: list[int]) -> None:
    found = tables(tokens)[0].after([5, 6])
    assert (found is None) == (not tokens)
