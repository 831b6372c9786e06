"""The kinds of tasks, by the names that users give."""

from __future__ import annotations

from pathlib import Path

from mxspec.evaluate.tasks.code import CODE
from mxspec.evaluate.tasks.summarisation import SUMMARISATION
from mxspec.evaluate.tasks.task import Task
from mxspec.formats.errors import MxspecError, did_you_mean

KINDS = {task.kind: task for task in (SUMMARISATION, CODE)}


def parse_task(argument: str) -> tuple[Task, Path]:
    """Parse `KIND=FILE.jsonl`; raises MxspecError."""
    kind, equals, file = argument.partition("=")
    if not equals or not file:
        raise MxspecError(f"--task: got {argument!r}, expected KIND=FILE.jsonl, such as summarisation=xsum.jsonl")
    if kind not in KINDS:
        raise MxspecError(f"--task: got {kind!r}, expected {' or '.join(KINDS)}{did_you_mean(kind, KINDS)}")
    return KINDS[kind], Path(file)
