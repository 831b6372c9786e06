"""A sequence's choices: what a look-ahead does, what is refused by name, and that the model's rows stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mxspec.formats.errors import GenerationError
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shape import shape
from mxspec.runtime.sampling.shaper import Shaper, prepare

VOCAB = 50
RNG = np.random.default_rng(5)
ALL: dict[str, Any] = {
    "logit_bias": {3: 1.5, 8: -np.inf},
    "repetition_penalty": 1.2,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "no_repeat_ngram_size": 2,
}


def row() -> np.ndarray[Any, np.dtype[np.float32]]:
    return (2 * RNG.standard_normal(VOCAB)).astype(np.float32)


def shaper(sampling: Sampling, prompt: list[int] | None = None, shortest: int = 0) -> Shaper:
    return Shaper(sampling, prompt or [], vocab_size=VOCAB, eos=(0, 1, VOCAB + 3), min_new_tokens=shortest)


def test_a_look_ahead_counts_as_if_it_were_kept() -> None:
    """Random look-aheads, asked for in any order and given up again, against a shaper that was fed each text anew."""
    sampling = Sampling(0.8, top_k=30, **ALL)
    prompt = RNG.integers(0, VOCAB, 20).tolist()
    text: list[int] = []
    one = shaper(sampling, prompt, shortest=25)
    for _ in range(60):
        ahead = RNG.integers(0, VOCAB, RNG.integers(0, 6)).tolist()
        for _ in range(4):
            part = ahead[: RNG.integers(0, len(ahead) + 1)]
            logits = row()
            fresh = shaper(sampling, prompt, shortest=25)
            fresh.keep(text + part)
            np.testing.assert_array_equal(one.process(logits, part), fresh.process(logits))
            got, want = one.distribution(logits, part), fresh.distribution(logits)
            np.testing.assert_array_equal(got.probabilities(None, VOCAB), want.probabilities(None, VOCAB))
            assert one.greedy(logits, part) == fresh.greedy(logits) == int(fresh.process(logits).argmax())
        kept = [*ahead[: RNG.integers(0, len(ahead) + 1)], int(RNG.integers(0, VOCAB))]
        one.keep(kept)
        text += kept


def test_penalties_by_hand() -> None:
    logits = np.array([2, -2, 1, 1, 0, 4] + [0] * 44, np.float32)
    one = shaper(Sampling(repetition_penalty=2, presence_penalty=0.5, frequency_penalty=0.25), prompt=[0, 1])
    one.keep([2, 2, 3])
    #                       prompt: /2, x2; text: /2 - 0.5 - 2 x 0.25, /2 - 0.5 - 0.25; ahead: /2 - 0.75
    assert list(one.process(logits, [5])[:6]) == [1, -4, -0.5, -0.25, 0, 1.25]
    assert list(one.process(logits)[:6]) == [1, -4, -0.5, -0.25, 0, 4]


def test_a_sequence_of_tokens_comes_once() -> None:
    one = shaper(Sampling(no_repeat_ngram_size=2), prompt=[7, 8, 7])
    logits = np.arange(VOCAB, 0, -1, dtype=np.float32)
    assert np.flatnonzero(one.process(logits) == -np.inf).tolist() == [8]
    assert np.flatnonzero(one.process(logits, [9, 7]) == -np.inf).tolist() == [8, 9]
    assert not one.allows(9, [9, 7])
    assert one.allows(9, [7])
    one.keep([9, 7])
    assert np.flatnonzero(one.process(logits) == -np.inf).tolist() == [8, 9]
    assert not one.plain


def test_rows_of_the_model_are_never_written() -> None:
    logits = row()
    logits.flags.writeable = False
    one = shaper(Sampling(0.7, top_p=0.9, **ALL), [4, 1, 2, 3], shortest=2)
    one.process(logits, [4])
    one.distribution(logits, [4])
    one.greedy(logits, [4])


def test_plain_rows_pass_through() -> None:
    logits = row()
    assert shaper(Sampling()).plain
    assert shaper(Sampling()).process(logits) is logits
    assert not any(shaper(Sampling(**{name: value})).plain for name, value in ALL.items())
    got, want = shaper(Sampling(0.5, 9)).distribution(logits), shape(logits, Sampling(0.5, 9))
    np.testing.assert_array_equal(got.weights, want.weights)


def test_no_end_before_the_minimum_length() -> None:
    logits = np.zeros(VOCAB, np.float32)
    one = shaper(Sampling(), shortest=3)
    assert not one.plain
    assert one.greedy(logits) == one.greedy(logits, [5, 5]) == 2
    assert one.greedy(logits, [5, 5, 5]) == 0
    one.keep([4, 4])
    assert one.greedy(logits) == 2
    one.keep([4])
    assert one.plain
    assert one.greedy(logits) == 0


@pytest.mark.parametrize(
    ("name", "settings", "shortest"),
    [
        ("logit_bias", {"logit_bias": {0: -np.inf, 1: -np.inf}}, 9),
        ("min_new_tokens", {}, 9),
        ("no_repeat_ngram_size", {"no_repeat_ngram_size": 1, "logit_bias": {1: -np.inf}}, 0),
        ("min_new_tokens", {"repetition_penalty": 2.0, "logit_bias": {0: -np.inf}}, 9),
    ],
)
def test_the_error_says_why_no_token_is_left(name: str, settings: dict[str, Any], shortest: int) -> None:
    logits = np.full(VOCAB, -np.inf, np.float32)
    logits[[0, 1]] = 0
    for temperature in (0, 1):
        one = shaper(Sampling(temperature, **settings), shortest=shortest)
        one.keep([4])
        with pytest.raises(GenerationError, match=f"^{name}: leaves no token at position 2 "):
            one.distribution(logits, [0]) if temperature else one.greedy(logits, [0])


@pytest.mark.parametrize("settings", [{}, ALL])
@pytest.mark.parametrize("bad", [np.nan, np.inf, "row"])
def test_bad_logits_are_errors_whatever_is_set(settings: dict[str, Any], bad: Any) -> None:
    logits = np.full(VOCAB, -np.inf, np.float32) if bad == "row" else row()
    if bad != "row":
        logits[13] = bad
    with pytest.raises(GenerationError, match="NaN or infinity"):
        shaper(Sampling(1.0, **settings)).distribution(logits)
    with pytest.raises(GenerationError, match="NaN or infinity"):
        shaper(Sampling(**settings)).greedy(logits)


def test_a_bias_beyond_the_vocabulary_is_an_error() -> None:
    with pytest.raises(GenerationError, match=r"logit_bias: got token 50, expected ids from 0 to 49"):
        shaper(Sampling(logit_bias={4: 1, 50: 1}))


def test_without_a_grammar_nothing_is_forced_or_complete() -> None:
    one = shaper(Sampling())
    prepare([(one, [1, 2])])
    assert one.forced([1]) == []
    assert not one.complete
