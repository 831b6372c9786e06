"""Random numbers that depend on what they are for, and on nothing else.

Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11) is counter-based: the number for
(seed, sample, position, purpose) is computed from these four alone. What is drawn for a position therefore does not
depend on how many tokens were drafted before it, on the batch, or on what was drawn and thrown away: a number that a
discarded look-ahead used decided nothing that was emitted, so it serves the token that takes its place.
"""

from __future__ import annotations

from enum import IntEnum

_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_WORD = (1 << 64) - 1


class Purpose(IntEnum):
    """What a number is drawn for; each purpose has its own stream."""

    DRAFT = 0  # the draft's proposal
    ACCEPT = 1  # whether the proposal is kept
    RESAMPLE = 2  # the target's own token: residual, bonus, or plain decoding


def uniform(seed: int | None, sample: int, position: int, purpose: Purpose) -> float:
    """A uniform float64 in [0, 1) for the token at `position` of sample number `sample` of a request."""
    assert seed is not None  # Sampling.seeded() comes before the first token
    return (philox((seed, sample), (position, int(purpose), 0, 0))[0] >> 11) * 2.0**-53


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Four 64-bit words of Philox4x64-10. In Python's integers: 3 µs, where numpy's generator takes 24 to set up."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(_ROUNDS):
        low, high = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (high >> 64) ^ c1 ^ k0, high & _WORD, (low >> 64) ^ c3 ^ k1, low & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3
