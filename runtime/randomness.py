"""Random numbers that depend on what they are for, and on nothing else.

Philox is counter-based: the number for (seed, sample, position, purpose) is computed from these four alone. What is
drawn for a position therefore does not depend on how many tokens were drafted before it, on the batch, or on what was
drawn and thrown away.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a number is drawn for; each purpose has its own stream."""

    DRAFT = 0  # the draft's proposal
    ACCEPT = 1  # whether the proposal is kept
    RESAMPLE = 2  # the target's own token: residual, bonus, or plain decoding


def uniform(seed: int, sample: int, position: int, purpose: Purpose) -> float:
    """A uniform float64 in [0, 1) for the token at `position` of sample number `sample` of a request."""
    generator = np.random.Philox(key=[seed, sample], counter=[0, 0, purpose, position])
    return float(generator.random_raw() >> 11) * 2.0**-53
