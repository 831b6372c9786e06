"""Turn scores into figures with confidence intervals, and figures into a verdict.

The differences of two models' losses on neighbouring tokens are correlated, so an interval from their variance would be
too narrow. They are summed over blocks of BLOCK consecutive tokens of a document, which are taken as independent: batch
means (Carlstein 1986, "The use of subseries values for estimating the variance of a general statistic from a stationary
sequence"). Blocks at the ends of documents are shorter, so the mean is a ratio of sums, with the variance of a ratio
estimator (Cochran, Sampling Techniques, 3rd ed. 1977, eq. 6.4), and Student's t, because a short text has few blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxspec.evaluate.accuracy.result import CONFIDENCE, Figures, RefereeFigures, Verdict
from mxspec.evaluate.accuracy.statistics import Floats, Scores
from mxspec.evaluate.significance import scipy_stats
from mxspec.formats.manifest import ModelEntry
from mxspec.formats.weight_format import Activations

MAX_RATIO = 1.01  # perplexity of the packed target over that of the fp16 one
MOST_OFF = 1e-3  # largest relative difference of perplexity between the fp16 baseline and float32
BLOCK = 64  # tokens
FEWEST_BLOCKS = 10  # with fewer, the variance cannot be estimated


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean in nats a token and its confidence interval, which is not finite if there are too few blocks."""

    mean: float
    low: float
    high: float


def block_starts(lengths: Iterable[int]) -> list[int]:
    """Where blocks begin among the tokens of consecutive documents of these lengths; no block spans two documents."""
    starts: list[int] = []
    begin = 0
    for length in lengths:
        starts += range(begin, begin + length, BLOCK)
        begin += length
    return starts


def mean_interval(values: NDArray[np.float64], starts: list[int]) -> Interval:
    """The mean of float64[tokens] and its interval; blocks of tokens begin at `starts`."""
    sums, counts = np.add.reduceat(values, starts), np.diff([*starts, len(values)])
    mean, blocks = float(values.mean()), len(starts)
    if blocks < FEWEST_BLOCKS or not math.isfinite(mean):
        return Interval(mean, -math.inf, math.inf)
    spread = sums - mean * counts
    error = math.sqrt(blocks / (blocks - 1) * float(spread @ spread)) / len(values)
    reach = float(scipy_stats().t.ppf((1 + CONFIDENCE) / 2, blocks - 1)) * error
    return Interval(mean, mean - reach, mean + reach)


def figures_of(
    scores: Scores,
    baseline: Scores,
    starts: list[int],
    weight_format: str,
    activations: Activations,
    matrix_bytes: int,
) -> Figures:
    """The figures of one model compared with the baseline; blocks of tokens begin at `starts`."""
    with np.errstate(invalid="ignore"):
        found = mean_interval(scores.loss - baseline.loss, starts)
    known = scores.divergence[~np.isnan(scores.divergence)]
    whole = len(known) == len(scores.divergence)
    return Figures(
        format=weight_format,
        activations=activations,
        target_perplexity=perplexity(scores.loss),
        ratio=_exp(found.mean),
        ratio_low=_exp(found.low) if math.isfinite(found.low) else math.nan,
        ratio_high=_exp(found.high),
        mean_kl_divergence=float(scores.divergence.mean()),
        kl_divergence_p99=float(np.percentile(known, 99, method="higher")) if whole else math.nan,
        worst_kl_divergence=float(known.max()) if whole else math.nan,
        same_top_share=float(scores.same_top.mean()),
        not_finite_tokens=int((~scores.finite).sum()),
        matrix_bytes=matrix_bytes,
    )


def perplexity(losses: Floats) -> float:
    """exp of the mean loss; infinite if that is too large for a float (a mean above 709 nats)."""
    return _exp(float(losses.mean()))


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def judge_referee(checkpoint: str, referee: Scores, baseline: Scores) -> RefereeFigures:
    """Whether the baseline's perplexity is that of transformers."""
    with np.errstate(invalid="ignore"):
        ratio = _exp(float((baseline.loss - referee.loss).mean()))
    return RefereeFigures(
        checkpoint=checkpoint,
        perplexity=perplexity(referee.loss),
        ratio=ratio,
        most_off=MOST_OFF,
        mean_kl_divergence=float(referee.divergence.mean()),
        passed=abs(ratio - 1) <= MOST_OFF,
    )


def bar_of(target: ModelEntry, asked: float | None) -> float:
    """The largest ratio that passes: `asked`, else the one that chose the target's formats, else MAX_RATIO."""
    return asked or (target.budget and target.budget.max_ratio) or MAX_RATIO


def judge(
    target: Figures, baseline: Scores, blocks: int, max_ratio: float, referee: RefereeFigures | None
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict, and the reasons if it is not "passed".

    Passed if the upper end of the interval is at most `max_ratio`, failed if the lower end is above it.

    Logits that are not finite fail, and so does a baseline that differs from transformers' reading of the checkpoint.
    """
    reasons = [*_not_finite(target, baseline)]
    if referee is not None and not referee.passed:
        reasons.append(
            f"fp16 perplexity over transformers' in float32: got {referee.ratio:.5f}, expected at most "
            f"{MOST_OFF:.1%} off 1: the bundle is wrong, or was made from another checkpoint"
        )
    if reasons:
        return "failed", tuple(reasons)
    tokens = len(baseline.loss)
    if blocks < FEWEST_BLOCKS:
        least = f"fewer than the {FEWEST_BLOCKS} stretches of {BLOCK} that an interval needs"
        return "too short", (f"too short to judge: {tokens:,} tokens, {least}: give a longer text",)
    between = f"interval {target.ratio_low:.5f} to {target.ratio_high:.5f}"
    if target.ratio_high <= max_ratio:
        return "passed", ()
    if target.ratio_low > max_ratio:
        return "failed", (f"perplexity ratio: got {target.ratio:.5f}, expected at most {max_ratio:g}",)
    line = f"too short to judge: {tokens:,} tokens, {between} spans {max_ratio:g}: give a longer text"
    return "too short", (line,)


def _not_finite(target: Figures, baseline: Scores) -> Sequence[str]:
    tokens = len(baseline.loss)
    counts = {"target": target.not_finite_tokens, "fp16 baseline": int((~baseline.finite).sum())}
    wrong = [
        f"{name}: got logits that are not finite for {count:,} of {tokens:,} tokens"
        for name, count in counts.items()
        if count
    ]
    values = {
        "fp16 perplexity": perplexity(baseline.loss),
        "packed perplexity": target.target_perplexity,
        "perplexity ratio": target.ratio,
        "KL divergence": target.mean_kl_divergence,
    }
    overflows = [name for name, value in values.items() if not math.isfinite(value)]
    if overflows and not wrong:
        wrong.append(f"{' and '.join(overflows)}: too large for a number")
    return wrong
