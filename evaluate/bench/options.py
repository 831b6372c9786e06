"""Options that the commands of specbench share; related options reach a command as one object."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from mxspec.evaluate.bench.shapes.kept import KeptBundle
from mxspec.evaluate.bench.shapes.known import ALL_SHAPES, SHAPES
from mxspec.evaluate.options import Run
from mxspec.evaluate.progress import Progress
from mxspec.formats.errors import MxspecError, needs
from mxspec.formats.weight_format import ACTIVATIONS, USER_NAMES, Activations, named_by_user, taken_activations
from mxspec.runtime import drafters, verifiers
from mxspec.runtime.cli.settings import parse_k
from mxspec.runtime.request import K

work_option = click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(tempfile.gettempdir()) / "mxspec-shapes",
    show_default=True,
    help="Folder that keeps the bundles of random weights.",
)


SPEAKING = tuple(name for name in drafters.NAMES if name != "none")  # drafters that propose tokens
VERIFIERS = ("auto", *verifiers.NAMES)


def parse_ks(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[K, ...]:
    """Parse each value of --k: a number of tokens, or auto."""
    found = tuple(k for value in values if (k := parse_k(context, parameter, value)) is not None)
    if 0 in found:
        raise click.BadParameter("got 0, but plain decoding is always measured; leave 0 out")
    return found


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


def shape_option(default: str) -> Decorator:
    """--shape, for benchmarks of random weights alone."""
    return click.option(
        "--shape",
        type=click.Choice(sorted(SHAPES)),
        default=default,
        show_default=True,
        help="Model whose sizes are taken; its weights are random.",
    )


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


def new_tokens_option(default: int, least: int = 2) -> Decorator:
    """--new-tokens."""
    return click.option(
        "--new-tokens",
        default=default,
        show_default=True,
        type=click.IntRange(min=least),
        help="Number of tokens of each answer.",
    )


@contextmanager
def measuring(run: Run, name: str) -> Iterator[tuple[Path, Progress]]:
    """A folder that goes when the measurement ends, and its progress."""
    with tempfile.TemporaryDirectory(prefix=f"mxspec-{name}-") as work, run.progress() as progress:
        yield Path(work), progress


def check_activations(weight_format: str, activations: Activations) -> None:
    """Raise MxspecError where products of a format do not take these activations."""
    if activations not in (taken := taken_activations(weight_format)):
        raise MxspecError(f"--activations: got {activations}, but products of {weight_format} take {', '.join(taken)}")


@dataclass(frozen=True, slots=True)
class Choice:
    """The bundle to measure: a given one, or one with random weights of a known shape."""

    bundle: Path | None
    shape: str | None
    weight_format: str | None
    activations: Activations | None
    layers: int | None
    work: Path

    def path(self) -> Path:
        """The bundle's path. A missing random bundle is made, with one line on standard error. Raises MxspecError."""
        if (self.bundle is None) == (self.shape is None):
            raise MxspecError("expected either BUNDLE or --shape")
        if self.bundle is None:
            return self._random_bundle()
        if self.weight_format or self.activations or self.layers:
            raise MxspecError("--format, --activations and --layers go with --shape; a bundle has its own")
        return self.bundle

    def _random_bundle(self) -> Path:
        with needs("compile", "--shape"):
            from mxspec.evaluate.bench.shapes.random_bundle import random_bundle
        assert self.shape is not None
        weight_format, activations = named_by_user(self.weight_format or "mxfp6_e3m2"), self.activations or "int16"
        check_activations(weight_format, activations)
        self.work.mkdir(parents=True, exist_ok=True)
        before = set(self.work.iterdir())
        shape = ALL_SHAPES[self.shape]
        shape = shape if self.layers is None else replace(shape, layers=self.layers)
        path = random_bundle(shape, self.work, weight_format, activations=activations)
        if path not in before:
            click.echo(f"made {KeptBundle.of(path)}; `specbench shapes` lists and removes such bundles", err=True)
        return path


def choice_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """BUNDLE, or --shape with --format, --activations, --layers and --work, as the argument `choice`."""

    @click.argument("bundle", required=False, type=click.Path(path_type=Path))
    @click.option(
        "--shape",
        type=click.Choice(sorted(ALL_SHAPES)),
        help="Measure a bundle of random weights of this shape, in place of BUNDLE.",
    )
    @click.option(
        "--format",
        "weight_format",
        type=click.Choice(USER_NAMES),
        help="With --shape: format of the matrices.  [default: mxfp6_e3m2]",
    )
    @click.option(
        "--activations",
        type=click.Choice(ACTIVATIONS),
        help="With --shape: type that the inputs of products are rounded to.  [default: int16]",
    )
    @click.option(
        "--layers", type=click.IntRange(min=1), help="With --shape: number of layers.  [default: those of the shape]"
    )
    @work_option
    @functools.wraps(command)
    def with_choice(
        *,
        bundle: Path | None,
        shape: str | None,
        weight_format: str | None,
        activations: Activations | None,
        layers: int | None,
        work: Path,
        **others: Any,
    ) -> Any:
        return command(choice=Choice(bundle, shape, weight_format, activations, layers, work), **others)

    return with_choice
