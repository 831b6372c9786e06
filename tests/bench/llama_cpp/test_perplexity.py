"""Perplexity over the peer's windows, against the definition written out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from llama_cpp.perplexity import FIRST, WINDOW, of_ours
from numpy.typing import NDArray

from mxspec.formats.manifest import ModelName

VOCAB = 7


class Bigrams:
    """Predicts from the last token and its place, so that a row out of place shows."""

    def __init__(self) -> None:
        self.table = np.random.default_rng(0).normal(0, 2, (WINDOW, VOCAB, VOCAB)).astype(np.float32)

    def score(self, token_ids: Sequence[int], *, model: ModelName = "target") -> Iterator[NDArray[np.float32]]:
        for start in range(0, len(token_ids), 100):
            ids = np.asarray(token_ids[start : start + 100])
            yield self.table[np.arange(start, start + len(ids)), ids]


def test_only_what_comes_after_the_first_half_of_a_window_is_judged() -> None:
    model = Bigrams()
    ids = np.random.default_rng(1).integers(0, VOCAB, 2 * WINDOW + 10).tolist()
    losses = []
    for start in (0, WINDOW):
        for place in range(FIRST, WINDOW - 1):
            row = model.table[place, ids[start + place]].astype(np.float64)
            losses.append(math.log(sum(math.exp(x) for x in row)) - row[ids[start + place + 1]])
    assert len(losses) == 2 * 255
    assert of_ours(model, ids, 2) == pytest.approx(math.exp(sum(losses) / len(losses)))
