"""Local files as tasks of the lm-evaluation-harness: writes a folder of task files for --include_path."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mxspec.evaluate.tasks.known import KINDS
from mxspec.evaluate.tasks.task import Task, read_rows, require

_MODULES = "mxspec.evaluate.tasks"


def task_name(task: Task, path: Path) -> str:
    """The name of a file's task in the harness."""
    return f"mxspec_{task.kind}_{path.stem}"


def write_tasks(folder: Path, files: Iterable[tuple[Task, Path]]) -> list[str]:
    """Write a task file for each file of rows; return the tasks' names. Raises MxspecError for unreadable rows."""
    names = []
    for task, path in files:
        read_rows(path, task)
        names.append(task_name(task, path))
        (folder / f"{names[-1]}.yaml").write_text(_task_file(task, path.resolve(), names[-1]))
    return names


def load_rows(kind: str, path: str, **_: Any) -> Mapping[str, Any]:
    """The rows of a file, in the form of a data set of the harness."""
    task = KINDS[kind]
    rows = [{field: row[field] for field in task.fields} for row in read_rows(Path(path), task)]
    return {"test": require("datasets", "datasets", "mxspec-eval").Dataset.from_list(rows)}


def _task_file(task: Task, path: Path, name: str) -> str:
    """The task file in YAML, with strings written as in JSON; it names the functions of the task's kind."""
    metric = task.metric.lower().replace("rouge-2", "rouge2").replace("@", "_at_")
    text = json.dumps
    return f"""\
task: {text(name)}
custom_dataset: !function {_MODULES}.lm_eval_tasks.load_rows
dataset_kwargs: {text({"kind": task.kind, "path": str(path)})}
test_split: test
output_type: generate_until
doc_to_text: !function {_MODULES}.{task.kind}.prompt
doc_to_target: ""
process_results: !function {_MODULES}.{task.kind}.process_results
generation_kwargs: {text({"until": list(task.stops), "max_gen_toks": task.max_new_tokens, "do_sample": False})}
metric_list:
  - {{metric: {metric}, aggregation: mean, higher_is_better: true}}
unsafe_code: {text(task.runs_code)}
num_fewshot: 0
metadata: {{version: 1.0}}
"""
