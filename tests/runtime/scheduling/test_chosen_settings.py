"""From a request to a strategy: what is asked for, what serves it best where nothing is, and what cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mxspec.evaluate.lossless.drafters import RandomDrafter
from mxspec.formats.errors import GenerationError
from mxspec.runtime import verifiers
from mxspec.runtime.drafters.known import make_drafters
from mxspec.runtime.drafters.suffix import SuffixDrafter
from mxspec.runtime.request import Request
from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.scheduling.chosen_settings import ChosenSettings, choose_settings
from mxspec.runtime.verifiers.measured import ENOUGH, Measured
from mxspec.runtime.verifiers.verify import VERIFIERS

K_MAX = 6


class Model(RandomDrafter):
    """One that has to be asked for its opinion, as a draft model is."""

    name = "model"


def choose(measured: Measured | None = None, *, draft: bool = True, **settings: Any) -> ChosenSettings:
    request = Request(prompt="x", **settings)
    drafters = make_drafters(5, None) | ({"model": Model(5)} if draft else {})
    sampling = Sampling(settings.get("temperature", 0))
    return choose_settings(request, sampling, drafters, K_MAX, measured or Measured(), prompt=[1])


def chosen(**settings: Any) -> tuple[str, Any, str, str]:
    settled = choose(**settings)
    return settled.drafter.name, settled.k, settled.verifier.name, settled.choice.kind


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 1}, ("model", 4, "block", "sampled")),
        ({"temperature": 1, "seed": 3}, ("model", "auto", "match", "sampled")),
        ({"temperature": 1, "seed": 3, "k": "auto"}, ("model", "auto", "match", "sampled")),
        ({"temperature": 1, "seed": 3, "k": 2}, ("model", 2, "block", "sampled")),
        ({"temperature": 1, "k": "auto"}, ("model", "auto", "block", "sampled")),
        ({"temperature": 1, "verifier": "mrs"}, ("model", 4, "mrs", "sampled")),
        ({"temperature": 1, "verifier": "match"}, ("model", "auto", "match", "sampled")),
        ({"temperature": 1, "proposal": "greedy"}, ("model", 4, "mrs", "greedy")),
        ({"temperature": 1, "lenience": 0.5}, ("model", 4, "mrs", "sampled")),
        ({"temperature": 1, "drafter": "none"}, ("none", 0, "match", "sampled")),
        ({"temperature": 1, "draft": False, "seed": 3}, ("suffix", "auto", "match", "sampled")),
        ({"temperature": 1, "drafter": RandomDrafter(5), "k": 3}, ("random", 3, "block", "sampled")),
    ],
)
def test_the_strategy_for_sampled_text(settings: dict[str, Any], expected: tuple[str, Any, str, str]) -> None:
    assert chosen(**settings) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ("none", 0)),
        ({"k": "auto"}, ("none", 0)),
        ({"k": "auto", "drafter": "model"}, ("model", 0)),
        ({"k": 2}, ("model", 2)),
        ({"k": 2, "drafter": "model"}, ("model", 2)),
        ({"k": 0, "drafter": "none"}, ("none", 0)),
    ],
)
def test_a_beam_search_drafts_only_with_an_explicit_k(settings: dict[str, Any], expected: tuple[str, int]) -> None:
    settled = choose(beams=3, **settings)
    assert (settled.drafter.name, settled.k) == expected


def test_every_named_verifier_exists() -> None:
    assert tuple(VERIFIERS) == verifiers.NAMES


def test_greedy_text_drafts_by_cost() -> None:
    assert choose().k == "auto"
    assert choose(k=2).k == 2
    assert choose(lenience=0.5).lossless is False


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 1, "seed": 3, "k": "auto", "verifier": "mrs"}, "k: got auto with a seed and verifier mrs"),
        ({"temperature": 1, "verifier": "mris"}, "verifier: got 'mris', expected auto, mrs, block or match"),
        (
            {"temperature": 1, "lenience": 0.5, "verifier": "block"},
            "lenience: got 0.5, which verifier block does not support",
        ),
        ({"temperature": 1, "lenience": 0}, "lenience: got 0, expected"),
        ({"temperature": 1, "lenience": True}, "lenience: got True, expected"),
        ({"temperature": 1, "proposal": "grabbed"}, "proposal: got 'grabbed', expected sampled or greedy"),
        ({"temperature": 1, "draft_temperature": -1}, "draft_temperature: got -1"),
        ({"temperature": 1, "draft_temperature": 0}, "draft_temperature: got 0"),
        ({"verifier": "mrs"}, "verifier: given at temperature 0"),
        ({"proposal": "greedy"}, "proposal: given at temperature 0"),
        ({"drafter": "modle"}, "drafter: got 'modle', expected .*did you mean 'model'"),
        ({"drafter": "model", "draft": False}, "the bundle holds no draft"),
        ({"drafter": "hierarchical", "draft": False}, "the bundle holds no draft"),
        ({"drafter": "ngram"}, "the bundle holds no n-gram tables; compile it with --ngram TEXT"),
        (
            {"temperature": 1, "seed": 3, "k": 3, "drafter": SuffixDrafter(1 << 16), "verifier": "mrs"},
            "drafter: got suffix with a seed",
        ),
        ({"drafter": "mix"}, "drafter: got 'mix', expected one of model, suffix, ngram, hierarchical"),
        ({"drafter": "none", "k": 3}, "k: got 3, but no drafter proposes"),
        ({"k": 7}, "k: got 7, expected auto, or 0 to 6"),
    ],
)
def test_impossible_settings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        choose(**settings)


def test_the_likeliest_token_is_proposed_if_it_is_accepted_more_often() -> None:
    """p = (.9, .1), q = (.6, .4): drawn from q .7 are kept, its likeliest .9."""
    measured = Measured()
    target, draft = Distribution.of(np.array([0.9, 0.1])), Distribution.of(np.array([0.6, 0.4]))
    assert chosen(measured=measured, temperature=1)[2:] == ("block", "sampled")
    for _ in range(int(2 * ENOUGH)):
        measured.observe(target, draft)
    assert measured.sampled.value == pytest.approx(0.7)
    assert measured.greedy.value == pytest.approx(0.9)
    found = [chosen(measured=measured, temperature=1)[2:] for _ in range(16)]
    assert found.count(("mrs", "greedy")) == 14  # now and then the other is tried
