"""How far the packed target is from the fp16 one: perplexity, KL divergence and agreement of the top token.

Both models run through this runtime, over the same windows of the same text, so that what differs is the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mxspec.formats.errors import MxspecError
from mxspec.formats.manifest import ModelName

Logits = NDArray[np.float32]


class Scorer(Protocol):
    """What is needed of an engine: logits of a text, row i predicting token i + 1."""

    def score(self, token_ids: Sequence[int], *, model: ModelName = "target") -> Iterator[Logits]: ...


@dataclass(frozen=True, slots=True)
class Comparison:
    """Sums over scored tokens; the means are properties. Add two to join two stretches of text."""

    tokens: int = 0
    target_nll: float = 0.0  # nats
    baseline_nll: float = 0.0  # nats
    kl_divergence: float = 0.0  # nats, of the target's distribution from the baseline's
    same_top: int = 0

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(
            self.tokens + other.tokens,
            self.target_nll + other.target_nll,
            self.baseline_nll + other.baseline_nll,
            self.kl_divergence + other.kl_divergence,
            self.same_top + other.same_top,
        )

    @property
    def target_perplexity(self) -> float:
        return math.exp(self.target_nll / self.tokens)

    @property
    def baseline_perplexity(self) -> float:
        return math.exp(self.baseline_nll / self.tokens)

    @property
    def ratio(self) -> float:
        return math.exp((self.target_nll - self.baseline_nll) / self.tokens)

    @property
    def mean_kl_divergence(self) -> float:
        return self.kl_divergence / self.tokens

    @property
    def same_top_share(self) -> float:
        return self.same_top / self.tokens


def log_softmax(logits: Logits) -> NDArray[np.float64]:
    """float64[rows, vocab] natural logarithms of the softmax of each row."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    logs: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logs


def compare_logits(target: Logits, baseline: Logits, next_ids: NDArray[np.int64]) -> Comparison:
    """Compare float32[rows, vocab] logits of both models on the tokens int64[rows] that really came next."""
    target_logs, baseline_logs = log_softmax(target), log_softmax(baseline)
    rows = np.arange(len(next_ids))
    divergence = np.exp(baseline_logs) * (baseline_logs - target_logs)
    return Comparison(
        tokens=len(next_ids),
        target_nll=-float(target_logs[rows, next_ids].sum()),
        baseline_nll=-float(baseline_logs[rows, next_ids].sum()),
        kl_divergence=float(divergence.sum()),
        same_top=int((target.argmax(axis=-1) == baseline.argmax(axis=-1)).sum()),
    )


def windows(token_ids: Sequence[int], length: int) -> Iterator[Sequence[int]]:
    """Cut a text into stretches of `length` tokens that do not overlap; a rest of one token predicts nothing."""
    for start in range(0, len(token_ids), length):
        window = token_ids[start : start + length]
        if len(window) > 1:
            yield window


def compare_window(engine: Scorer, window: Sequence[int]) -> Comparison:
    """Score one window with both models, chunk by chunk; the last row predicts nothing that is known."""
    total, first = Comparison(), 0
    ids = np.asarray(window, dtype=np.int64)
    for target, baseline in zip(engine.score(window), engine.score(window, model="baseline"), strict=True):
        next_ids = ids[first + 1 : first + 1 + len(target)]
        if len(next_ids):
            total += compare_logits(target[: len(next_ids)], baseline[: len(next_ids)], next_ids)
        first += len(target)
    return total


def compare_models(engine: Scorer, token_ids: Sequence[int], window_length: int) -> Iterator[Comparison]:
    """Yield the comparison of all windows so far, after each window."""
    total = Comparison()
    for window in windows(token_ids, window_length):
        total += compare_window(engine, window)
        yield total
    if not total.tokens:
        raise MxspecError("text: got fewer than 2 tokens, expected at least 2: give a longer text")
