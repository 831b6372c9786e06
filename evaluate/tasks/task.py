"""Tasks: the rows of a file become prompts, and each answer gets a score.

Rows of `summarisation` have the form of XSum, a document and its one-sentence summary; those of `code` the form of
HumanEval, the beginning of a function and its tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mxspec.evaluate.tasks.sandbox import run_code
from mxspec.formats.errors import MxspecError, did_you_mean, needs

Row = Mapping[str, Any]


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


def parse_task(argument: str) -> tuple[Task, Path]:
    """Parse `KIND=FILE.jsonl`; raises MxspecError."""
    kind, equals, file = argument.partition("=")
    if not equals or not file:
        raise MxspecError(f"--task: got {argument!r}, expected KIND=FILE.jsonl, such as summarisation=xsum.jsonl")
    if kind not in KINDS:
        raise MxspecError(f"--task: got {kind!r}, expected {' or '.join(KINDS)}{did_you_mean(kind, KINDS)}")
    return KINDS[kind], Path(file)


# --- kinds ---


def ask_for_summary(row: Row) -> str:
    """The document, and the request for one sentence."""
    return f"Article: {row['document'].strip()}\n\nSummary in one sentence:"


def rouge_2(row: Row, answer: str) -> float:
    """F1 of the pairs of stemmed words in answer and summary (Lin 2004), from 0 to 1."""
    return float(_rouge().score(row["summary"], answer)["rouge2"].fmeasure)


@cache
def _rouge() -> Any:
    with needs("evaluate", "summarisation"):
        from rouge_score.rouge_scorer import RougeScorer
    return RougeScorer(["rouge2"], use_stemmer=True)


def program(row: Row, answer: str) -> str:
    """The whole function, its tests, and their call."""
    return f"{row['prompt']}{answer}\n{row['test']}\ncheck({row['entry_point']})\n"


def pass_at_1(row: Row, answer: str) -> float:
    """1 if the tests pass, else 0. Runs the answer with run_code()."""
    return float(run_code(program(row, answer)) == "passed")


SUMMARISATION = Task(
    "summarisation", "ROUGE-2", ("document", "summary"), ("\n",), 64, prompt=ask_for_summary, score=rouge_2
)
CODE = Task(
    "code",
    "pass@1",
    ("prompt", "entry_point", "test"),
    ("\nclass", "\ndef", "\n#", "\nif", "\nprint"),  # Chen et al. 2021, section 3: the function has ended
    256,
    prompt=lambda row: str(row["prompt"]),
    score=pass_at_1,
    runs_code=True,
)
KINDS = {task.kind: task for task in (SUMMARISATION, CODE)}
