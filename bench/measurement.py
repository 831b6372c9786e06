"""How a measurement is declared: a function of its options that returns its result, whose class names its kind.

    @measurement
    @click.option("--rows", type=click.IntRange(1), default=4096, show_default=True)
    def main(rows: int, columns: int) -> CodecResult:
        \"\"\"What is measured; the help of `python -m bench NAME`.\"\"\"

`python -m bench NAME` runs the function `main` of the module that `__main__.py` names, with --threads, --json and
--record beside its own options. A parameter `progress` is called with the name of each step.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mxspec.evaluate.bench.options import Decorator
from mxspec.evaluate.options import Run, run_options
from mxspec.evaluate.result import Result
from mxspec.formats.errors import CheckFailed, MxspecError
from mxspec.formats.weight_format import ACTIVATIONS, USER_NAMES, Activations, taken_activations
from mxspec.runtime.cli.command import Command


def measurement(function: Callable[..., Result]) -> click.Command:
    """The command of a measurement: it prints the result, or records it, and ends with code 2 if the result failed."""

    shows_progress = "progress" in inspect.signature(function).parameters

    @run_options
    @functools.wraps(function)
    def main(*, run: Run, **options: Any) -> None:
        with run.progress() as progress:
            result = function(**options, **({"progress": progress} if shows_progress else {}))
        run.finish(result)
        if (failure := getattr(result, "failure", None)) is not None:
            raise CheckFailed(failure)

    return click.command(cls=Command, help=function.__doc__)(main)


def file_option(name: str, text: str, **settings: Any) -> Decorator:
    """An option that names an existing file."""
    return click.option(name, type=click.Path(path_type=Path, exists=True, dir_okay=False), help=text, **settings)


def format_option(default: str) -> Decorator:
    """--format, as the argument `weight_format`."""
    return click.option(
        "--format",
        "weight_format",
        type=click.Choice(USER_NAMES),
        default=default,
        show_default=True,
        help="Format of the matrices.",
    )


def activations_option(default: Activations) -> Decorator:
    """--activations."""
    return click.option(
        "--activations",
        type=click.Choice(ACTIVATIONS),
        default=default,
        show_default=True,
        help="Type that the inputs of products are rounded to.",
    )


def check_activations(weight_format: str, activations: Activations) -> None:
    """Raise MxspecError if products of a format do not take these activations."""
    if activations not in (taken := taken_activations(weight_format)):
        raise MxspecError(f"--activations: got {activations}, but products of {weight_format} take {', '.join(taken)}")
