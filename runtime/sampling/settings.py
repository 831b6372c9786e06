"""How tokens are to be chosen, as the caller says it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mxspec.formats.errors import GenerationError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. Temperature 0 is greedy; top_k 0 and top_p 1 leave the distribution whole."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise GenerationError(f"temperature: got {self.temperature}, expected 0 (greedy) or a positive number")
        if self.top_k < 0:
            raise GenerationError(f"top_k: got {self.top_k}, expected 0 (off) or a positive number")
        if not 0 < self.top_p <= 1:
            raise GenerationError(f"top_p: got {self.top_p}, expected more than 0 and at most 1 (off)")
        if not 0 <= self.seed < 2**64:
            raise GenerationError(f"seed: got {self.seed}, expected 0 to 2^64 - 1")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0
