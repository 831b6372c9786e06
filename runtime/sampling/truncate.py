"""Which tokens of a distribution are kept: top-k, top-p, min-p, typical-p. Ties go to the lowest id, everywhere.

Each takes the logits or weights of n tokens and returns the indices that it keeps, int64 in ascending order. Rows have
up to 262,144 entries and few are kept, so each first finds a small set of candidates in one or two passes over the row,
and sorts only these.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32] | NDArray[np.float64]
Indices = NDArray[np.int64]

_FEW = 1024  # rows of up to so many entries are partitioned as they are
_COLUMNS = 64  # longer ones: the row is folded into 64 columns, whose maxima bound the k-th largest value from below
_SHARES = (2.0**-15, 2.0**-17, 2.0**-20)  # top-p tries as candidates the tokens of at least this probability
_SORTED = 2048  # typical-p sorts up to this many tokens, and halves larger sets first
_BLOCK = 512  # weights summed in float32 before float64 takes over


def largest(values: Floats, count: int) -> Indices:
    """Ids of the `count` largest values, largest first, ties by lowest id."""
    kept = top_k(values, count)
    return kept[np.argsort(-values[kept], kind="stable")]


def top_k(values: Floats, count: int) -> Indices:
    """The `count` largest values."""
    if count >= len(values):
        return np.arange(len(values))
    if len(values) <= _FEW:
        return _cut(values, _nth_largest(values, count), count)
    candidates = (values >= _lower_bound(values, count)).nonzero()[0]
    kept = values[candidates]
    return candidates[_cut(kept, _nth_largest(kept, count), count)]


def top_p(weights: NDArray[np.float32], share: float) -> Indices:
    """The shortest list of largest weights that holds at least `share` of their sum."""
    wanted = share * total(weights)
    for part in _SHARES:
        candidates = np.flatnonzero(weights >= part * wanted)
        kept = weights[candidates]
        if kept.sum(dtype=np.float64) >= wanted:
            break
    else:
        candidates = np.flatnonzero(weights)
        kept = weights[candidates]
    falling = np.sort(kept)[::-1]
    count = min(int(np.searchsorted(falling.cumsum(dtype=np.float64), wanted)) + 1, len(kept))
    return candidates[_cut(kept, falling[count - 1], count)]


def min_p(weights: NDArray[np.float32], share: float) -> Indices:
    """The weights of at least `share` of the largest."""
    return np.flatnonzero(weights >= share * weights.max())


def typical_p(weights: NDArray[np.float32], share: float) -> Indices:
    """The tokens whose surprise is nearest to the entropy, until they hold `share` of the probability.

    Locally typical sampling, Meister et al. (2022), section 4.1. The distance of a token's surprise -log p from the
    entropy is that of its log weight from the mean log weight.
    """
    logs = np.log(np.maximum(weights, np.finfo(np.float32).tiny))
    whole = total(weights)
    distance = np.abs(logs - np.float32(total(weights * logs) / whole))
    inside: list[Indices] = []
    shell, wanted = np.flatnonzero(weights), share * whole
    while len(shell) > _SORTED:  # halve it, by the median of a part of it
        near = distance[shell] <= np.median(distance[shell[:: len(shell) // 256]])
        inner, outer = shell[np.flatnonzero(near)], shell[np.flatnonzero(~near)]
        mass = weights[inner].sum(dtype=np.float64)
        if not len(outer):
            break
        if mass >= wanted:
            shell = inner
        else:
            inside, shell, wanted = [*inside, inner], outer, wanted - mass
    shell = shell[np.argsort(distance[shell], kind="stable")]
    count = int(np.searchsorted(weights[shell].cumsum(dtype=np.float64), wanted)) + 1
    return np.sort(np.concatenate([*inside, shell[:count]]))


def total(weights: NDArray[np.float32]) -> float:
    """The sum of weights, to a relative error of 2e-6: blocks in float32 (4 times as fast), their sums in float64."""
    whole = len(weights) // _BLOCK * _BLOCK
    blocks = np.vecdot(weights[:whole].reshape(-1, _BLOCK), np.ones(_BLOCK, np.float32))
    return float(blocks.sum(dtype=np.float64) + weights[whole:].sum(dtype=np.float64))


def _lower_bound(values: Floats, count: int) -> np.floating:
    """A number that at least `count` values reach, and few others: the `count`-th largest of the columns' maxima."""
    width = len(values) // _COLUMNS
    maxima = np.concatenate(
        [values[: width * _COLUMNS].reshape(_COLUMNS, width).max(axis=0), values[width * _COLUMNS :]]
    )
    return _nth_largest(maxima if count <= len(maxima) else values, count)


def _nth_largest(values: Floats, count: int) -> np.floating:
    """The `count`-th largest value."""
    place = len(values) - count
    parted = values.copy()
    parted.partition(place)
    bound: np.floating = parted[place]
    return bound


def _cut(values: Floats, bound: np.floating, count: int) -> Indices:
    """Indices of the values above `bound`, and the first of those equal to it, `count` in all."""
    reached: Indices = (values >= bound).nonzero()[0]
    if len(reached) == count:
        return reached
    above = values > bound
    ties = (values == bound).nonzero()[0][: count - np.count_nonzero(above)]
    above[ties] = True
    kept: Indices = above.nonzero()[0]
    return kept
