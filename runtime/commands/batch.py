"""A batch job: each line of a file is answered by a line of another, as many at a time as there are slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxspec.formats.errors import MxspecError
from mxspec.runtime.cli.interrupts import raising_interrupts
from mxspec.runtime.commands.batch_answer import Answerer, requests_at_a_time
from mxspec.runtime.commands.batch_lines import Defaults, Line, read_lines
from mxspec.runtime.commands.batch_output import BatchOutput, other_job
from mxspec.runtime.commands.batch_progress import BatchProgress, Counts, end_interrupted, end_job

if TYPE_CHECKING:
    from mxspec.runtime.engine import Engine

BACKLOG = 16  # finished answers, as a multiple of the requests, that may wait for an earlier one


class Batch:
    """Answers lines on threads of its own, each of which waits for one answer, and writes them in their order."""

    def __init__(self, engine: Engine, prompts: Path, defaults: Defaults, output: BatchOutput) -> None:
        self._engine = engine
        self._prompts = prompts
        self._output = output
        self._answerer = Answerer(engine, defaults)
        self.counts = Counts(lines=sum(1 for _ in read_lines(prompts)))
        self._progress = BatchProgress(self.counts)

    def run(self) -> None:
        """Answer the lines without an answer; after an interrupt, what was written stays."""
        requests = requests_at_a_time(self._engine.target.slots)
        pool = ThreadPoolExecutor(requests, "mxspec-batch")
        pending: deque[Future[dict[str, Any]]] = deque()
        try:
            with self._progress:
                for line in self._unanswered():
                    pending.append(pool.submit(self._answerer.answer, line))
                    while pending and (pending[0].done() or len(pending) >= BACKLOG * requests):
                        self._write(pending.popleft())
                while pending:
                    self._write(pending.popleft())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            self._engine.close()  # ends what the threads wait for

    def _unanswered(self) -> Iterator[Line]:
        """Lines after those that an earlier run of the same job has written."""
        lines = read_lines(self._prompts)
        for answered in self._output.answered():
            line = next(lines, None)
            if line is None or (line.number, self._answerer.hash.of(line)) != (answered.number, answered.hash):
                raise other_job("--out", f"line {answered.number}", "line", "file")
            self.counts.add_line(line.number, bad=answered.bad)
        yield from lines

    def _write(self, answer: Future[dict[str, Any]]) -> None:
        """Write the next line, as soon as its answer is complete."""
        report = answer.result()
        self._output.write(report)
        self._progress.add(report, self._prompts)


def run_batch(engine: Engine, prompts: Path, out: Path, defaults: Defaults, *, json_output: bool) -> int:
    """Answer the lines of `prompts` in `out`, going on where an earlier run of the same job stopped; the exit code."""
    with BatchOutput(out) as output:
        if output.same_file(prompts):
            raise MxspecError(f"--out {out}: is the file of the prompts; give another one")
        batch = Batch(engine, prompts, defaults, output)
        try:
            with raising_interrupts():
                batch.run()
        except KeyboardInterrupt:
            return end_interrupted(batch.counts)
    return end_job(batch.counts, json_output=json_output)
