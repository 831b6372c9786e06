"""A guarded process that is kept: started with the first request, replaced after it has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from threading import Lock
from typing import Any, BinaryIO

from mxspec.runtime.guarded.wire import ENDED, ERROR, LAST, RESULT, read_answer, send_request

TOO_SLOW = "it takes too much time"
HAS_ENDED = "the process that works on it has ended"
CANNOT_START = "the process that works on it cannot be started"
OWN_DEATHS = (  # signals that a process brings upon itself
    signal.SIGPROF,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGABRT,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
)


class RefusedError(Exception):
    """What a guarded process answers instead of a result, or why it has ended: one line."""


class ProcessEndedError(RefusedError):
    """A guarded process was ended from outside, or cannot be started, which says nothing of the request."""


class TooSlowError(RefusedError):
    """A request has taken more processor time than it may."""


class GuardedProcess:
    """A module that runs as a process, and the pipes to it; safe from any number of threads, which take turns."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, seconds: float, *request: Any) -> str:
        """The answer to a request that may take so many seconds of processor time.

        Raises RefusedError, and ProcessEndedError where the fault is not the request's.
        """
        with self._lock:
            child = self._running()
            answer = None
            with suppress(BrokenPipeError):
                send_request(_pipe(child.stdin), seconds, *request)
                answer = read_answer(_pipe(child.stdout))
            if answer is None:
                raise death(self._end(), seconds)
            if answer.startswith(LAST):
                self._end()
        return result_of(answer)

    def close(self) -> None:
        """End the process; the next request starts another."""
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._owner == os.getpid() and self._child.poll() is None:
            return self._child
        self._end()
        self._owner = os.getpid()
        self._child = start(self._module, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self._child

    def _end(self) -> int:
        """Close the pipes, which ends the process; its exit status."""
        child, self._child = self._child, None
        if child is None or self._owner != os.getpid():  # a child of the process that this one was forked from
            return 0
        for pipe in (child.stdin, child.stdout):
            with suppress(BrokenPipeError):
                _pipe(pipe).close()
        return child.wait()


def start(module: str, **streams: Any) -> subprocess.Popen[bytes]:
    """A process that runs a module of ours, and finds what this process finds; raises ProcessEndedError."""
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stderr=subprocess.DEVNULL,
            **streams,
        )
    except OSError:  # the system has no process left, or no memory
        raise ProcessEndedError(CANNOT_START) from None


def result_of(answer: str) -> str:
    """The result that an answer holds; raises RefusedError where it holds an error."""
    if answer.startswith((ERROR, LAST)):
        raise TooSlowError(answer[1:]) if answer[1:] == TOO_SLOW else RefusedError(answer[1:])
    if answer.startswith(ENDED):
        raise ProcessEndedError(answer[1:])
    return answer.removeprefix(RESULT)


def death(status: int, seconds: float) -> RefusedError:
    """Why a process ended, by its exit status as subprocess has it."""
    if status == -signal.SIGPROF:
        return TooSlowError(f"more than {seconds:g} seconds")
    if -status in OWN_DEATHS:
        return RefusedError(f"it ended the process that works on it (status {status})")
    return ProcessEndedError(f"{HAS_ENDED} (status {status})")


def _pipe(pipe: Any) -> BinaryIO:
    assert pipe is not None
    return pipe  # type: ignore[no-any-return]
