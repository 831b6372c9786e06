"""How many requests are worked on at a time; the latest is the next: a flood does not hold up who comes after it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WAITING_SECONDS = 0.2  # time after which a given-up request that waits is seen

GiveUp = Callable[[], bool]


class GivenUpError(Exception):
    """Nobody waits for the answer any more."""


class ProcessQuota:
    """Lets `count` threads in at a time."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._lock = threading.Lock()
        self._turns: list[threading.Event] = []  # of those that wait

    @contextmanager
    def entered(self, give_up: GiveUp) -> Iterator[None]:
        """Wait for a place, and take it until the context ends; raises GivenUpError once `give_up` is true."""
        turn = threading.Event()
        with self._lock:
            if self._free:
                self._free -= 1
                turn.set()
            else:
                self._turns.append(turn)
        try:
            while not turn.wait(WAITING_SECONDS):
                check(give_up)
            yield
        finally:
            with self._lock:
                if not turn.is_set():
                    self._turns.remove(turn)
                elif self._turns:
                    self._turns.pop().set()
                else:
                    self._free += 1


def check(give_up: GiveUp) -> None:
    """Raise GivenUpError where nobody waits any more."""
    if give_up():
        raise GivenUpError
