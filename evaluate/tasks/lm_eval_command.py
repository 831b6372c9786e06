"""`mxspec-eval`: run the lm-evaluation-harness with a bundle as its model, and with local files as tasks."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from mxspec.evaluate.tasks.task import KINDS, Task, parse_task, read_rows
from mxspec.formats.errors import MxspecError, needs
from mxspec.runtime.cli.command import EXIT_BAD_INPUT, Command

_SUBCOMMANDS = ("run", "ls", "validate")


@click.command(cls=Command, context_settings={"ignore_unknown_options": True})
@click.option(
    "--task",
    "files",
    multiple=True,
    metavar="KIND=FILE",
    help="Local task to run: KIND is summarisation or code, FILE a .jsonl.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.version_option(package_name="mxspec")
def main(files: tuple[str, ...], arguments: tuple[str, ...]) -> None:
    """Run lm-eval with the model `mxspec`, which is the default here. ARGUMENTS are those of lm-eval.

    \b
    mxspec-eval --model_args bundle=my.bundle --tasks hellaswag
    mxspec-eval --model_args bundle=my.bundle --task summarisation=xsum.jsonl
    mxspec-eval run --help                                 the options of lm-eval
    """
    with needs("evaluate", "mxspec-eval"):
        from mxspec.evaluate.tasks.lm_eval_model import NAME, register

    register()
    own = [parse_task(argument) for argument in files]
    given = list(arguments)
    command = given.pop(0) if given and given[0] in _SUBCOMMANDS else "run"
    with tempfile.TemporaryDirectory(prefix="mxspec-tasks-") as folder:
        if command == "run" and not any(argument.split("=")[0] in ("--model", "-M", "--config") for argument in given):
            given = ["--model", NAME, *given]
        if own:
            given = _with_tasks(given, Path(folder), write_tasks(Path(folder), own))
        _run([command, *given])


def _with_tasks(arguments: list[str], folder: Path, names: list[str]) -> list[str]:
    """Add the folder of tasks to lm-eval's arguments, and the tasks' names to its list of tasks."""
    for taken in ("--include_path", "--tasks"):
        if any(argument.split("=")[0] == taken for argument in arguments):
            raise MxspecError(f"--task: given with {taken}, expected one of them: run mxspec-eval twice")
    return [*arguments, "--include_path", str(folder), "--tasks", ",".join(names)]


def _run(arguments: list[str]) -> None:
    from lm_eval.__main__ import cli_evaluate

    before = sys.argv
    sys.argv = ["mxspec-eval", *arguments]
    try:
        cli_evaluate()
    except SystemExit as leaving:  # argparse exits with 2 after a usage error, which means a failed check here
        sys.exit(EXIT_BAD_INPUT if leaving.code == 2 else leaving.code)
    except ValueError as error:
        if not str(error).startswith("Tasks not found"):
            raise
        raise MxspecError(f"--tasks: {error}") from None
    finally:
        sys.argv = before


# --- tasks of the harness ---


def write_tasks(folder: Path, files: Iterable[tuple[Task, Path]]) -> list[str]:
    """Write a task file for each file of rows; return the tasks' names. Raises MxspecError for unreadable rows."""
    names = []
    for task, path in files:
        read_rows(path, task)
        names.append(f"mxspec_{task.kind}_{path.stem}")
        (folder / f"{names[-1]}.yaml").write_text(_task_file(task, path.resolve(), names[-1]))
    return names


def load_rows(kind: str, path: str, **_: Any) -> Mapping[str, Any]:
    """The rows of a file and their prompts, in the form of a data set of the harness."""
    from datasets import Dataset

    task = KINDS[kind]
    rows = [
        {field: row[field] for field in task.fields} | {"kind": kind, "asked": task.prompt(row)}
        for row in read_rows(Path(path), task)
    ]
    return {"test": Dataset.from_list(rows)}


def process_results(row: Mapping[str, Any], answers: list[str]) -> dict[str, float]:
    """The score of the first answer, in the harness's form."""
    task = KINDS[row["kind"]]
    return {_metric(task): task.score(row, answers[0])}


def _metric(task: Task) -> str:
    """The name of a metric that is a key of the harness."""
    return task.metric.lower().replace("rouge-2", "rouge2").replace("@", "_at_")


def _task_file(task: Task, path: Path, name: str) -> str:
    """The task file in YAML, with strings written as in JSON."""
    text = json.dumps
    return f"""\
task: {text(name)}
custom_dataset: !function {__name__}.load_rows
dataset_kwargs: {text({"kind": task.kind, "path": str(path)})}
test_split: test
output_type: generate_until
doc_to_text: asked
doc_to_target: ""
process_results: !function {__name__}.process_results
generation_kwargs: {text({"until": list(task.stops), "max_gen_toks": task.max_new_tokens, "do_sample": False})}
metric_list:
  - {{metric: {_metric(task)}, aggregation: mean, higher_is_better: true}}
unsafe_code: {text(task.runs_code)}
num_fewshot: 0
metadata: {{version: 1.0}}
"""
