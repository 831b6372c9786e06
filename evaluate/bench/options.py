"""Options that the commands of specbench share; related options reach a command as one object."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mxspec.runtime import drafters, verifiers
from mxspec.runtime.cli.settings import parse_k
from mxspec.runtime.settings import K

SPEAKING = tuple(name for name in drafters.NAMES if name != "none")  # drafters that propose tokens
VERIFIERS = ("auto", *verifiers.NAMES)


def parse_ks(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[K, ...]:
    """Parse each value of --k: a number of tokens, or auto."""
    found = tuple(k for value in values if (k := parse_k(context, parameter, value)) is not None)
    if 0 in found:
        raise click.BadParameter("got 0, but plain decoding is always measured; leave 0 out")
    return found


bundle_argument = click.argument("bundle", type=click.Path(path_type=Path))

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def repetitions_option(default: int) -> Decorator:
    """--repetitions."""
    return click.option(
        "--repetitions",
        default=default,
        show_default=True,
        type=click.IntRange(min=1),
        help="Number of times that everything is measured; medians are shown.",
    )


def new_tokens_option(default: int, least: int = 2) -> Decorator:
    """--new-tokens."""
    return click.option(
        "--new-tokens",
        default=default,
        show_default=True,
        type=click.IntRange(min=least),
        help="Number of tokens of each answer.",
    )
