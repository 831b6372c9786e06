"""Ctrl-C: prints a line and exits; while an answer is written, it ends the answer."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it


def interrupt() -> None:
    """Raise KeyboardInterrupt, as Python does on Ctrl-C."""
    raise KeyboardInterrupt


def leave_on_interrupt() -> None:
    """From now on, Ctrl-C ends the process at once.

    An exception is not enough: an import can swallow it or turn it into another one. If SIGINT is ignored, as in a
    background job of a script, it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)


@contextmanager
def on_interrupt(first: Callable[[], None], then: Callable[[], None] = interrupt) -> Iterator[None]:
    """In this block, the first Ctrl-C calls `first`, and each later one calls `then`."""
    acts = itertools.chain([first], itertools.repeat(then))
    with _handler(lambda _number, _frame: next(acts)()):
        yield


@contextmanager
def raising_interrupts() -> Iterator[None]:
    """In this block, Ctrl-C raises KeyboardInterrupt."""
    with _handler(signal.default_int_handler):
        yield


@contextmanager
def _handler(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"error: interrupted\n")
    os._exit(EXIT_INTERRUPTED)
