"""What a guarded process and its owner send each other.

A request is (seconds, ...) as marshal writes it; an answer is a text whose first letter says what the rest is.
"""

from __future__ import annotations

import marshal
import signal
from multiprocessing.connection import Connection
from typing import Any

RESULT, ERROR, ENDED = "=", "!", "?"  # ENDED: its process was ended from outside
TOO_SLOW = "it takes too much time"
HAS_ENDED = "the process that works on it has ended"
OWN_DEATHS = (  # signals that a process brings upon itself
    signal.SIGPROF,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGABRT,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
)


def send_request(to: Connection, seconds: float, *request: Any) -> None:
    """Send a request that may take so many seconds of processor time."""
    to.send_bytes(marshal.dumps((seconds, *request)))


def send_answer(to: Connection, text: str) -> None:
    """Send an answer, whose first letter is one of the three."""
    to.send_bytes(text.encode("utf-8", "surrogatepass"))


def read_request(source: Connection) -> tuple[Any, ...]:
    """The next request; raises EOFError after the last."""
    request: tuple[Any, ...] = marshal.loads(source.recv_bytes())
    return request


def read_answer(source: Connection) -> str:
    """The next answer; raises EOFError or OSError if there is none, or only a part of one."""
    return source.recv_bytes().decode("utf-8", "surrogatepass")
