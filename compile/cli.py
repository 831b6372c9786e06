"""speccompile: compile a pair of checkpoints into a bundle, or look into one."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import click

from mxspec.compile.report import as_json, print_report
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import CheckFailed, MxspecError
from mxspec.formats.weight_format import USER_NAMES, Activations
from mxspec.recipes.recipe import ROUNDINGS, Recipe, find_recipe
from mxspec.runtime.command import Command, print_json, report_console

_FORMATS = click.Choice(USER_NAMES)
_ACTIVATIONS = click.Choice(get_args(Activations))


@click.command(cls=Command)
@click.argument("recipe", required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write the bundle. [NAME.bundle]")
@click.option("--target-format", type=_FORMATS, help="Format of the target's matrices. [mxfp6_e3m2]")
@click.option("--draft-format", type=_FORMATS, help="Format of the draft's matrices. [fp16]")
@click.option(
    "--matrix-format",
    type=(str, _FORMATS),
    multiple=True,
    metavar="PATTERN FORMAT",
    help="Format of the target parameters that a pattern names, the first that matches; repeatable.",
)
@click.option("--activations", type=_ACTIVATIONS, help="What the target's products make of their rows. [int16]")
@click.option("--draft-activations", type=_ACTIVATIONS, help="Likewise of the draft. [int16]")
@click.option("--keep-fp16", multiple=True, metavar="PATTERN", help="Target parameters to keep in fp16; repeatable.")
@click.option("--budget", metavar="BITS", help="Choose the target's formats for so many bits a weight, such as 5.2bpw.")
@click.option("--max-ratio", type=click.FloatRange(min=1, min_open=True), help="Choose them for this perplexity ratio.")
@click.option("--allow", type=_FORMATS, multiple=True, help="A format to choose from; repeatable. [all MX formats]")
@click.option("--with-baseline", is_flag=True, help="Put the fp16 target beside the packed one.")
@click.option("--rounding", type=click.Choice(ROUNDINGS), help="How matrices get onto an MX grid. [nearest]")
@click.option("--calibrate", type=click.Path(path_type=Path), metavar="TEXT", help="Text for gptq and budgets.")
@click.option("--calibration-tokens", type=click.IntRange(min=1), help="Tokens to take of that text. [32768]")
@click.option("--seed", type=click.IntRange(min=0), help="Chooses the places in that text. [0]")
@click.option("--k-max", type=click.IntRange(min=1), help="Most tokens drafted in a round.")
@click.option("--context-length", type=click.IntRange(min=1), help="Tokens that a text may have.")
@click.option("--force", is_flag=True, help="Replace an existing bundle, once the new one is whole.")
@click.option("--inspect", type=click.Path(path_type=Path), metavar="BUNDLE", help="Show what a bundle holds.")
@click.option("--verify", is_flag=True, help="With --inspect: hash every file.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object on standard output instead.")
def main(recipe: str | None, inspect: Path | None, verify: bool, json_output: bool, **options: Any) -> None:
    """Compile RECIPE, a TOML file or the name of a shipped recipe (demo), into a bundle."""
    if (recipe is None) == (inspect is None):
        raise click.UsageError("give either a RECIPE to compile or --inspect BUNDLE")
    if inspect is not None:
        _refuse_compile_options(options)
        _inspect(inspect, verify=verify, json_output=json_output)
    elif verify:
        raise click.UsageError("--verify goes with --inspect BUNDLE")
    else:
        assert recipe is not None
        _compile(recipe, json_output=json_output, **options)


def _refuse_compile_options(options: dict[str, Any]) -> None:
    given = [name for name, value in options.items() if value not in (None, False, ())]
    if given:
        raise click.UsageError(f"--{given[0].replace('_', '-')} goes with a RECIPE, not with --inspect")


def _inspect(path: Path, *, verify: bool, json_output: bool) -> None:
    bundle = Bundle.open(path)
    changed = list(bundle.changed_files()) if verify else []
    if json_output:
        print_json(as_json(path, bundle.manifest) | ({"changed_files": changed} if verify else {}))
    else:
        print_report(path, bundle.manifest, report_console())
    if changed:
        raise CheckFailed(f"bundle {path}: SHA-256 differs for {', '.join(changed)}; compile it again")
    if verify and not json_output:
        report_console().print(f"all {len(bundle.manifest.files)} files are what speccompile wrote")


def _compile(
    name: str,
    *,
    output: Path | None,
    target_format: str | None,
    draft_format: str | None,
    matrix_format: tuple[tuple[str, str], ...],
    activations: str | None,
    draft_activations: str | None,
    keep_fp16: tuple[str, ...],
    budget: str | None,
    max_ratio: float | None,
    allow: tuple[str, ...],
    with_baseline: bool,
    rounding: str | None,
    calibrate: Path | None,
    calibration_tokens: int | None,
    seed: int | None,
    k_max: int | None,
    context_length: int | None,
    force: bool,
    json_output: bool,
) -> None:
    recipe = Recipe.load(find_recipe(name)).with_changes(
        k_max=k_max,
        context_length=context_length,
        rounding=rounding,
        calibrate=None if calibrate is None else str(calibrate.absolute()),
        calibration_tokens=calibration_tokens,
        seed=seed,
        target={
            "format": target_format,
            "formats": list(matrix_format) or None,
            "keep_fp16": list(keep_fp16) or None,
            "budget": budget,
            "max_ratio": max_ratio,
            "allowed_formats": list(allow) or None,
            "activations": activations,
        },
        draft={"format": draft_format, "activations": draft_activations},
    )
    output = output or Path(f"{recipe.name}.bundle")
    try:
        from mxspec.compile.pipeline import compile_bundle
        from mxspec.compile.progress import Stages
    except ModuleNotFoundError as missing:
        raise MxspecError(f"compiling needs {missing.name}: pip install 'mxspec[compile]'") from None

    console = report_console(json_output=json_output)
    start = time.perf_counter()
    stages = Stages(console)
    with _termination_as_interrupt():
        manifest = compile_bundle(recipe, output, with_baseline=with_baseline, force=force, stages=stages)
    seconds = time.perf_counter() - start
    if json_output:
        times = {name: round(value, 3) for name, value in stages.seconds.items()}
        print_json(as_json(output, manifest) | {"seconds": round(seconds, 3), "stage_seconds": times})
    else:
        print_report(output, manifest, console)
        console.print(f"compiled in {seconds:.1f} s")


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Have SIGTERM end the work as Ctrl-C does, so that a half-written bundle is removed."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
