"""Run code that a model wrote: another process, with limits of time and memory, alone and without a network.

This keeps accidents in, not attackers: the process reads what its user may read. What is not trusted belongs into a
container or a virtual machine besides.
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
    """Whether a Python program runs to its end, with the standard library alone, in an empty folder.

    Processor time is limited to `seconds`, memory to sandbox_child.MEMORY_BYTES; the program can start no process.
    Without `namespace` the child refuses sockets by itself, as it does where the system has no namespaces for its user.
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
    """How the network is kept away on this machine."""
    said = subprocess.run(_command("probe", "1"), capture_output=True, text=True, check=True, input="")
    return said.stdout.strip()


def _command(network: str, seconds: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(Path(sandbox_child.__file__)), network, seconds]


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child with all processes that it began."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
