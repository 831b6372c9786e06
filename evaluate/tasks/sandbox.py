"""Run code that a model wrote, in a process with limits of time and memory, no network and no other processes.

The sandbox stops accidents, not attackers: the process can read all files that its user can read. Run untrusted code in
a container or a virtual machine as well.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Literal

from mxspec.evaluate.tasks import sandbox_child

Outcome = Literal["passed", "failed", "timed out"]
SECONDS = 10.0
STARTUP_SECONDS = 5.0


def run_code(program: str, seconds: float = SECONDS, *, namespace: bool = True) -> Outcome:
    """Run a Python program in an empty folder, with only the standard library; report whether it reaches its end.

    Processor time is limited to `seconds`, memory to sandbox_child.MEMORY_BYTES; the program can start no process.
    The network is closed by a namespace; without `namespace`, or if the system refuses one, the child refuses sockets.
    """
    with tempfile.TemporaryDirectory(prefix="mxspec-run-") as folder:
        child = subprocess.Popen(
            _command("own" if namespace else "shared", str(seconds)),
            cwd=folder,
            env={"LANG": "C.UTF-8"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            child.communicate(program.encode(errors="replace"), timeout=seconds + STARTUP_SECONDS)
        except subprocess.TimeoutExpired:
            return "timed out"
        finally:
            _end(child)
    if child.returncode == -signal.SIGXCPU:
        return "timed out"
    return "passed" if child.returncode == sandbox_child.PASSED else "failed"


@lru_cache(maxsize=1)
def isolation() -> str:
    """How the network is closed to programs on this machine."""
    said = subprocess.run(_command("probe", "1"), capture_output=True, text=True, check=True, input="")
    return said.stdout.strip()


def _command(network: str, seconds: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(Path(sandbox_child.__file__)), network, seconds]


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and all processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
