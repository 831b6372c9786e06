"""Which drafted tokens are kept, and which token follows them: pure functions on arrays.

Lossless speculative decoding after Leviathan et al. (2023), algorithm 1, and Chen et al. (2023), algorithm 2. The
acceptance test and the residual use the distributions that the tokens were really drawn from: both shaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxspec.runtime.sampling import Probs, draw


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first `accepted` drafted tokens are kept, and `next_token` comes after them.

    `evaluated` counts the drafted tokens up to and including the first rejected one.
    """

    accepted: int
    evaluated: int
    next_token: int


def verify_greedy(target_tokens: Sequence[int] | NDArray[np.int64], drafted: Sequence[int]) -> Verdict:
    """Keep the longest prefix of int[K] that equals the target's own choices int[K + 1]; its next choice follows."""
    assert len(target_tokens) == len(drafted) + 1
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == target_tokens[accepted]:
        accepted += 1
    return Verdict(accepted, min(accepted + 1, len(drafted)), int(target_tokens[accepted]))


def verify_mrs(
    target_probs: Sequence[Probs],
    draft_probs: Sequence[Probs],
    drafted: Sequence[int],
    accept_uniforms: Sequence[float],
    sample_uniforms: Sequence[float],
) -> Verdict:
    """Modified rejection sampling.

    `target_probs` are K + 1 distributions float64[vocab], `draft_probs` the K that the drafted tokens int[K] were drawn
    from; `accept_uniforms` [K] decide whether a token is kept, `sample_uniforms` [K + 1] draw the token that follows:
    number i where i tokens were kept. A token is kept with probability min(1, target / draft); the first that is not
    is replaced by a draw from the normalised positive part of target - draft.
    """
    assert len(target_probs) == len(drafted) + 1 == len(sample_uniforms)
    for i, token in enumerate(drafted):
        if accept_uniforms[i] * draft_probs[i][token] < target_probs[i][token]:
            continue
        return Verdict(i, i + 1, draw(residual(target_probs[i], draft_probs[i]), sample_uniforms[i]))
    count = len(drafted)
    return Verdict(count, count, draw(target_probs[count], sample_uniforms[count]))


def residual(target: Probs, draft: Probs) -> Probs:
    """The positive part of target - draft, not normalised; the target itself where rounding has left nothing of it."""
    positive = np.maximum(target - draft, 0.0)
    return positive if positive.any() else target
