"""Guarded processes, forked one a request from a process that holds what they all need.

Requests do not wait for each other, and one that is given up ends its process at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import send_handle
from typing import Any

from mxspec.runtime.guarded.process_quota import GiveUp, ProcessQuota, check
from mxspec.runtime.guarded.wire import (
    ENDED,
    ERROR,
    HAS_ENDED,
    OWN_DEATHS,
    RESULT,
    TOO_SLOW,
    read_answer,
    send_request,
)

PROCESSES = 4  # requests that are worked on at the same time
TICK_SECONDS = 0.02  # time after which a given-up request is seen
CANNOT_START = "the process that works on it cannot be started"


class RefusedError(Exception):
    """What a guarded process answers instead of a result, or why it has ended: one line."""


class ProcessEndedError(RefusedError):
    """A guarded process was ended from outside, or cannot be started, which says nothing of the request."""


class TooSlowError(RefusedError):
    """A request has taken more processor time than it may."""


@dataclass(frozen=True, slots=True)
class ForkingProcess:
    """The process that forks others, our connection to it, and the process that started it."""

    process: subprocess.Popen[bytes]
    control: Connection
    owner: int


class ForkServer:
    """A module that forks a process for each request; safe from any number of threads.

    `beginning` is what the module is told once, when it starts, and `start_seconds` the processor time that it may take
    to prepare itself (0: any).
    """

    def __init__(self, module: str, *beginning: Any, start_seconds: float = 0.0) -> None:
        self._module = module
        self._beginning = beginning
        self._start_seconds = start_seconds
        self._lock = threading.Lock()
        self._quota = ProcessQuota(PROCESSES)
        self._parent: list[ForkingProcess] = []  # one, or none
        weakref.finalize(self, _end, self._parent)

    def ask(
        self, seconds: float, *request: Any, give_up: GiveUp = lambda: False, quota: ProcessQuota | None = None
    ) -> str:
        """The answer to a request that may take so many seconds of processor time, once `quota` allows it.

        `give_up` is called now and then; once it is true, the request ends as GivenUpError. Raises RefusedError,
        TooSlowError among them, and ProcessEndedError where the fault is not the request's.
        """
        with (quota or self._quota).entered(give_up), self._fork() as end:
            try:
                send_request(end, seconds, *request)
                while not end.poll(TICK_SECONDS):
                    check(give_up)
                answer = read_answer(end)
            except (OSError, EOFError):
                check(give_up)
                raise self._failed_start() or ProcessEndedError(HAS_ENDED) from None
        kind, text = answer[:1], answer[1:]
        if kind == RESULT:
            return text
        if kind == ENDED:
            raise ProcessEndedError(text)
        assert kind == ERROR
        raise TooSlowError(text) if text == TOO_SLOW else RefusedError(text)

    def close(self) -> None:
        """End the process and those forked from it; the next request starts another."""
        with self._lock:
            _end(self._parent)

    def _fork(self) -> Connection:
        """The connection to a new process."""
        ours, theirs = Pipe()
        with theirs, self._lock:
            for _ in range(2):
                try:
                    send_handle(self._running(), theirs.fileno(), None)
                    return ours
                except OSError:  # the process has ended since
                    _end(self._parent)
        raise ProcessEndedError(CANNOT_START)

    def _running(self) -> Connection:
        for parent in self._parent:
            if parent.owner == os.getpid() and parent.process.poll() is None:
                return parent.control
        _end(self._parent)
        ours, theirs = Pipe()
        with theirs:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", self._module],
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    stdin=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                )
            except OSError:  # the system has no process left, or no memory
                raise ProcessEndedError(CANNOT_START) from None
        self._parent.append(ForkingProcess(process, ours, os.getpid()))
        send_request(ours, self._start_seconds, *self._beginning)
        return ours

    def _failed_start(self) -> RefusedError | None:
        """Why the process that forks has ended; None where it goes on, or has ended unasked."""
        for parent in self._parent:
            with suppress(subprocess.TimeoutExpired):
                status = parent.process.wait(TICK_SECONDS)  # its end of a connection is gone a little before itself
                if status == -signal.SIGPROF:
                    return TooSlowError(f"more than {self._start_seconds:g} seconds")
                if -status in OWN_DEATHS:
                    return RefusedError(f"it ended the process that works on it (status {status})")
                return ProcessEndedError(f"{HAS_ENDED} (status {status})")
        return None


def _end(parents: list[ForkingProcess]) -> None:
    while parents:
        parent = parents.pop()
        parent.control.close()
        if parent.owner == os.getpid():  # else a child of the process that this one was forked from
            parent.process.wait()
