"""A batch job on Ray: Ray Data hands rows to replicas of the engine, and this process writes what they answer.

    rows ──► blocks of some rows ──► replicas, each an actor with its CPUs ──► parts
    this process                     any node that sees the bundle             this process

Rows and answers pass through this process, so that nodes need no file but the bundle. Nothing is written twice, and
nothing is missing from a job that ends: both are counted here, whatever Ray tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.runtime.command import EXIT_BAD_INPUT, print_json
from mxspec.runtime.commands.batch_answer import Answerer, LineHash, requests_at_a_time
from mxspec.runtime.commands.batch_lines import Defaults, Line
from mxspec.runtime.commands.batch_output import Answered
from mxspec.runtime.commands.batch_progress import BatchProgress, Counts
from mxspec.runtime.commands.interrupts import EXIT_INTERRUPTED, interrupt, on_interrupt
from mxspec.serve.job_parts import Parts
from mxspec.serve.job_rows import KINDS, Rows, name_of

if TYPE_CHECKING:
    import pyarrow as pa

BLOCKS_AT_A_TIME = 4  # of a replica: its slots are full while the last rows of a block are written
MOST_ROWS = 32  # of a block, as a multiple of the slots: what a long job is cut into
FEWEST_BLOCKS = 100  # of a replica, where there are enough rows
PATIENCE = 5.0  # seconds for the head of a cluster to answer


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a job runs; None is as many as there is room for."""

    address: str | None = None  # of a cluster; None: this machine
    replicas: int | None = None
    cpus: int | None = None  # of a replica
    slots: int = 8  # of a replica

    def fitted(self, nodes: Sequence[float]) -> tuple[int, int]:
        """Replicas, and CPUs of each, on nodes with so many CPUs; raises MxspecError where there is no room."""
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


class Replica:
    """An engine on as many threads as Ray gives it CPUs; answers all rows of a block at the same time."""

    def __init__(self, bundle: Path, defaults: Defaults, slots: int, threads: int, job: str) -> None:
        from mxspec.runtime.engine import Engine

        self._refusal = ""  # raised here, it would be a death that Ray tries again
        self._threads = ThreadPoolExecutor(requests_at_a_time(slots), "mxspec-batch")
        try:
            self._answerer = Answerer(Engine(bundle, slots=slots, threads=threads), defaults)
        except (MxspecError, OSError) as error:
            self._refusal = f"node {socket.gethostname()}: {error}"
            return
        if self._answerer.hash.of(NO_LINE) != job:
            self._refusal = f"node {socket.gethostname()}: {bundle} is another bundle there than it is here"

    async def __call__(self, block: pa.Table) -> pa.Table:
        import pyarrow as pa

        if self._refusal:
            return pa.table({"report": [json.dumps({"refusal": self._refusal})]})
        numbers, data = (block.column(name).to_pylist() for name in ("line", "data"))
        loop = asyncio.get_running_loop()
        answers = (
            loop.run_in_executor(self._threads, self._answerer.answer, line) for line in map(Line, numbers, data)
        )
        return pa.table({"report": [json.dumps(report) for report in await asyncio.gather(*answers)]})


NO_LINE = Line(0, b"")  # its hash is of bundle and settings alone


def run_job(bundle: Path, rows: Rows, output: Path, defaults: Defaults, layout: Layout, *, json_output: bool) -> int:
    """Answer the rows that `output` has no answer to; the exit code. Raises MxspecError."""
    bundle = Bundle.open(bundle.resolve()).path
    line_hash = LineHash(bundle, defaults)
    counts = Counts(lines=0)
    with Parts(output, KINDS.get(output.suffix, rows.kind)) as parts:
        lines = _unanswered(rows, parts, line_hash, counts)
        progress = BatchProgress(counts)
        try:
            if lines:
                with _ray_messages(progress.note), _ray(layout) as (replicas, cpus), progress:
                    job = (bundle, defaults, layout.slots, cpus, line_hash.of(NO_LINE))
                    for report in _answers(lines, job, replicas, layout):
                        parts.write(report)
                        counts.add_answer(report)
                        progress.update()
                        if "error" in report:
                            progress.note(f"error: {rows.path} line {report['line']}: {report['error']}")
        except KeyboardInterrupt:
            parts.finish()
            click.echo(f"{counts.closing_line()} · interrupted: the same command goes on from here", err=True)
            return EXIT_INTERRUPTED
        parts.finish()
    if json_output:
        print_json(counts.as_json())
    else:
        click.echo(counts.closing_line(), err=True)
    return EXIT_BAD_INPUT if counts.bad else 0


def _unanswered(rows: Rows, parts: Parts, line_hash: LineHash, counts: Counts) -> list[Line]:
    """The rows without an answer, in their order; counts all. Raises MxspecError for what does not belong together."""
    answered: dict[str, Answered] = {}
    for answer in parts.answered():
        answered[_name_of_answer(answer)] = answer
    numbers: dict[str, int] = {}
    unanswered = []
    for line in rows:
        counts.lines += 1
        name = name_of(line)
        if numbers.setdefault(name, line.number) != line.number:
            raise MxspecError(f"INPUT {rows.path}: key {name} stands in lines {numbers[name]} and {line.number}")
        found = answered.pop(name, None)
        if found is None:
            unanswered.append(line)
        elif found.hash != line_hash.of(line):
            raise _stranger(name)
        else:
            counts.add_line(line.number, bad=found.bad)
    for name in answered:
        raise _stranger(name)
    return unanswered


def _name_of_answer(answer: Answered) -> str:
    return f"line {answer.number}" if answer.key is None else json.dumps(answer.key, sort_keys=True)


def _stranger(name: str) -> MxspecError:
    what = name if name.startswith("line ") else f"key {name}"
    return MxspecError(
        f"OUTPUT: its answer to {what} is of another row, bundle or settings; "
        "give another folder, or what it was begun with"
    )


@contextlib.contextmanager
def _ray(layout: Layout) -> Iterator[tuple[int, int]]:
    """A Ray of our own, or a cluster's; how many replicas it has room for, and CPUs of each."""
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
        with _without_ray_log():
            ray.init(layout.address or "local", **settings)
        yield layout.fitted([node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]])
    except (ConnectionError, ValueError) as error:
        raise MxspecError(f"--address {layout.address}: {error}") from None
    except (ray.exceptions.RayActorError, ray.exceptions.RaySystemError) as error:
        raise MxspecError(f"Ray: {error}; the same command goes on from here") from None
    finally:
        ray.shutdown()


class _Messages(io.TextIOBase):
    """What Ray prints of its workers and nodes, the first sentence of each message, and each once."""

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
def _ray_messages(note: Callable[[str], None]) -> Iterator[None]:
    """Here they go where `note` writes, until Ctrl-C, which ends workers."""
    messages = _Messages(note)

    def end() -> None:
        messages.over = True
        interrupt()

    with contextlib.redirect_stdout(messages), on_interrupt(end):
        yield


def _require_head(address: str) -> None:
    """Raise MxspecError where nobody listens there; Ray itself would wait for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise MxspecError(f"--address {address}: expected HOST:PORT of a cluster's head, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise MxspecError(f"--address {address}: no cluster answers there: {error}") from None


@contextlib.contextmanager
def _without_ray_log() -> Iterator[None]:
    """Ray's C++ side writes its log to standard error: errors alone, and nothing about how it was told so."""
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


def _answers(lines: Sequence[Line], job: tuple[Any, ...], replicas: int, layout: Layout) -> Iterator[dict[str, Any]]:
    """The reports on the lines, as they come; raises MxspecError where a replica has no engine."""
    import pyarrow as pa
    import ray.data

    size = rows_of_a_block(len(lines), replicas, layout.slots)
    blocks = [lines[i : i + size] for i in range(0, len(lines), size)]
    dataset = ray.data.from_arrow(
        [pa.table({"line": [line.number for line in block], "data": [line.data for line in block]}) for block in blocks]
    ).map_batches(
        Replica,
        fn_constructor_args=job,
        batch_size=None,
        batch_format="pyarrow",
        num_cpus=job[3],
        compute=ray.data.ActorPoolStrategy(
            size=replicas,
            max_concurrent_calls_per_actor=BLOCKS_AT_A_TIME,
            max_tasks_in_flight_per_actor=2 * BLOCKS_AT_A_TIME,
        ),
    )
    missing = {line.number for line in lines}
    for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for report in map(json.loads, table.column("report").to_pylist()):
            if "refusal" in report:
                raise MxspecError(report["refusal"])
            if report["line"] in missing:
                missing.remove(report["line"])
                yield report
    if missing:
        raise MxspecError(f"Ray: {len(missing)} rows have no answer; the same command goes on from here")


def rows_of_a_block(rows: int, replicas: int, slots: int) -> int:
    """What a replica is handed: few, so that all have work to the end and a death loses little; more of many."""
    shared = -(-rows // replicas)
    return max(1, min(slots, shared), min(MOST_ROWS * slots, shared // FEWEST_BLOCKS))
