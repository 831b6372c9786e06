"""Perplexity over the peer's windows, against the definition written out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.llama_cpp.perplexity import WINDOW, Distance, distance_of_model, distance_of_peer, of_model, of_peer
from mxspec.evaluate.accuracy.models import calls
from mxspec.evaluate.accuracy.windows import Window
from mxspec.formats.errors import MxspecError

VOCAB = 7


class Bigrams:
    """Predicts from the last token and its place, so that a row out of place shows."""

    def __init__(self, seed: int = 0) -> None:
        self.table = np.random.default_rng(seed).normal(0, 2, (WINDOW, VOCAB, VOCAB)).astype(np.float32)

    def __call__(self, window: Window, chunk: int) -> Iterator[NDArray[np.float32]]:
        for _, end, wanted in calls(window, chunk):
            if wanted:
                places = np.arange(end - wanted, end)
                yield self.table[places, np.asarray(window.tokens)[places]]


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


def test_the_distance_of_a_model_is_that_of_its_scored_tokens() -> None:
    base, other = Bigrams(), Bigrams(seed=2)
    ids = np.random.default_rng(1).integers(0, VOCAB, WINDOW).tolist()
    divergences, gains, same = [], [], []
    for place in range(256, 511):
        rows = [model.table[place, ids[place]].astype(np.float64) for model in (base, other)]
        p, q = (np.exp(row) / np.exp(row).sum() for row in rows)
        divergences.append(sum(p * np.log(p / q)))
        gains.append(math.log(p[ids[place + 1]] / q[ids[place + 1]]))
        same.append(p.argmax() == q.argmax())
    perplexity, distance = distance_of_model(base, other, ids, 1)
    assert perplexity == pytest.approx(of_model(base, ids, 1))
    assert distance.ratio == pytest.approx(math.exp(sum(gains) / len(gains)), rel=1e-5)
    assert distance.divergence == pytest.approx(sum(divergences) / len(divergences), rel=1e-5)
    assert distance.same_top == pytest.approx(sum(same) / len(same))


PRINTED = """
====== Perplexity statistics ======
Mean PPL(Q)                   :  13.591340 ±   0.822391
Mean PPL(base)                :  12.612345 ±   0.812345
Mean PPL(Q)/PPL(base)         :   1.076543 ±   0.011234
====== KL divergence statistics ======
Mean    KLD:   0.056123 ±   0.001234
Maximum KLD:   2.345678
====== Token probability statistics ======
Same top p: 87.123 ± 0.543 %
"""


@pytest.mark.parametrize(
    ("printed", "code", "expected"),
    [
        (PRINTED, 0, Distance(1.076543, 0.056123, pytest.approx(0.87123))),
        ("nothing of it", 0, "llama-perplexity printed nothing like"),
        ("no memory", 3, "llama-perplexity ended with 3: no memory"),
    ],
)
def test_the_distance_that_the_peer_prints(tmp_path: Path, printed: str, code: int, expected: Distance | str) -> None:
    program = tmp_path / "llama-perplexity"
    (tmp_path / "printed").write_text(printed)
    program.write_text(f'#!/bin/sh\necho "$@" > "{tmp_path}/asked"\ncat "{tmp_path}/printed"\nexit {code}\n')
    program.chmod(0o755)
    asked = tmp_path, tmp_path / "m.gguf", tmp_path / "text", 20, 2, tmp_path / "logits"
    if isinstance(expected, str):
        with pytest.raises(MxspecError, match=expected):
            distance_of_peer(*asked)
        return
    assert distance_of_peer(*asked) == expected
    asked_for = (tmp_path / "asked").read_text().split()
    assert asked_for[asked_for.index("--kl-divergence-base") + 1] == str(tmp_path / "logits")
    assert "--kl-divergence" in asked_for


def test_the_perplexity_that_the_peer_prints(tmp_path: Path) -> None:
    program = tmp_path / "llama-perplexity"
    program.write_text("#!/bin/sh\necho 'Final estimate: PPL = 12.6123 +/- 0.8'\n")
    program.chmod(0o755)
    assert of_peer(tmp_path, tmp_path / "m.gguf", tmp_path / "text", 20, 2) == 12.6123
