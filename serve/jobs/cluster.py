"""Where a job runs: a Ray of its own or a cluster, with its number of replicas, and Ray's messages meanwhile."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mxspec.formats.errors import MxspecError
from mxspec.runtime.cli.interrupts import interrupt, on_interrupt

PATIENCE = 5.0  # seconds for the head of a cluster to answer


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """Where a job runs; None stands for as many as there is room for."""

    address: str | None = None  # address of a cluster; None: this machine
    replicas: int | None = None
    cpus: int | None = None  # of a replica
    slots: int = 8  # of a replica

    def fitted(self, nodes: Sequence[float]) -> tuple[int, int]:
        """Number of replicas, and CPUs of each, on nodes with these CPUs; raises MxspecError where there is no room."""
        largest = int(max(nodes, default=0))
        shared = largest if self.replicas is None else min(largest, int(sum(nodes)) // self.replicas)
        cpus = max(1, shared) if self.cpus is None else self.cpus
        room = sum(int(node) // cpus for node in nodes)
        replicas = room if self.replicas is None else self.replicas
        if not 0 < replicas <= room:
            raise MxspecError(
                f"--replicas {max(1, replicas)}: there is room for {room} of {cpus} CPUs each; "
                f"the largest of {len(nodes)} nodes has {largest}"
            )
        return replicas, cpus


@contextlib.contextmanager
def ray_of(layout: ClusterLayout) -> Iterator[tuple[int, int]]:
    """Connect to a Ray of our own or a cluster; gives the number of replicas, and CPUs of each."""
    if layout.address is not None:
        _require_head(layout.address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if layout.address is None:
        cores = len(os.sched_getaffinity(0))
        settings |= {"num_cpus": cores, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    try:
        try:
            with _without_ray_log():
                ray.init(layout.address or "local", **settings)
        except Exception as error:  # Ray raises errors of any kind here
            where = "Ray: cannot be started" if layout.address is None else f"--address {layout.address}"
            raise MxspecError(f"{where}: {error}") from None
        yield layout.fitted([node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]])
    except (ray.exceptions.RayActorError, ray.exceptions.RaySystemError) as error:
        raise MxspecError(f"Ray: {error}; the same command goes on from here") from None
    finally:
        ray.shutdown()


def _require_head(address: str) -> None:
    """Raise MxspecError if nothing listens at the address; Ray itself would wait for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise MxspecError(f"--address {address}: expected HOST:PORT of a cluster's head, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise MxspecError(f"--address {address}: no cluster answers: {error}") from None


@contextlib.contextmanager
def _without_ray_log() -> Iterator[None]:
    """Limit the log that Ray's C++ side writes to standard error to errors, without a line about that setting."""
    if "RAY_BACKEND_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["RAY_BACKEND_LOG_LEVEL"] = "fatal"
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class Messages(io.TextIOBase):
    """Ray's messages about its workers and nodes: the first sentence of each, once."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._noted: set[str] = set()
        self.over = False

    def write(self, text: str) -> int:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text).strip()
        sentence = re.split(r"[.:]\s|\n", plain, maxsplit=1)[0]
        if sentence and sentence not in self._noted and not self.over:
            self._noted.add(sentence)
            self._note(f"Ray: {sentence}")
        return len(text)


@contextlib.contextmanager
def ray_messages(note: Callable[[str], None]) -> Iterator[None]:
    """In this block, pass Ray's messages to `note`, until Ctrl-C, which ends workers."""
    messages = Messages(note)

    def end() -> None:
        messages.over = True
        interrupt()

    with contextlib.redirect_stdout(messages), on_interrupt(end):
        yield
