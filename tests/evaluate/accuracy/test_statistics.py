"""Losses, divergence and agreement against scipy, and what becomes of logits that are no numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from scipy.special import log_softmax
from scipy.stats import entropy

from mxspec.evaluate.accuracy import statistics
from mxspec.evaluate.accuracy.models import calls, score_window
from mxspec.evaluate.accuracy.statistics import Scores, compare_rows
from mxspec.evaluate.accuracy.windows import Window


def logits(rows: int, vocab: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (rows, vocab)).astype(np.float32)


@pytest.mark.parametrize(("vocab", "offset"), [(11, 0.0), (5000, 0.0), (5000, 300.0)])
def test_scores_against_scipy(vocab: int, offset: float) -> None:
    """Small blocks and slices, so that every border is crossed; an offset of all logits changes nothing."""
    baseline, near, far = logits(40, vocab, 0), logits(40, vocab, 0), logits(40, vocab, 1) + np.float32(offset)
    near += logits(40, vocab, 2) / 30
    next_ids = np.random.default_rng(3).integers(0, vocab, 40)
    found = compare_rows(baseline, [near, far], next_ids)
    logs = [log_softmax(each.astype(np.float64), axis=-1) for each in (baseline, near, far)]
    for scores, own in zip(found, logs, strict=True):
        np.testing.assert_allclose(scores.loss, -own[np.arange(40), next_ids], rtol=2e-6, atol=4e-5 if offset else 2e-6)
        expected = entropy(np.exp(logs[0]), np.exp(own), axis=-1)
        np.testing.assert_allclose(scores.divergence, expected, rtol=2e-6, atol=4e-5 if offset else 2e-6)
        assert (scores.same_top == (own.argmax(-1) == logs[0].argmax(-1))).all()
        assert scores.finite.all()


def test_blocks_do_not_change_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, next_ids = (logits(9, 700, 0), logits(9, 700, 1)), np.arange(9)
    whole = compare_rows(pair[0], [pair[1]], next_ids)
    monkeypatch.setattr(statistics, "BLOCK_ENTRIES", 2 * 700)
    for one, other in zip(whole, compare_rows(pair[0], [pair[1]], next_ids), strict=True):
        np.testing.assert_allclose(one.loss, other.loss, rtol=1e-6)


def test_equal_models_do_not_diverge() -> None:
    same = logits(5, 7, 2)
    _, found = compare_rows(same, [same], np.arange(5))
    assert (found.divergence.max(), found.same_top.all()) == (0.0, True)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_logit_that_is_not_finite_is_reported_with_its_place(value: float, wrong: int) -> None:
    models = [logits(6, 50, seed) for seed in range(3)]
    models[wrong][4, 7] = value
    found = compare_rows(models[0], models[1:], np.arange(6))
    assert [list(np.flatnonzero(~scores.finite)) for scores in found] == [[4] if i == wrong else [] for i in range(3)]
    for index in (1, 2):
        assert np.isfinite(found[index].divergence[4]) == (wrong not in (0, index))
        assert np.isfinite(np.delete(found[index].divergence, 4)).all()


class TableModel:
    """Logits that depend on the token alone."""

    def __init__(self, seed: int) -> None:
        self.table = logits(13, 13, seed)

    def __call__(self, window: Window, chunk: int) -> Iterator[np.ndarray]:
        for begin, end, wanted in calls(window, chunk):
            assert end - begin <= chunk
            if wanted:
                yield self.table[list(window.tokens[end - wanted : end])]


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("scored", [1, 4, 19])
def test_calls_do_not_change_the_scores(chunk: int, scored: int) -> None:
    """Of the last tokens of a window, each predicted by the one before it."""
    ids = tuple(np.random.default_rng(3).integers(0, 13, 20).tolist())
    models = [TableModel(0), TableModel(1)]
    found = score_window(models, Window(ids, scored, 0, 0), chunk)
    for model, scores in zip(models, found, strict=True):
        logs = log_softmax(model.table[list(ids[:-1])].astype(np.float64), axis=-1)
        expected = -logs[np.arange(19), ids[1:]][-scored:]
        np.testing.assert_allclose(scores.loss, expected, atol=2e-6)
    assert len(Scores.joined([found[0], found[1]]).loss) == 2 * scored
