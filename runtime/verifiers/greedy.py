"""Greedy verification: the text is the one that the target alone writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mxspec.runtime.verifiers.verdict import Verdict


def verify_greedy(target_tokens: Sequence[int] | NDArray[np.int64], drafted: Sequence[int]) -> Verdict:
    """Keep the longest prefix of int[K] that equals the target's own choices int[K + 1]; its next choice follows."""
    assert len(target_tokens) == len(drafted) + 1
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == target_tokens[accepted]:
        accepted += 1
    return Verdict(accepted, min(accepted + 1, len(drafted)), int(target_tokens[accepted]))
