"""The inside of the process that ForkServer starts: it forks, watches what it forked, and says how that ended."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mxspec.runtime.guarded.child import (
    Answer,
    answer_requests,
    ignore_interrupts,
    limit_memory,
    limit_stack,
    used_bytes,
)
from mxspec.runtime.guarded.process import HAS_ENDED, OWN_DEATHS, TOO_SLOW
from mxspec.runtime.guarded.wire import ENDED, LAST, read_request, send_answer

NICENESS = 5  # what answers others has precedence


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a forked process may take: memory beyond that of the process it was forked from, and stack."""

    memory_bytes: int
    stack_bytes: int


def fork_for_each(prepare: Callable[..., Answer], bounds: Bounds) -> None:
    """Answer each request that comes in a process of its own; `prepare` is given the beginning once, and its time.

    Standard input is the socket of the owner, whose end ends everything.
    """
    ignore_interrupts()
    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as control:
        with control.makefile("rb", buffering=0) as stream:  # which leaves what comes after the beginning
            beginning = read_request(stream)
        if beginning is None:
            return
        seconds, *arguments = beginning
        signal.setitimer(signal.ITIMER_PROF, seconds)  # 0 is no limit
        answer = _prepared(prepare, arguments)
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.nice(NICENESS)
        limit_stack(bounds.stack_bytes)
        _Forking(control, answer, bounds).run()


def _prepared(prepare: Callable[..., Answer], arguments: list[Any]) -> Answer:
    """The answers of what was prepared; where that failed, each answer is the error."""
    try:
        return prepare(*arguments)
    except Exception as error:
        failure = error

    def fail(*_: Any) -> str:
        raise failure

    return fail


class _Forking:
    def __init__(self, control: socket.socket, answer: Answer, bounds: Bounds) -> None:
        self._control = control
        self._answer = answer
        self._bounds = bounds
        self._children: dict[int, socket.socket] = {}  # by process id
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._wakes, wake = os.pipe()
        os.set_blocking(wake, False)
        self._poll.register(self._wakes, select.POLLIN)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # so that it wakes the poll
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def run(self) -> None:
        """Fork and watch until the owner is gone."""
        while True:
            ready = [descriptor for descriptor, _ in self._poll.poll()]
            ready.sort(key=self._wakes.__eq__)  # last what closes descriptors: the others may be among them
            for descriptor in ready:
                if descriptor == self._wakes:
                    os.read(self._wakes, 4096)
                    self._reap()
                elif descriptor != self._control.fileno():
                    self._kill(descriptor)
                elif not self._take():
                    for child in self._children:
                        os.kill(child, signal.SIGKILL)
                    return

    def _take(self) -> bool:
        """Fork for the next request; False if there will be no more."""
        _, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        for descriptor in descriptors:
            end = socket.socket(fileno=descriptor)
            try:
                child = os.fork()
            except OSError:  # the system has no process left: whoever asks hears the end of the connection
                end.close()
                continue
            if child == 0:
                _answer_one(end, self._answer, self._bounds)
            self._children[child] = end
            self._poll.register(end, 0)  # which shows its hang-up alone
        return bool(descriptors)

    def _kill(self, descriptor: int) -> None:
        """End the process whose owner has hung up."""
        self._poll.unregister(descriptor)
        for child, end in self._children.items():
            if end.fileno() == descriptor:
                os.kill(child, signal.SIGKILL)

    def _reap(self) -> None:
        """Say why the processes that have ended did so."""
        while self._children:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            with self._children.pop(child) as end:
                with suppress(KeyError):  # hung up
                    self._poll.unregister(end)
                with suppress(OSError), end.makefile("wb") as stream:
                    if os.WIFSIGNALED(status):
                        send_answer(stream, _death(os.WTERMSIG(status), self._bounds))


def _answer_one(end: socket.socket, answer: Answer, bounds: Bounds) -> Any:
    """What a forked process does: it answers on the connection until this ends."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        limit_memory(bounds.memory_bytes, beyond=used_bytes())
        with end.makefile("rb") as requests, end.makefile("wb") as answers:
            answer_requests(requests, answers, answer, bounds.memory_bytes)
        status = 0
    finally:
        os._exit(status)


def _death(number: int, bounds: Bounds) -> str:
    """What is answered where a process has ended by a signal."""
    match number:
        case signal.SIGPROF:
            return LAST + TOO_SLOW
        case signal.SIGSEGV | signal.SIGBUS:
            return LAST + "it is nested too deep"
        case signal.SIGABRT:
            return LAST + f"it takes more than {bounds.memory_bytes >> 20} MB of memory"
    return (LAST if number in OWN_DEATHS else ENDED) + f"{HAS_ENDED} by signal {number}"
