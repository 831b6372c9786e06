"""The inside of the process that ForkServer starts: it forks, watches what it forked, and says how that ended."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from mxspec.runtime.guarded.wire import (
    ENDED,
    ERROR,
    HAS_ENDED,
    OWN_DEATHS,
    RESULT,
    TOO_SLOW,
    read_request,
    send_answer,
)

LONGEST = 300  # characters of an error

Answer = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a forked process may take: memory beyond that of the process it was forked from, and stack."""

    memory_bytes: int
    stack_bytes: int
    niceness: int = 5  # what answers others has precedence


def fork_for_each(prepare: Callable[..., Answer], bounds: Bounds) -> None:
    """Answer each request that comes in a process of its own; `prepare` is given the beginning once, and its time.

    Standard input is the socket of the owner, whose end ends everything.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's, whose end is the end of the requests
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the timer's signal ends a process also amid a function of C
    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as control:
        try:
            with Connection(os.dup(control.fileno())) as start:
                seconds, *arguments = read_request(start)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, seconds)  # 0 is no limit
        answer = _prepared(prepare, arguments)
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.nice(bounds.niceness)
        _limit(resource.RLIMIT_STACK, bounds.stack_bytes)
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
        self._children: dict[int, Connection] = {}  # by process id
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
            end = Connection(descriptor)
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
                if os.WIFSIGNALED(status):
                    with suppress(OSError):
                        send_answer(end, _death(os.WTERMSIG(status), self._bounds))


def _answer_one(end: Connection, answer: Answer, bounds: Bounds) -> Any:
    """What a forked process does: it answers one request; one that takes too much time ends the process."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        limit_memory(bounds.memory_bytes, beyond=_used_bytes())
        seconds, *arguments = read_request(end)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        text = _answered(answer, arguments, bounds)
        signal.setitimer(signal.ITIMER_PROF, 0)
        send_answer(end, text)
        status = 0
    finally:
        os._exit(status)


def _answered(answer: Answer, arguments: list[Any], bounds: Bounds) -> str:
    try:
        return RESULT + answer(*arguments)
    except MemoryError:
        return ERROR + f"more than {bounds.memory_bytes >> 20} MB of memory"
    except Exception as error:  # what is untrusted can make Python raise anything
        message = getattr(error, "problem", str(error))  # a GenerationError's owner knows the field
        line = " ".join(message.split()) or type(error).__name__
        return ERROR + (line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}...")


def _death(number: int, bounds: Bounds) -> str:
    """What is answered where a process has ended by a signal."""
    match number:
        case signal.SIGPROF:
            return ERROR + TOO_SLOW
        case signal.SIGSEGV | signal.SIGBUS:
            return ERROR + "it is nested too deep"
        case signal.SIGABRT:
            return ERROR + f"it takes more than {bounds.memory_bytes >> 20} MB of memory"
    return (ERROR if number in OWN_DEATHS else ENDED) + f"{HAS_ENDED} by signal {number}"


def limit_memory(bytes_: int, beyond: int = 0) -> None:
    """Limit the address space to so many bytes, where the system allows a limit; `beyond`: those in use already."""
    _limit(resource.RLIMIT_AS, bytes_ + beyond)
    _limit(resource.RLIMIT_CORE, 0)


def _used_bytes() -> int:
    """The address space in use."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    with suppress(OSError, ValueError):  # a filter of system calls, as of a service, may refuse it
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
