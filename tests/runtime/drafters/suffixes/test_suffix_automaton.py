"""The automaton against a search through the whole text."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from mxspec.runtime.drafters.suffixes.suffix_automaton import BREAK, Match, SuffixAutomaton


def longest_earlier(text: Sequence[int], context: Sequence[int], before: int) -> tuple[int, int]:
    """Length of the context's longest ending in the text that ends at `before` or earlier, and the latest such end."""
    for length in range(len(context), 0, -1):
        ends = [end for end in range(length, before + 1) if text[end - length : end] == context[-length:]]
        if ends:
            return length, max(ends)
    return 0, 0


def random_text(rng: random.Random, length: int) -> list[int]:
    vocab = rng.choice([2, 3, 5])
    return [rng.randrange(vocab) for _ in range(length)]


def automaton(text: Sequence[int]) -> SuffixAutomaton:
    made = SuffixAutomaton()
    made.extend(text)
    return made


@pytest.mark.parametrize("seed", range(200))
def test_the_longest_earlier_match_and_its_latest_place(seed: int) -> None:
    rng = random.Random(seed)
    text = random_text(rng, rng.randrange(1, 30))
    made = automaton(text)
    match = made.repeated
    length, end = longest_earlier(text, text, len(text) - 1)
    assert match.length == length
    if length:
        assert made.end(match) == end
        assert made.predict() == (length, text[end])
    else:
        assert made.predict() == (0, BREAK)


@pytest.mark.parametrize("seed", range(200))
def test_a_match_continues_over_guessed_tokens(seed: int) -> None:
    """Also while the automaton grows: as a text of its own beside it."""
    rng = random.Random(seed)
    made, match, context = SuffixAutomaton(), Match(), list[int]()
    for _ in range(6):
        made.extend(random_text(rng, rng.randrange(4)))
        for token in random_text(rng, rng.randrange(1, 4)):
            made.advance(match, token)
            context.append(token)
        length, _ = longest_earlier(made.tokens, context, len(made.tokens))
        assert match.length <= length  # what the automaton got after the match was begun may be missed,
        if match.length:
            end = made.end(match)  # but what is found stands there
            assert made.tokens[end - match.length : end] == context[-match.length :]


def test_the_match_of_an_unchanged_text_is_the_longest() -> None:
    rng = random.Random(1)
    for _ in range(100):
        made, match = automaton(random_text(rng, 25)), Match()
        context = random_text(rng, 8)
        for token in context:
            made.advance(match, token)
        assert match.length == longest_earlier(made.tokens, context, len(made.tokens))[0]


def test_a_match_has_the_latest_place_that_the_automaton_has_got_since() -> None:
    made, match = automaton([1, 2, 3, 4]), Match()
    made.advance(match, 3)
    assert made.continuation(match, [], 1) == [4]
    made.extend([9, 3, 5])
    assert made.continuation(match, [], 1) == [5]


def test_a_continuation_that_reaches_the_end_repeats() -> None:
    made = automaton([7, 1, 2, 3, 1, 2, 3])
    assert made.continuation(made.repeated, [], 7) == [1, 2, 3, 1, 2, 3, 1]


def test_a_continuation_ends_at_a_break() -> None:
    made, match = automaton([1, 2, 3, BREAK, 4, 5]), Match()
    made.advance(match, 2)
    assert made.continuation(match, [], 7) == [3]
    assert made.continuation(Match(), [], 7) == []


def test_a_text_of_one_token_over_and_over_costs_little() -> None:
    made = automaton([1] * 5000)
    assert made.repeated.length == 4999
    assert made.continuation(made.repeated, [], 3) == [1, 1, 1]
