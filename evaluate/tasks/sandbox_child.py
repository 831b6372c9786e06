"""The child of sandbox.py: drops its rights, then runs the program from standard input.

A script for `python -I -S`, with only the standard library; exits with PASSED if the program reaches its end.
"""

from __future__ import annotations

import _posixsubprocess
import ctypes
import math
import os
import resource
import sys
from typing import NoReturn

PASSED = 77  # a program that exits by itself, with any code, has not passed its tests
MEMORY_BYTES = 1 << 30
FILE_BYTES = 16 << 20
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
_PROCESSES = ("subprocess.", "os.system", "os.fork", "os.exec", "os.posix_spawn", "os.spawn", "ctypes.")
_SOCKETS = ("socket.",)


def leave_network() -> bool:
    """Move to an empty network namespace, even without loopback; return whether the system allows it."""
    try:
        return bool(ctypes.CDLL(None).unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0)
    except (OSError, AttributeError):
        return False


def refuse(refused: tuple[str, ...]) -> None:
    """Refuse these events from here on, by an audit hook, which a program cannot remove."""

    def hook(event: str, _arguments: tuple[object, ...]) -> None:
        if event.startswith(refused):
            raise PermissionError(f"{event} is refused")

    sys.addaudithook(hook)


def refuse_processes() -> None:
    """Refuse to start processes: they could outlive this one, and a limit on their number does not bind root."""
    refuse(_PROCESSES)

    def refused(*_arguments: object) -> NoReturn:
        raise PermissionError("another process is refused")

    _posixsubprocess.fork_exec = refused  # multiprocessing calls it without an event


def limit(seconds: float) -> None:
    """Limit processor time, memory and the size of files, and write no core dumps."""
    whole = math.ceil(seconds)
    for kind, most in (
        (resource.RLIMIT_CPU, whole),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most + (kind == resource.RLIMIT_CPU)))


def main(network: str, seconds: float) -> None:
    """Run the program from standard input, or with "probe" only print how the network is closed."""
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
