"""Processors and cuts against those of transformers, on float64 tensors, in our order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shaper import Shaper

VOCAB, EOS = 300, (0, 7)


def expected(
    logits: np.ndarray[Any, Any], sampling: Sampling, prompt: list[int], text: list[int], shortest: int
) -> Any:
    """float64[vocab] probabilities: transformers, and OpenAI's formula for presence and frequency."""
    ids = torch.tensor([prompt + text])
    scores = torch.from_numpy(logits).double()[None]
    if sampling.logit_bias:
        scores = hf.SequenceBiasLogitsProcessor({(i,): b for i, b in sampling.logit_bias.items()})(ids, scores)
    if sampling.repetition_penalty != 1:
        scores = hf.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)(ids, scores)
    if sampling.no_repeat_ngram_size:
        scores = hf.NoRepeatNGramLogitsProcessor(sampling.no_repeat_ngram_size)(ids, scores)
    for token in range(VOCAB):
        count = text.count(token)
        scores[0, token] -= count * sampling.frequency_penalty + (count > 0) * sampling.presence_penalty
    if shortest:
        minimum = hf.MinNewTokensLengthLogitsProcessor(len(prompt), shortest, list(EOS), device="cpu")
        scores = minimum(ids, scores)
    scores = hf.TemperatureLogitsWarper(sampling.temperature)(ids, scores)
    if sampling.top_k:
        scores = hf.TopKLogitsWarper(sampling.top_k)(ids, scores)
    if sampling.top_p < 1:
        scores = hf.TopPLogitsWarper(sampling.top_p)(ids, scores)
    if sampling.min_p:
        scores = hf.MinPLogitsWarper(sampling.min_p)(ids, scores)
    if sampling.typical_p < 1:
        scores = hf.TypicalLogitsWarper(sampling.typical_p)(ids, scores)
    return scores.softmax(-1)[0].numpy()


SETTINGS: list[dict[str, Any]] = [
    {"logit_bias": {5: 4.0, 9: -100.0}},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"presence_penalty": 0.7, "frequency_penalty": 0.4},
    {"presence_penalty": -1, "frequency_penalty": -0.3},
    *({"no_repeat_ngram_size": size} for size in (1, 2, 3, 50)),
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.2},
    {"top_k": 20},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"typical_p": 0.6},
    {"top_k": 120, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.9},
    {
        "logit_bias": {3: 2, 4: -2},
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.1,
        "top_k": 100,
        "top_p": 0.95,
    },
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_every_position_of_a_look_ahead_equals_transformers(settings: dict[str, Any], temperature: float) -> None:
    rng = np.random.default_rng(len(str(settings)))
    prompt, text, ahead = (rng.integers(0, 40, size).tolist() for size in (30, 12, 5))
    sampling = Sampling(temperature, **settings)
    shaper = Shaper(sampling, prompt, vocab_size=VOCAB, eos=EOS, min_new_tokens=15)
    shaper.keep(text)
    for length in (0, 1, 5, 3, 2, 4):  # the draft asks in order, the target again
        logits = (3 * rng.standard_normal(VOCAB)).astype(np.float32)
        got = shaper.distribution(logits, ahead[:length]).probabilities(None, VOCAB)
        want = expected(logits, sampling, prompt, text + ahead[:length], 15)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-12)
