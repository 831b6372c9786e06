"""Many tests at once, without the false alarms of many."""

from __future__ import annotations

from collections.abc import Sequence


def holm_corrected(p_values: Sequence[float]) -> list[float]:
    """Each p-value corrected for all of them (Holm 1979).

    Where those of at most a level are called found, one of them is a false alarm with at most that probability.
    """
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min((len(p_values) - rank) * p_values[index], 1.0))
        corrected[index] = highest
    return corrected
