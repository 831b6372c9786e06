"""Servers in processes of their own, for as long as they are measured."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxspec.formats.errors import MxspecError

START_SECONDS = 120.0
END_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server answers."""

    host: str
    port: int

    @classmethod
    def of_line(cls, line: str) -> Address:
        """Of the line that specserve says when it listens: it ends with the URL."""
        host, _, port = line.rpartition("/")[2].rpartition(":")
        return cls(host, int(port))

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def ready(self) -> bool:
        """Whether its /health says so."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def wait_ready(
    address: Address, process: subprocess.Popen[Any], name: str, last_words: Callable[[], str], hint: str = ""
) -> None:
    """Wait until a server is ready; raises MxspecError where it ends, or is not within START_SECONDS."""
    until = time.monotonic() + START_SECONDS
    while not address.ready():
        if process.poll() is not None:
            raise MxspecError(f"{name} ended with {process.returncode}: {last_words() or 'nothing said'}")
        if time.monotonic() > until:
            raise MxspecError(f"{name} was not ready within {START_SECONDS:.0f} s{hint}")
        time.sleep(0.01)


def end(process: subprocess.Popen[Any]) -> int:
    """Ask a server to end, and kill it where it does not; its exit code."""
    process.terminate()
    try:
        return process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def start_specserve(*arguments: object) -> subprocess.Popen[str]:
    """`specserve` on a free port, which it says on standard error."""
    command = [sys.executable, "-m", "mxspec.serve.start", *arguments, "--port", 0]
    return subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)


@dataclass(slots=True)
class Specserve:
    """A server that is ready."""

    address: Address
    process: subprocess.Popen[str]
    ready_seconds: float  # from its start
    said: str = ""  # on standard error after that it listens; once it has ended


@contextmanager
def specserve(bundle: Path, *options: object) -> Iterator[Specserve]:
    """`specserve` with one bundle on a free port, ready; raises MxspecError where it does not become ready."""
    began = time.perf_counter()
    with start_specserve(bundle, "--no-access-log", *options) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline().strip()
            if not line.startswith("listening on http://"):
                raise MxspecError(f"specserve: ended before it listened: {line or 'nothing said'}")
            address = Address.of_line(line)
            wait_ready(address, process, "specserve", process.stderr.read)
            running = Specserve(address, process, time.perf_counter() - began)
            yield running
            process.terminate()
            running.said = process.stderr.read()
        finally:
            end(process)
