"""Which tokens a grammar allows at one place."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
Indices = NDArray[np.int64]

_FEW = 8  # at most one token in 8 is "few": their ids are then cheaper than a row of minus infinities

# What each byte of a mask adds to its 8 logits: 0 or minus infinity. 152,000 entries are masked in 40 µs;
# np.where takes 120 to 620, as its branches are guessed.
_ADDENDS = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), 0, -np.inf)
_ADDENDS = _ADDENDS.astype(np.float32)


class TokenMask:
    """The allowed tokens as bits uint32[ceil(vocab / 32)], least significant first, 0 beyond the vocabulary."""

    __slots__ = ("_bits", "_few", "_vocab_size")

    def __init__(self, bits: NDArray[np.uint32], vocab_size: int) -> None:
        self._bits = bits
        self._vocab_size = vocab_size
        self._few: Indices | None = None

    def within(self, bits: NDArray[np.uint32]) -> bool:
        """True where no token but those of `bits` is allowed."""
        return not (self._bits & ~bits).any()

    def allows(self, token: int) -> bool:
        return bool(self._bits[token // 32] >> np.uint32(token % 32) & 1)

    def flags(self) -> NDArray[np.bool_]:
        """bool[vocab]: True where a token is allowed."""
        flags = np.unpackbits(self._bits.view(np.uint8), count=self._vocab_size, bitorder="little")
        return flags.view(np.bool_)

    def few(self) -> Indices | None:
        """The allowed ids in ascending order where they are few, else None."""
        if self._few is None and np.bitwise_count(self._bits).sum() * _FEW <= self._vocab_size:
            self._few = np.flatnonzero(self.flags())
        return self._few

    def apply(self, row: Logits) -> Logits:
        """A new row, minus infinity where a token is not allowed."""
        masked = _ADDENDS.take(self._bits.view(np.uint8), axis=0).reshape(-1)[: self._vocab_size]
        masked += row
        return masked
