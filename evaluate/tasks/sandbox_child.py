"""The child of sandbox.py: gives up what it may do, then runs the program on its standard input.

A script of the standard library alone, for `python -I -S`; exits with PASSED where the program came to its end.
"""

from __future__ import annotations

import _posixsubprocess
import ctypes
import math
import os
import resource
import sys
from typing import NoReturn

PASSED = 77  # a program that ends itself, whatever it says, has not passed its tests
MEMORY_BYTES = 1 << 30
FILE_BYTES = 16 << 20
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
_PROCESSES = ("subprocess.", "os.system", "os.fork", "os.exec", "os.posix_spawn", "os.spawn", "ctypes.")
_SOCKETS = ("socket.",)


def leave_network() -> bool:
    """Move to a network namespace that holds nothing, not even loopback; whether the system allows it."""
    try:
        return bool(ctypes.CDLL(None).unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0)
    except (OSError, AttributeError):
        return False


def refuse(refused: tuple[str, ...]) -> None:
    """None of these events from here on, by an audit hook, which cannot be taken away."""

    def hook(event: str, _arguments: tuple[object, ...]) -> None:
        if event.startswith(refused):
            raise PermissionError(f"{event} is refused")

    sys.addaudithook(hook)


def refuse_processes() -> None:
    """No other process from here on: a limit on their number does not hold for root, and one could outlive this."""
    refuse(_PROCESSES)

    def refused(*_arguments: object) -> NoReturn:
        raise PermissionError("another process is refused")

    _posixsubprocess.fork_exec = refused  # multiprocessing calls it without an event


def limit(seconds: float) -> None:
    """Processor time, memory, the size of files, and no core dumps."""
    whole = math.ceil(seconds)
    for kind, most in (
        (resource.RLIMIT_CPU, whole),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most + (kind == resource.RLIMIT_CPU)))


def main(network: str, seconds: float) -> None:
    """Run the program on standard input, or with "probe" only say how the network is kept away."""
    program = sys.stdin.read()
    alone = network != "shared" and leave_network()
    if network == "probe":
        print("a network namespace of its own" if alone else "sockets refused inside Python")
        return
    refuse_processes()
    if not alone:
        refuse(_SOCKETS)
    limit(seconds)
    exec(compile(program, "answer.py", "exec"), {"__name__": "__main__"})
    os._exit(PASSED)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
