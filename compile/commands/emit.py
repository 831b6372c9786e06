"""speccompile emit: a bundle's models for other programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console

from mxspec.compile.commands.termination import termination_as_interrupt
from mxspec.compile.interchange.folder import EmittedFolder, Form
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError, needs
from mxspec.runtime.cli.command import Command, Group, print_json, report_console

FORMS = get_args(Form)

_BUNDLE = click.argument("bundle", type=click.Path(path_type=Path))
_OPTIONS = (
    click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        help="Folder to write.  [default: NAME.standard or NAME.static]",
    ),
    click.option("--force", is_flag=True, help="Replace an existing folder once the new one is complete."),
    click.option("--json", "json_output", is_flag=True, help="Print one JSON object instead of text."),
)


def _shared(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return _BUNDLE(command)


@click.group(cls=Group)
def emit() -> None:
    """Write a bundle's models for other programs (docs/interchange.md)."""


@emit.command(cls=Command, short_help="Standard ONNX, without mxspec's operators.")
@_shared
@click.option(
    "--scales",
    type=click.Choice(["e8m0", "float32"]),
    default="e8m0",
    show_default=True,
    help="Type of block scales; float32 is for programs that do not know E8M0 (ONNX Runtime with mxint8).",
)
def standard(bundle: Path, *, output: Path | None, force: bool, json_output: bool, scales: str) -> None:
    """Write standard ONNX without mxspec's operators; matrices are DequantizeLinear of MX codes and block scales."""
    _emit("standard", bundle, output, force=force, json_output=json_output, scales=scales)


@emit.command(cls=Command, short_help="Graphs of fixed shapes.")
@_shared
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of slots of the caches.",
)
def static(bundle: Path, *, output: Path | None, force: bool, json_output: bool, slots: int) -> None:
    """Write graphs of fixed shapes (prefill, decode, score) with mxspec's operators, over the same weights."""
    _emit("static", bundle, output, force=force, json_output=json_output, slots=slots)


def _emit(kind: Form, path: Path, output: Path | None, *, force: bool, json_output: bool, **options: Any) -> None:
    bundle, place = Bundle.open(path), output or place_of(path, kind)
    console = report_console(json_output=json_output)
    with termination_as_interrupt():
        index = write(kind, bundle, place, force=force, console=console, **options)
    if json_output:
        print_json({"output": str(place)} | index)


def place_of(bundle: Path, kind: Form) -> Path:
    """The default folder of a form, next to the bundle."""
    return bundle.with_name(f"{bundle.absolute().name.removesuffix('.bundle')}.{kind}")


def check_place(kind: Form, place: Path, *, force: bool) -> None:
    """Raise BundleError if the place holds something that may not be replaced."""
    EmittedFolder(place, kind, force=force).check_place()


def write(kind: Form, bundle: Bundle, place: Path, *, force: bool, console: Console, **options: Any) -> dict[str, Any]:
    """Emit the models and print their folder; return its index. Raises MxspecError."""
    if bundle.manifest.models["target"].encoder is not None:
        raise BundleError(f"bundle {bundle.path}: models with an encoder cannot be emitted")
    if bundle.manifest.models["target"].states is not None:
        raise BundleError(f"bundle {bundle.path}: a draft that reads hidden states cannot be emitted, nor its target")
    with needs("compile", "emitting"):
        from mxspec.compile.interchange.standard import emit_standard
        from mxspec.compile.interchange.static import emit_static
        from mxspec.compile.progress import Stages
    emitters: dict[Form, Callable[..., dict[str, Any]]] = {"standard": emit_standard, "static": emit_static}
    index = emitters[kind](bundle, place, force=force, **({"stages": Stages(console)} | options))
    console.print(f"{place}: the {kind} models of {bundle.path}", highlight=False, soft_wrap=True)
    return index
