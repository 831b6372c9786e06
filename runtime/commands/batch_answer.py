"""The answer to one line of a batch job, on one machine and on many."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxspec.formats.errors import MxspecError
from mxspec.formats.manifest import MANIFEST
from mxspec.runtime.cli.report import answers_as_json
from mxspec.runtime.commands.batch_lines import Defaults, Line, key_of, parse_line, request_of
from mxspec.runtime.scheduling.worker import QueueFullError

if TYPE_CHECKING:
    from mxspec.runtime.engine import Engine
    from mxspec.runtime.handle import Handle
    from mxspec.runtime.request import Request

MOST_REQUESTS = 512  # at most this many requests at a time, whatever the number of slots
PAUSE = 0.05  # seconds before a full queue is tried again


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
