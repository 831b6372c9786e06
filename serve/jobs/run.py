"""A batch job on Ray: Ray Data hands rows to replicas of the engine, and this process writes what they answer.

    rows ──► blocks of some rows ──► replicas, each an actor with its CPUs ──► parts
    this process                     any node that sees the bundle             this process

Rows and answers pass through this process, so that nodes need no file but the bundle. Nothing is written twice, and
nothing is missing from a job that ends: both are counted here, whatever Ray tries again.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.runtime.cli.settings import Defaults
from mxspec.runtime.commands.batch import Answerer, LineHash, requests_at_a_time
from mxspec.runtime.commands.batch_lines import Line
from mxspec.runtime.commands.batch_output import Answered, other_job
from mxspec.runtime.commands.batch_progress import BatchProgress, Counts, end_interrupted, end_job
from mxspec.serve.jobs.cluster import ClusterLayout, ray_messages, ray_of
from mxspec.serve.jobs.parts import Parts
from mxspec.serve.jobs.rows import KINDS, Rows, name_of, row_name

if TYPE_CHECKING:
    import pyarrow as pa

BLOCKS_AT_A_TIME = 4  # blocks of a replica: its slots stay full while the last rows of a block are written
MOST_ROWS = 32  # rows of a block in a long job, as a multiple of the slots
FEWEST_BLOCKS = 100  # blocks of a replica, if there are enough rows


class Replica:
    """An engine on as many threads as Ray gives it CPUs; answers all rows of a block at the same time."""

    def __init__(self, bundle: Path, defaults: Defaults, slots: int, threads: int, job: str) -> None:
        from mxspec.runtime.engine import Engine

        self._refusal = ""  # an error raised here would be a death, which Ray tries again
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


def run_job(
    bundle: Path, rows: Rows, output: Path, defaults: Defaults, layout: ClusterLayout, *, json_output: bool
) -> int:
    """Answer the rows that `output` has no answer to; the exit code. Raises MxspecError."""
    bundle = Bundle.open(bundle.resolve()).path
    line_hash = LineHash(bundle, defaults)
    counts = Counts(lines=0)
    with Parts(output, KINDS.get(output.suffix, rows.kind)) as parts:
        lines = _unanswered(rows, parts, line_hash, counts)
        progress = BatchProgress(counts)
        try:
            if lines:
                with ray_messages(progress.note), ray_of(layout) as (replicas, cpus), progress:
                    job = (bundle, defaults, layout.slots, cpus, line_hash.of(NO_LINE))
                    for report in _answers(lines, job, replicas, layout):
                        parts.write(report)
                        progress.add(report, rows.path)
        except KeyboardInterrupt:
            parts.finish()
            return end_interrupted(counts)
        parts.finish()
    return end_job(counts, json_output=json_output)


def _unanswered(rows: Rows, parts: Parts, line_hash: LineHash, counts: Counts) -> list[Line]:
    """The rows without an answer, in their order; counts all. Raises MxspecError for rows or answers of another job."""
    answered: dict[str, Answered] = {}
    for answer in parts.answered():
        answered[row_name(answer.number, answer.key)] = answer
    numbers: dict[str, int] = {}
    unanswered = []
    for line in rows:
        counts.lines += 1
        name = name_of(line)
        if numbers.setdefault(name, line.number) != line.number:
            raise MxspecError(
                f"INPUT {rows.path}: key {name} appears twice, in lines {numbers[name]} and {line.number}"
            )
        found = answered.pop(name, None)
        if found is None:
            unanswered.append(line)
        elif found.hash != line_hash.of(line):
            raise _of_another_job(name)
        else:
            counts.add_line(line.number, bad=found.bad)
    for name in answered:
        raise _of_another_job(name)
    return unanswered


def _of_another_job(name: str) -> MxspecError:
    return other_job("OUTPUT", name if name.startswith("line ") else f"key {name}", "row", "folder")


def _answers(
    lines: Sequence[Line], job: tuple[Any, ...], replicas: int, layout: ClusterLayout
) -> Iterator[dict[str, Any]]:
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
    """Number of rows that a replica gets at a time: few, so that all have work to the end and a death loses little."""
    shared = -(-rows // replicas)
    return max(1, min(slots, shared), min(MOST_ROWS * slots, shared // FEWEST_BLOCKS))
