"""Sampled text has the target's distribution: joint sequences of whole generations against exact enumeration.

A chi-square test over all sequences of four tokens, which one scheduler writes, 32 at a time. A right verifier fails it
once in a million seeds; the seeds are fixed, so it passes always or never. Each broken verifier that is known from the
wild must fail it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from mxspec.compile.guesses import count_ngrams
from mxspec.evaluate.lossless.drafters import RandomDrafter
from mxspec.runtime.drafters.draft import Draft
from mxspec.runtime.drafters.drafter import Drafter
from mxspec.runtime.drafters.known import make_drafters
from mxspec.runtime.drafters.ngram import NgramTables
from mxspec.runtime.drafters.suffixes.suffix_corpus import SuffixCorpus, suffix_order
from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.verifiers import verify
from mxspec.runtime.verifiers.verify import VERIFIERS
from tests.broken import unprocessed_draft
from tests.runtime.verifiers import exact
from tests.runtime.verifiers.conftest import CountTexts
from tests.runtime.verifiers.exact import Logits, text_probabilities

VOCAB, LENGTH, PROMPT = 4, 4, [1, 2]
SAMPLES = 2500
FALSE_ALARM = 1e-6
MonkeyPatch = pytest.MonkeyPatch
Surprise = Callable[..., float]


def without(token: int, logits: Logits) -> Logits:
    """The same, but that this token cannot be."""
    forbidden = np.where(np.arange(VOCAB) == token, -np.inf, 0).astype(np.float32)
    return lambda text: logits(text) + forbidden


def surprise_of(
    toys: Any,
    count_texts: CountTexts,
    k: int,
    samples: int = SAMPLES,
    make: Callable[[Any], Drafter] | None = None,
    barred: int | None = None,
    **how: Any,
) -> float:
    """The p-value of the counts of `samples` generations; 0 if an impossible one came up."""
    target, draft = toys.random_logits(VOCAB, 1), toys.random_logits(VOCAB, 2)
    settings: dict[str, Any] = {"temperature": 0.7, "top_k": 3}
    if barred is not None:
        how |= {"eos": [barred], "min_new_tokens": LENGTH + k + 1}
    counts = count_texts(target, draft, PROMPT, LENGTH, range(samples), k=k, make=make, **settings, **how)
    possible = target if barred is None else without(barred, target)
    return exact.surprise(counts, samples * text_probabilities(possible, PROMPT, Sampling(**settings), LENGTH))


@pytest.fixture
def surprise(toys: Any, count_texts: CountTexts) -> Surprise:
    """`surprise_of` of the toys."""
    return partial(surprise_of, toys, count_texts)


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_generations_have_the_targets_distribution(surprise: Surprise, k: int) -> None:
    assert surprise(k) > FALSE_ALARM


@pytest.mark.parametrize(
    ("verifier", "proposal"), [("mrs", "greedy"), ("block", "sampled"), ("block", "greedy"), ("match", "sampled")]
)
def test_so_they_have_by_every_verifier_and_proposal(surprise: Surprise, verifier: str, proposal: str) -> None:
    assert surprise(3, verifier=verifier, proposal=proposal) > FALSE_ALARM


def drafter_of(name: str, draft: Any) -> Drafter:
    text = np.random.default_rng(1).integers(0, VOCAB, 60).astype(np.int32)
    corpus = SuffixCorpus.of({"tokens": text, "ends": suffix_order(text)}, VOCAB)
    ngrams = NgramTables(count_ngrams(text, VOCAB), VOCAB)
    known = make_drafters(VOCAB, Draft(draft), 1 << 16, corpus, ngrams)
    return (known | {"random": RandomDrafter(VOCAB)})[name]


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("name", ["suffix", "ngram", "hierarchical", "random"])
def test_so_they_have_by_every_drafter_and_verifier(surprise: Surprise, name: str, verifier: str) -> None:
    assert surprise(3, 500, partial(drafter_of, name), verifier=verifier) > FALSE_ALARM


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("name", ["ngram", "random", "suffix"])
def test_text_is_the_targets_if_a_drawn_token_is_impossible(surprise: Surprise, name: str, verifier: str) -> None:
    """A place that is not drafted because of the token that was drawn there would bias the text."""
    assert surprise(2, 1500, partial(drafter_of, name), barred=3, verifier=verifier) > FALSE_ALARM


def test_lenience_is_caught(surprise: Surprise) -> None:
    assert surprise(2, lenience=0.3) < FALSE_ALARM


def test_residual_without_subtraction_is_caught(surprise: Surprise, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "residual", lambda target, draft: target)
    assert surprise(2) < FALSE_ALARM


def test_acceptance_with_the_wrong_tokens_probability_is_caught(surprise: Surprise, monkeypatch: MonkeyPatch) -> None:
    def keeps(target: Distribution, draft: Distribution, token: int, uniform: float) -> bool:
        return uniform * draft.probability(token) < target.probability((token + 1) % VOCAB)

    monkeypatch.setattr(verify, "keeps", keeps)
    assert surprise(2) < FALSE_ALARM


def test_an_unprocessed_draft_distribution_is_caught(surprise: Surprise, monkeypatch: MonkeyPatch) -> None:
    unprocessed_draft(monkeypatch)
    assert surprise(2) < FALSE_ALARM
