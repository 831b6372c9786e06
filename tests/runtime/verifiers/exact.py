"""The probability of every short text, by float64 code that shares nothing with the engine's; and a test of counts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from mxspec.runtime.sampling.settings import Sampling

THIN = 5.0  # cells of fewer expected texts are joined: the chi-square law is for others
Probs = NDArray[np.float64]
Logits = Callable[[tuple[int, ...]], NDArray[np.float32]]  # after a text, its prompt included


def text_probabilities(logits: Logits, prompt: Sequence[int], sampling: Sampling, length: int) -> Probs:
    """float64[vocab ** length], texts in the order of `number_of`."""
    vocab = len(logits(tuple(prompt)))
    known: dict[tuple[int, ...], Probs] = {}

    def row(text: tuple[int, ...]) -> Probs:
        if text not in known:
            known[text] = next_token(logits, prompt, sampling, text)
        return known[text]

    found = np.ones(vocab**length)
    for number, text in enumerate(itertools.product(range(vocab), repeat=length)):
        for i, token in enumerate(text):
            found[number] *= row(text[:i])[token]
            if found[number] == 0:
                break
    return found


def number_of(text: Sequence[int], vocab: int) -> int:
    """A text as a number of as many digits."""
    number = 0
    for token in text:
        number = number * vocab + token
    return number


def next_token(logits: Logits, prompt: Sequence[int], sampling: Sampling, text: tuple[int, ...]) -> Probs:
    """What follows a text, by the definitions of docs/engine.md: bias, penalties, temperature, top-k, top-p."""
    values = _penalised(logits((*prompt, *text)).astype(np.float64), prompt, sampling, text) / sampling.temperature
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


def _penalised(values: Probs, prompt: Sequence[int], sampling: Sampling, text: tuple[int, ...]) -> Probs:
    for token, bias in sampling.logit_bias.items():
        values[token] += bias
    for token in range(len(values)):
        if sampling.repetition_penalty != 1 and token in (*prompt, *text):
            values[token] *= sampling.repetition_penalty if values[token] < 0 else 1 / sampling.repetition_penalty
        count = text.count(token)
        values[token] -= count * sampling.frequency_penalty + (count > 0) * sampling.presence_penalty
    return values


def surprise(counts: Probs, expected: Probs) -> float:
    """The p-value of Pearson's chi-square test of float64[cells]; 0 where a text came up that cannot be.

    Thin cells spread the statistic more than the law has it: it is brought to the law's variance (Haldane 1937).
    """
    if counts[expected == 0].any():
        return 0.0
    thick = expected >= THIN
    pairs = [*zip(counts[thick], expected[thick], strict=True), (counts[~thick].sum(), expected[~thick].sum())]
    cells = [(count, mean) for count, mean in pairs if mean > 0]
    degrees, total = len(cells) - 1, sum(mean for _, mean in cells)
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    variance = 2 * degrees + sum(1 / mean for _, mean in cells) - (len(cells) ** 2 + 2 * len(cells) - 2) / total
    fitted = degrees + (statistic - degrees) * math.sqrt(2 * degrees / max(variance, 2 * degrees))
    return float(chi2.sf(fitted, degrees))
