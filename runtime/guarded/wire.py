"""What a guarded process and its owner send each other: a length in 8 bytes, then that many bytes.

A request is (seconds, ...) as marshal writes it; an answer is a text whose first letter says what the rest is.
"""

from __future__ import annotations

import marshal
import signal
from io import BufferedIOBase, RawIOBase
from typing import Any, BinaryIO

Stream = BinaryIO | BufferedIOBase | RawIOBase

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


def send_request(to: Stream, seconds: float, *request: Any) -> None:
    """Send a request that may take so many seconds of processor time."""
    _send(to, marshal.dumps((seconds, *request)))


def send_answer(to: Stream, text: str) -> None:
    """Send an answer, whose first letter is one of the three."""
    _send(to, text.encode("utf-8", "surrogatepass"))


def read_request(source: Stream) -> tuple[Any, ...] | None:
    """The next request; None after the last."""
    found = _read(source)
    return None if found is None else marshal.loads(found)


def read_answer(source: Stream) -> str | None:
    """The next answer; None if there is none, or only a part of one."""
    found = _read(source)
    return found.decode("utf-8", "surrogatepass") if found else None


def _send(to: Stream, message: bytes) -> None:
    to.write(len(message).to_bytes(8) + message)
    to.flush()


def _read(source: Stream) -> bytes | None:
    """The next message; None if there is none, or only a part of one."""
    size = _exactly(source, 8)
    return None if size is None else _exactly(source, int.from_bytes(size))


def _exactly(source: Stream, count: int) -> bytes | None:
    """So many bytes, also of a stream without a buffer, which gives what is there."""
    pieces, left = [], count
    while left:
        piece = source.read(left)
        if not piece:
            return None
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
