"""Handle Ctrl-C, and SIGTERM from a system or a job queue, while a bundle is written."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mxspec.runtime.cli.interrupts import raising_interrupts


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """In this block, both signals raise KeyboardInterrupt, so that a half-written bundle is removed."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with raising_interrupts():
            yield
    finally:
        signal.signal(signal.SIGTERM, before)
