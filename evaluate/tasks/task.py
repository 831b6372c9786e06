"""A task: the rows of a file become prompts, and each answer gets a score."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxspec.formats.errors import MxspecError

Row = Mapping[str, Any]
EXTRA = "pip install 'mxspec[evaluate]'"


@dataclass(frozen=True, slots=True)
class Task:
    """A kind of task. Its rows have text in each of `fields`; an answer ends before any of `stops`.

    `score` gives the score of an answer to a row, from 0 to 1, named `metric`; with `runs_code` it runs the answer.
    """

    kind: str
    metric: str
    fields: tuple[str, ...]
    stops: tuple[str, ...]
    max_new_tokens: int
    prompt: Callable[[Row], str]
    score: Callable[[Row, str], float]
    runs_code: bool = False


def read_rows(path: Path, task: Task, limit: int | None = None) -> list[Row]:
    """The first `limit` rows of a .jsonl file; raises MxspecError if the file has no rows of this kind."""
    rows: list[Row] = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if limit is not None and len(rows) == limit:
                    break
                if line.strip():
                    rows.append(_row(line, task, f"--task {task.kind}={path}: line {number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise MxspecError(f"--task {task.kind}={path}: cannot be read as UTF-8 text: {error}") from None
    if not rows:
        raise MxspecError(f"--task {task.kind}={path}: holds no rows, expected JSON objects, one a line")
    return rows


def _row(line: str, task: Task, where: str) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise MxspecError(f"{where} is not JSON: {error}") from None
    names = ", ".join(task.fields)
    if not isinstance(row, dict):
        raise MxspecError(f"{where}: got {type(row).__name__}, expected an object with {names}")
    for field in task.fields:
        if not isinstance(row.get(field), str):
            raise MxspecError(f"{where}: has no text named {field!r}, expected {names}")
    return row


def require(module: str, package: str, purpose: str) -> Any:
    """Import a module of an optional package; raises MxspecError, in one line, if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MxspecError(f"{purpose} needs {package}, which is not installed: {EXTRA}") from None
