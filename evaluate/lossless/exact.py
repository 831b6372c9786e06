"""The probability of every short text, by plain float64 code that shares nothing with the engine's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from mxspec.evaluate.lossless.table import PROMPT, WORDS, Table
from mxspec.evaluate.significance import Probs
from mxspec.runtime.sampling.settings import Sampling

def text_probabilities(table: Table, sampling: Sampling, length: int) -> Probs:
    """float64[WORDS ** length], texts in the order of their numbers."""
    known: dict[tuple[int, ...], Probs] = {}

    def row(text: tuple[int, ...]) -> Probs:
        if text not in known:
            known[text] = next_word(table, sampling, text)
        return known[text]

    found = np.ones(WORDS**length)
    for number, text in enumerate(itertools.product(range(WORDS), repeat=length)):
        for i, word in enumerate(text):
            found[number] *= row(text[:i])[word]
    return found

def next_word(table: Table, sampling: Sampling, text: Sequence[int]) -> Probs:
    """What follows a text, by the definitions of docs/engine.md: bias, penalties, temperature, top-k, top-p."""
    values = _penalised(table.after(list(text)).astype(np.float64), sampling, text) / sampling.temperature
    if sampling.top_k:
        values[np.argsort(-values, kind="stable")[sampling.top_k :]] = -np.inf
    weights = np.exp(values - values.max())
    weights /= weights.sum()
    if sampling.top_p < 1:
        order = np.argsort(-weights, kind="stable")
        before = weights[order].cumsum() - weights[order]
        weights[order[before >= sampling.top_p]] = 0
        weights /= weights.sum()
    found: Probs = weights
    return found

def _penalised(values: Probs, sampling: Sampling, text: Sequence[int]) -> Probs:
    for word, bias in sampling.logit_bias.items():
        values[word] += bias
    for word in range(WORDS):
        if sampling.repetition_penalty != 1 and word in (*PROMPT, *text):
            values[word] *= sampling.repetition_penalty if values[word] < 0 else 1 / sampling.repetition_penalty
        count = list(text).count(word)
        values[word] -= count * sampling.frequency_penalty + (count > 0) * sampling.presence_penalty
    return values
