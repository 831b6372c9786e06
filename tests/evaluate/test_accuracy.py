"""Perplexity, divergence and agreement, against scipy and by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from scipy.special import log_softmax as scipy_log_softmax
from scipy.stats import entropy

from mxspec.evaluate.accuracy import Comparison, compare_logits, compare_models, compare_window, log_softmax, windows
from mxspec.formats.errors import MxspecError


class TableScorer:
    """Logits that depend on the token alone, handed out in chunks."""

    def __init__(self, vocab: int, chunk: int) -> None:
        rng = np.random.default_rng(0)
        self.tables = {name: rng.normal(0, 3, (vocab, vocab)).astype(np.float32) for name in ("target", "baseline")}
        self.chunk = chunk

    def score(self, token_ids: Sequence[int], *, model: str = "target") -> Iterator[np.ndarray]:
        for start in range(0, len(token_ids), self.chunk):
            yield self.tables[model][np.asarray(token_ids[start : start + self.chunk])]


def test_log_softmax_equals_scipy_and_does_not_overflow() -> None:
    logits = np.array([[0.0, 1.0, 2.0], [3e4, -3e4, 3e4]], dtype=np.float32)
    np.testing.assert_allclose(log_softmax(logits), scipy_log_softmax(logits.astype(np.float64), axis=-1), atol=1e-12)


def test_comparison_against_scipy() -> None:
    rng = np.random.default_rng(1)
    target, baseline = rng.normal(0, 2, (2, 40, 11)).astype(np.float32)
    next_ids = rng.integers(0, 11, 40)
    got = compare_logits(target, baseline, next_ids)
    p, q = (np.exp(scipy_log_softmax(x.astype(np.float64), axis=-1)) for x in (baseline, target))
    assert got.mean_kl_divergence == pytest.approx(entropy(p, q, axis=-1).mean(), rel=1e-9)
    assert got.target_perplexity == pytest.approx(np.exp(-np.log(q[np.arange(40), next_ids]).mean()), rel=1e-9)
    assert got.baseline_perplexity == pytest.approx(np.exp(-np.log(p[np.arange(40), next_ids]).mean()), rel=1e-9)
    assert got.ratio == pytest.approx(got.target_perplexity / got.baseline_perplexity, rel=1e-9)
    assert got.same_top_share == (p.argmax(-1) == q.argmax(-1)).mean()


def test_equal_models_have_ratio_one_and_no_divergence() -> None:
    logits = np.random.default_rng(2).normal(size=(5, 7)).astype(np.float32)
    got = compare_logits(logits, logits, np.arange(5))
    assert (got.ratio, got.mean_kl_divergence, got.same_top_share) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_chunks_of_logits_do_not_change_the_sums(chunk: int) -> None:
    ids = list(np.random.default_rng(3).integers(0, 13, 20))
    whole = compare_window(TableScorer(13, 100), ids)
    cut = compare_window(TableScorer(13, chunk), ids)
    assert cut.tokens == whole.tokens == 19
    assert cut.target_nll == pytest.approx(whole.target_nll, rel=1e-12)
    assert cut.kl_divergence == pytest.approx(whole.kl_divergence, rel=1e-12)
    assert cut.same_top == whole.same_top


def test_every_token_but_the_first_of_a_window_is_scored_once() -> None:
    assert [len(w) for w in windows(range(10), 4)] == [4, 4, 2]
    assert [len(w) for w in windows(range(9), 4)] == [4, 4]
    *_, total = compare_models(TableScorer(13, 3), [1] * 10, 4)
    assert total.tokens == 3 + 3 + 1
    assert Comparison() + total == total


def test_a_text_of_one_token_is_refused() -> None:
    with pytest.raises(MxspecError, match="at least 2"):
        list(compare_models(TableScorer(13, 3), [1], 4))
