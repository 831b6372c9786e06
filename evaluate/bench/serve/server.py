"""Servers in processes of their own, which end with their measurement."""

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
        """The address in the line that specserve prints when it listens; the line ends with the URL."""
        host, _, port = line.rpartition("/")[2].rpartition(":")
        return cls(host, int(port))

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def ready(self) -> bool:
        """Whether the server's /health says that it is ready."""
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
    """Wait until a server is ready; raises MxspecError if it ends, or takes more than START_SECONDS."""
    until = time.monotonic() + START_SECONDS
    while not address.ready():
        if process.poll() is not None:
            raise MxspecError(f"{name} ended with {process.returncode}: {last_words() or 'no output'}")
        if time.monotonic() > until:
            raise MxspecError(f"{name} was not ready within {START_SECONDS:.0f} s{hint}")
        time.sleep(0.01)


def end(process: subprocess.Popen[Any]) -> int:
    """Ask a server to end, or kill it after END_SECONDS; returns its exit code."""
    process.terminate()
    try:
        return process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def start_specserve(*arguments: object) -> subprocess.Popen[str]:
    """Start `specserve` on a free port; it prints the port on standard error."""
    command = [sys.executable, "-m", "mxspec.serve.start", *arguments, "--port", 0]
    return subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)


@dataclass(slots=True)
class Specserve:
    """A server that is ready."""

    address: Address
    process: subprocess.Popen[str]
    ready_seconds: float  # since the server's start
    said: str = ""  # standard error after the line that it listens; set when the server has ended


@contextmanager
def specserve(bundle: Path, *options: object) -> Iterator[Specserve]:
    """A ready `specserve` with one bundle on a free port; raises MxspecError if it does not become ready."""
    began = time.perf_counter()
    with start_specserve(bundle, "--no-access-log", *options) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline().strip()
            if "listening on http://" not in line:
                raise MxspecError(f"specserve: ended before it listened: {line or 'no output'}")
            address = Address.of_line(line)
            wait_ready(address, process, "specserve", process.stderr.read)
            running = Specserve(address, process, time.perf_counter() - began)
            yield running
            process.terminate()
            running.said = process.stderr.read()
        finally:
            end(process)
