"""Perplexity over the peer's windows, against the definition written out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from llama_cpp.perplexity import WINDOW, of_model
from numpy.typing import NDArray

from mxspec.evaluate.accuracy.models import calls
from mxspec.formats.errors import MxspecError

VOCAB = 7


class Bigrams:
    """Predicts from the last token and its place, so that a row out of place shows."""

    def __init__(self) -> None:
        self.table = np.random.default_rng(0).normal(0, 2, (WINDOW, VOCAB, VOCAB)).astype(np.float32)

    def score(
        self, tokens: Sequence[int], rows: int, chunk: int, source: Sequence[int] = ()
    ) -> Iterator[NDArray[np.float32]]:
        for _, end, wanted in calls(len(tokens), rows, chunk):
            if wanted:
                places = np.arange(end - wanted, end)
                yield self.table[places, np.asarray(tokens)[places]]


def test_only_the_second_half_of_a_window_is_scored() -> None:
    model = Bigrams()
    ids = np.random.default_rng(1).integers(0, VOCAB, 2 * WINDOW + 10).tolist()
    losses = []
    for start in (0, 512):
        for place in range(256, 511):  # llama-perplexity: logits of the rows from n_ctx / 2 on but the last
            row = model.table[place, ids[start + place]].astype(np.float64)
            losses.append(math.log(sum(math.exp(x) for x in row)) - row[ids[start + place + 1]])
    assert of_model(model, ids, 2) == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-6)


def test_a_text_too_short_is_refused() -> None:
    with pytest.raises(MxspecError, match="got 1023 tokens, expected 1024"):
        of_model(Bigrams(), [0] * 1023, 2)
