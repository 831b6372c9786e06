"""Decide when to try drafting again after it did not pay, within a budget of the time."""

from __future__ import annotations

from dataclasses import dataclass

SHORTEST_PAUSE, LONGEST_PAUSE = 16, 2048  # steps until the next try
TRY_BUDGET = 0.005  # tries may lose at most this share of the time


@dataclass(slots=True)
class Tries:
    """The pause until the next try: longer if a try loses more, and after each try that did not pay."""

    _pause: int = SHORTEST_PAUSE

    def due(self, steps: int, steps_lost: float = 0.0) -> bool:
        """Whether to try, `steps` after the last try; a try would lose the time of `steps_lost` plain steps."""
        return steps >= min(max(self._pause, steps_lost / TRY_BUDGET), LONGEST_PAUSE)

    def tried(self, steps_lost: float) -> None:
        """Note a try that is expected to lose the time of `steps_lost` plain steps."""
        self._pause = int(min(max(2 * self._pause, steps_lost / TRY_BUDGET), LONGEST_PAUSE))

    def paid(self) -> None:
        """Note that drafting pays now; after it stops paying, the next try comes soon."""
        self._pause = SHORTEST_PAUSE
