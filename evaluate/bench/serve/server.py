"""A server in a process of its own, for as long as it is measured."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mxspec.formats.errors import MxspecError

START_SECONDS = 120.0
END_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server answers, and how long it took from its start until it did."""

    host: str
    port: int
    ready_seconds: float


@contextmanager
def specserve(bundle: Path, *, slots: int, threads: int | None) -> Iterator[Address]:
    """`specserve` with one bundle, ready; raises MxspecError where it does not become ready."""
    command = [sys.executable, "-m", "mxspec.serve.start", str(bundle), "--port", "0", "--slots", str(slots)]
    command += ["--no-access-log", *([] if threads is None else ["--threads", str(threads)])]
    began = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            if not line.startswith("listening on http://"):
                raise MxspecError(f"specserve: ended before it listened: {line.strip() or 'nothing said'}")
            host, _, port = line.strip().rpartition("/")[2].rpartition(":")
            _wait_ready(host, int(port), process)
            yield Address(host, int(port), time.perf_counter() - began)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=END_SECONDS)
            process.kill()


def _wait_ready(host: str, port: int, process: subprocess.Popen[str]) -> None:
    """Raises MxspecError where it ends, or takes longer than START_SECONDS."""
    until = time.monotonic() + START_SECONDS
    while _status(host, port) != http.client.OK:
        if process.poll() is not None:
            raise MxspecError(f"specserve ended with {process.returncode} before it was ready")
        if time.monotonic() > until:
            raise MxspecError(f"specserve was not ready within {START_SECONDS:.0f} s")
        time.sleep(0.01)


def _status(host: str, port: int) -> int:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()
