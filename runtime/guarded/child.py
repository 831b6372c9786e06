"""The inside of a guarded process: it limits itself, and answers requests until they end."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from mxspec.formats.errors import GenerationError
from mxspec.runtime.guarded.wire import ERROR, LAST, RESULT, read_request, send_answer

LONGEST = 300  # characters of an error

Answer = Callable[..., str]


def answer_requests(requests: BinaryIO, answers: BinaryIO, answer: Answer, memory_bytes: int) -> None:
    """Answer until the requests end, or until one has taken too much memory; too much time ends the process."""
    text = ""
    while not text.startswith(LAST) and (request := read_request(requests)) is not None:
        seconds, *arguments = request
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            text = RESULT + answer(*arguments)
        except MemoryError:
            text = LAST + too_much_memory(memory_bytes)
        except Exception as error:  # what is untrusted can make Python raise anything
            text = ERROR + one_line(error)
        signal.setitimer(signal.ITIMER_PROF, 0)
        send_answer(answers, text)


def ignore_interrupts() -> None:
    """Leave Ctrl-C to the owner, whose end is the end of the requests; the timer's signal ends the process at once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # also in the middle of a C function


def limit_memory(bytes_: int, beyond: int = 0) -> None:
    """Limit the address space to so many bytes, where the system allows a limit; `beyond`: those in use already."""
    _limit(resource.RLIMIT_AS, bytes_ + beyond)
    _limit(resource.RLIMIT_CORE, 0)


def limit_stack(bytes_: int) -> None:
    """Limit the stack of the process's first thread."""
    _limit(resource.RLIMIT_STACK, bytes_)


def used_bytes() -> int:
    """The address space in use."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def too_much_memory(bytes_: int) -> str:
    """What is said of a request that took more memory than this."""
    return f"more than {bytes_ >> 20} MB of memory"


def one_line(error: BaseException) -> str:
    """The message of an error as one line, without the field of a request, which the owner knows."""
    message = error.problem if isinstance(error, GenerationError) else str(error)
    text = " ".join(message.split()) or type(error).__name__
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    with suppress(OSError, ValueError):  # a filter of system calls, as of a service, may refuse it
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
