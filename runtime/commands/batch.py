"""A batch job: each line of a file is answered by a line of another, as many at a time as there are slots."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxspec.formats.errors import MxspecError
from mxspec.formats.manifest import MANIFEST
from mxspec.runtime.cli.interrupts import raising_interrupts
from mxspec.runtime.cli.report import answers_as_json
from mxspec.runtime.cli.settings import Defaults
from mxspec.runtime.commands.batch_lines import Line, key_of, parse_line, read_lines, request_of
from mxspec.runtime.commands.batch_output import BatchOutput, other_job
from mxspec.runtime.commands.batch_progress import BatchProgress, Counts, end_interrupted, end_job
from mxspec.runtime.scheduling.worker import QueueFullError

if TYPE_CHECKING:
    from mxspec.runtime.engine import Engine
    from mxspec.runtime.handle import Handle
    from mxspec.runtime.request import Request

MOST_REQUESTS = 512  # at most this many requests at a time, whatever the number of slots
PAUSE = 0.05  # seconds before a full queue is tried again
BACKLOG = 16  # finished answers, as a multiple of the requests, that may wait for an earlier one


def requests_at_a_time(slots: int) -> int:
    """Number of requests at a time, enough that no slot waits for the next line."""
    return min(2 * slots, MOST_REQUESTS)


class LineHash:
    """A hash of a line, the bundle and the command's settings: no answer is taken for one of another job."""

    def __init__(self, bundle: Path, defaults: Defaults) -> None:
        job = (bundle / MANIFEST).read_bytes() + repr(defaults).encode(errors="replace")
        self._job = hashlib.sha256(job)

    def of(self, line: Line) -> str:
        """16 hexadecimal digits."""
        job = self._job.copy()
        job.update(line.data.rstrip(b"\r\n"))
        return job.hexdigest()[:16]


class Answerer:
    """Answers lines with an engine, from any number of threads."""

    def __init__(self, engine: Engine, defaults: Defaults) -> None:
        self._engine = engine
        self._defaults = defaults
        self.hash = LineHash(engine.bundle.path, defaults)

    def answer(self, line: Line) -> dict[str, Any]:
        """The report on a line, once the answer is complete; an invalid line has an `error`."""
        report: dict[str, Any] = {"line": line.number, "hash": self.hash.of(line), "key": None}
        try:
            entry = parse_line(line)
            report["key"] = key_of(entry)
            request = request_of(self._engine, entry, self._defaults)
            answers = self._submitted(request).results()
        except MxspecError as error:
            return report | {"error": " ".join(str(error).split())}
        return report | answers_as_json(answers, request)

    def _submitted(self, request: Request) -> Handle:
        while True:
            try:
                return self._engine.submit(request)
            except QueueFullError:  # each sample of a line takes a place in the queue
                time.sleep(PAUSE)


def run_batch(engine: Engine, prompts: Path, out: Path, defaults: Defaults, *, json_output: bool) -> int:
    """Answer the lines of `prompts` in `out`, going on where an earlier run of the same job stopped; the exit code.

    Threads of its own each wait for one answer. After an interrupt, what was written stays.
    """
    with BatchOutput(out) as output:
        if output.same_file(prompts):
            raise MxspecError(f"--out {out}: is the file of the prompts; give another one")
        counts = Counts(lines=sum(1 for _ in read_lines(prompts)))
        answerer = Answerer(engine, defaults)
        requests = requests_at_a_time(engine.target.slots)
        pool = ThreadPoolExecutor(requests, "mxspec-batch")
        pending: deque[Future[dict[str, Any]]] = deque()
        try:
            with raising_interrupts(), BatchProgress(counts) as progress:

                def write_next() -> None:
                    report = pending.popleft().result()  # complete or not
                    output.write(report)
                    progress.add(report, prompts)

                for line in _unanswered(prompts, output, answerer.hash, counts):
                    pending.append(pool.submit(answerer.answer, line))
                    while pending and (pending[0].done() or len(pending) >= BACKLOG * requests):
                        write_next()
                while pending:
                    write_next()
        except KeyboardInterrupt:
            return end_interrupted(counts)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            engine.close()  # ends what the threads wait for
    return end_job(counts, json_output=json_output)


def _unanswered(prompts: Path, output: BatchOutput, line_hash: LineHash, counts: Counts) -> Iterator[Line]:
    """Lines after those that an earlier run of the same job has written, which are counted."""
    lines = read_lines(prompts)
    for answered in output.answered():
        line = next(lines, None)
        if line is None or (line.number, line_hash.of(line)) != (answered.number, answered.hash):
            raise other_job("--out", f"line {answered.number}", "line", "file")
        counts.add_line(line.number, bad=answered.bad)
    yield from lines
