"""Guarded processes that are forked, one a request, from one that holds what they all need.

Requests do not wait for each other, and one that is given up ends its process at once.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
from contextlib import ExitStack, suppress
from typing import Any

from mxspec.runtime.guarded.process import (
    CANNOT_START,
    HAS_ENDED,
    ProcessEndedError,
    RefusedError,
    death,
    result_of,
    start,
)
from mxspec.runtime.guarded.process_quota import GiveUp, ProcessQuota, check
from mxspec.runtime.guarded.wire import read_answer, send_request

TICK_SECONDS = 0.02  # time after which a given-up request is seen


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
        self._parent: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._owner = 0

    def ask(self, seconds: float, *request: Any, give_up: GiveUp, quota: ProcessQuota) -> str:
        """The answer to a request that may take so many seconds of processor time, once `quota` allows it.

        `give_up` is called now and then; once it is true, the request ends as GivenUpError. Raises RefusedError,
        TooSlowError among them, and ProcessEndedError where the fault is not the request's.
        """
        with ExitStack() as stack:
            stack.enter_context(quota.entered(give_up))
            end = stack.enter_context(self._fork())
            requests, answers = (stack.enter_context(end.makefile(mode)) for mode in ("wb", "rb"))
            try:
                send_request(requests, seconds, *request)
                while not _readable(end):
                    check(give_up)
                answer = read_answer(answers)
            except OSError:
                answer = None
            if answer is None:
                check(give_up)
                raise self._failed_start() or ProcessEndedError(HAS_ENDED)
        return result_of(answer)

    def close(self) -> None:
        """End the process and those forked from it; the next request starts another."""
        with self._lock:
            self._end()

    def _fork(self) -> socket.socket:
        """The connection to a new process."""
        with ExitStack() as ends, self._lock:
            ours, theirs = map(ends.enter_context, socket.socketpair())
            for _ in range(2):
                try:
                    socket.send_fds(self._running(), [b"+"], [theirs.fileno()])
                    return ours.dup()
                except OSError:  # the process has ended since
                    self._end()
        raise ProcessEndedError(CANNOT_START)

    def _running(self) -> socket.socket:
        if self._parent is not None and self._owner == os.getpid() and self._parent[0].poll() is None:
            return self._parent[1]
        self._end()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._parent = start(self._module, stdin=theirs), ours
            except ProcessEndedError:
                ours.close()
                raise
        self._owner = os.getpid()
        with ours.makefile("wb") as stream:
            send_request(stream, self._start_seconds, *self._beginning)
        return ours

    def _failed_start(self) -> RefusedError | None:
        """Why the process that forks has ended; None where it goes on, or has ended unasked."""
        if self._parent is None:
            return None
        with suppress(subprocess.TimeoutExpired):
            status = self._parent[0].wait(TICK_SECONDS)  # its end of a connection is gone a little before itself
            return death(status, self._start_seconds)
        return None

    def _end(self) -> None:
        found, self._parent = self._parent, None
        if found is not None:
            process, control = found
            control.close()
            if self._owner == os.getpid():
                process.wait()


def _readable(end: socket.socket) -> bool:
    return bool(select.select([end], [], [], TICK_SECONDS)[0])
