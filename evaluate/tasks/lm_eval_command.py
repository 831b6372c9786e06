"""`mxspec-eval`: run the lm-evaluation-harness with a bundle as its model."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from mxspec.evaluate.tasks.known import parse_task
from mxspec.evaluate.tasks.lm_eval_tasks import write_tasks
from mxspec.evaluate.tasks.task import require
from mxspec.formats.errors import MxspecError
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
    require("lm_eval", "lm-eval", "mxspec-eval")
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
