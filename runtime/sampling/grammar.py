"""Text that keeps to a grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mxspec.runtime.sampling.mask import TokenMask


class Matcher(Protocol):
    @property
    def complete(self) -> bool: ...

    def keep(self, tokens: Sequence[int]) -> None: ...

    def forced(self, ahead: Sequence[int]) -> list[int]: ...

    def mask(self, ahead: Sequence[int]) -> TokenMask | None: ...


def fill_masks(jobs: Sequence[tuple[Matcher, Sequence[int]]]) -> None: ...
