"""Which tokens a grammar allows at one place."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.truncate import Indices

_FEW = 8  # at most one token of so many is "few": their ids are then cheaper than a row of minus infinities


class TokenMask:
    """The allowed tokens as bits uint32[ceil(vocab / 32)], least significant first, 0 beyond the vocabulary."""

    __slots__ = ("_bits", "_few", "_flags", "_vocab_size")

    def __init__(self, bits: NDArray[np.uint32], vocab_size: int) -> None:
        self._bits = bits
        self._vocab_size = vocab_size
        self._flags: NDArray[np.bool_] | None = None
        self._few: Indices | None = None

    def within(self, bits: NDArray[np.uint32]) -> bool:
        """True where no token but those of `bits` is allowed."""
        return not (self._bits & ~bits).any()

    @property
    def flags(self) -> NDArray[np.bool_]:
        """bool[vocab]: True where a token is allowed."""
        if self._flags is None:
            unpacked = np.unpackbits(self._bits.view(np.uint8), count=self._vocab_size, bitorder="little")
            self._flags = unpacked.view(np.bool_)
        return self._flags

    def few(self) -> Indices | None:
        """The allowed ids in ascending order where they are few, else None."""
        if self._few is None and np.bitwise_count(self._bits).sum() * _FEW <= self._vocab_size:
            self._few = np.flatnonzero(self.flags)
        return self._few

    def apply(self, row: Logits) -> Logits:
        """A new row, minus infinity where a token is not allowed."""
        return np.where(self.flags, row, np.float32(-np.inf))
