"""A tensor that is computed from another one as it is read."""

from __future__ import annotations

from typing import Any


class DerivedTensor:
    """What a tensor takes from its `base`, a Source of mx_tensor.py, unless it says otherwise."""

    __slots__ = ()
    base: Any

    @property
    def name(self) -> str:
        """Name of the base in the checkpoint."""
        return str(self.base.name)

    @property
    def shard(self) -> str:
        """File that holds the base."""
        return str(self.base.shard)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what is read."""
        return tuple(self.base.shape)

    @property
    def bytes(self) -> int:
        """Size in the checkpoint."""
        return int(self.base.bytes)

    @property
    def dtype(self) -> str:
        """The type of what is read."""
        return str(self.base.dtype)

    @property
    def identity(self) -> tuple[int, ...]:
        """Changes when a file does, or the way of computing it."""
        return tuple(self.base.identity)
