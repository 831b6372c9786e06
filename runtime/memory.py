"""Memory that the allocator keeps for later goes back to the system: from an idle server, and between heavy steps."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress


def give_back() -> None:
    """Return free pages to the system after a collection of objects that refer to each other, in some 100 ms."""
    gc.collect()  # errors and their frames refer to each other, and to bodies
    trim()


def trim() -> None:
    """Return free pages to the system (malloc_trim(3)) in some 20 milliseconds, if its library can do that."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
