"""`speccheck tasks`: are the answers to tasks as good with speculation as without?"""

from __future__ import annotations

from pathlib import Path

import click

from mxspec.evaluate.options import Run, run_options
from mxspec.evaluate.tasks.parity import ParityOptions, TaskFile, check_parity
from mxspec.evaluate.tasks.task import KINDS, parse_task, read_rows
from mxspec.formats.errors import CheckFailed
from mxspec.runtime.cli.command import Command
from mxspec.runtime.engine import SLOTS, Engine

SEEDS = 4
CONFIDENCE = 0.99


@click.command(cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--task",
    "files",
    required=True,
    multiple=True,
    metavar="KIND=FILE.jsonl",
    help=f"Rows of a task: {' or '.join(KINDS)}. May be given several times.",
)
@click.option("--limit", type=click.IntRange(min=1), help="No more than the first N rows of each file.")
@click.option(
    "--drafter",
    "drafters",
    multiple=True,
    help="Drafter to compare with. May be given several times.  [default: the bundle's own]",
)
@click.option("--max-new-tokens", type=click.IntRange(min=1), help="Longest answer.  [default: by the kind of task]")
@click.option(
    "--temperature",
    type=click.FloatRange(min=0, min_open=True),
    help="Also compare answers that are sampled at this temperature.",
)
@click.option(
    "--seeds", type=click.IntRange(min=1), help=f"Number of sampled answers to each prompt.  [default: {SEEDS}]"
)
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 0.9999),
    default=CONFIDENCE,
    show_default=True,
    help="Confidence of all intervals of differences together.",
)
@click.option("--run-code", is_flag=True, help="Run the code that the model writes: docs/tasks.md says how.")
@click.option("--slots", type=click.IntRange(min=1), default=SLOTS, show_default=True, help="Texts at a time.")
@run_options
def tasks(
    bundle: Path,
    files: tuple[str, ...],
    limit: int | None,
    drafters: tuple[str, ...],
    max_new_tokens: int | None,
    temperature: float | None,
    seeds: int | None,
    confidence: float,
    run_code: bool,
    slots: int,
    run: Run,
) -> None:
    """Answer the prompts of tasks with speculation and without, and compare.

    First compares the ids of greedy answers, which must be the same. Then compares scores: ROUGE-2 of summaries, pass@1
    of code with --run-code, and with --temperature the scores of answers sampled with several seeds. The exit code is
    2 if ids differ, or if the interval of a difference of scores excludes 0.
    """
    if seeds is not None and temperature is None:
        raise click.UsageError("--seeds: needs sampled answers; give --temperature")
    task_files = [TaskFile(task, file, read_rows(file, task, limit)) for task, file in map(parse_task, files)]
    with run.counted("opening the bundle") as count, Engine(bundle, slots=slots, threads=run.threads) as engine:
        own = "model" if "model" in engine.drafters else "suffix"
        options = ParityOptions(
            drafters or (own,), temperature or 0.0, seeds or SEEDS, confidence, run_code, max_new_tokens
        )
        result = check_parity(engine, task_files, options, count)
    run.finish(result)
    if not result.passed:
        raise CheckFailed("; ".join(result.reasons))
