"""Random numbers that depend on what they are for, and on nothing else.

Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11) is counter-based: the number for
(seed, sample, position, purpose) is computed from these four alone. What is drawn for a position therefore does not
depend on how many tokens were drafted before it, on the batch, or on what was drawn and thrown away.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_WORD = (1 << 64) - 1
_ONE = np.float64(1).view(np.uint64)


class Purpose(IntEnum):
    """What a number is drawn for; each purpose has its own stream."""

    DRAFT = 0  # the draft's proposal
    ACCEPT = 1  # whether the proposal is kept
    RESAMPLE = 2  # the target's own token: residual, bonus, or plain decoding
    MATCH = 3  # the noise that draft and target share


@dataclass(frozen=True, slots=True)
class Draws:
    """The random numbers of one round of sample number `sample`: place i is position `first` + i of the text.

    A number belongs to its position, whatever the round: one that a discarded look-ahead used decided nothing that was
    emitted, so it serves the token that takes its place. Where that is not so, the numbers are `fresh`: no other round
    has them.
    """

    seed: int
    sample: int
    first: int
    fresh: bool = False
    _noise: dict[int, NDArray[np.float64]] = field(default_factory=dict, repr=False, compare=False)

    def uniform(self, place: int, purpose: Purpose) -> float:
        """A uniform float64 in [0, 1)."""
        return (self._word(place, purpose) >> 11) * 2.0**-53

    def exponentials(self, place: int, ids: NDArray[np.int64] | None, count: int) -> NDArray[np.float64]:
        """One exponential variate a token: of `ids` int64[count], or of 0 … count-1 where it is None.

        A token's does not depend on which others are asked for.
        """
        key = self._word(place, Purpose.MATCH)
        if ids is not None:
            return _exponentials(key, _weyl(ids))
        known = self._noise.get(place)
        if known is None or len(known) < count:
            known = self._noise[place] = _exponentials(key, _weyl_of_all(count))
        return known[:count]

    def _word(self, place: int, purpose: Purpose) -> int:
        counter = self.first + place, int(purpose), self.first + 1 if self.fresh else 0, 0
        return philox((self.seed, self.sample), counter)[0]


def _weyl(ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The steps of SplitMix64's sequence up to its output number id, for each id."""
    return (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_WEYL[0])


@lru_cache(maxsize=4)  # the vocabularies of a target and its drafts
def _weyl_of_all(count: int) -> NDArray[np.uint64]:
    """`_weyl` of the ids 0 to count - 1."""
    return _weyl(np.arange(count))


def _exponentials(key: int, steps: NDArray[np.uint64]) -> NDArray[np.float64]:
    """-log of uniforms in (0, 1): SplitMix64 (Steele et al. 2014) from `key`, its output after each of `steps`."""
    words = steps + np.uint64(key)
    shifted = np.empty_like(words)  # one for all shifts: fresh memory of this size costs page faults
    for shift, multiplier in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words ^= np.right_shift(words, np.uint64(shift), out=shifted)
        words *= np.uint64(multiplier)
    words ^= np.right_shift(words, np.uint64(31), out=shifted)
    words >>= np.uint64(12)
    words |= _ONE  # the fraction of a float64 from 1 on: converting integers takes longer
    uniforms = words.view(np.float64)
    uniforms -= 1 - 2.0**-53  # (word + 1/2) / 2^52, exactly
    return np.negative(np.log(uniforms, out=uniforms), out=uniforms)


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Four 64-bit words of Philox4x64-10. In Python's integers: 3 µs, where numpy's generator takes 24 to set up."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(_ROUNDS):
        low, high = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (high >> 64) ^ c1 ^ k0, high & _WORD, (low >> 64) ^ c3 ^ k1, low & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3
