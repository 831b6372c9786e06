"""speccompile emit: a bundle's models for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from mxspec.compile.commands.termination import termination_as_interrupt
from mxspec.compile.interchange.folder import EmittedFolder
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError, needs
from mxspec.runtime.cli.command import Command, Group, print_json, report_console


@click.group(cls=Group)
def emit() -> None:
    """Write a bundle's models for other programs (docs/interchange.md)."""


@emit.command(cls=Command, short_help="Standard ONNX, without mxspec's operators.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to write.  [default: NAME.standard]")
@click.option(
    "--scales",
    type=click.Choice(["e8m0", "float32"]),
    default="e8m0",
    show_default=True,
    help="Type of block scales; float32 is for programs that do not know E8M0 (ONNX Runtime with mxint8).",
)
@click.option(
    "--shapes",
    type=click.IntRange(min=1),
    metavar="TEXTS",
    help="Also write graphs of fixed shapes (prefill, decode, score) for calls of so many texts.",
)
@click.option("--force", is_flag=True, help="Replace an existing folder once the new one is complete.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object instead of text.")
def standard(bundle: Path, *, output: Path | None, force: bool, json_output: bool, **options: Any) -> None:
    """Write standard ONNX without mxspec's operators; matrices are DequantizeLinear of MX codes and block scales."""
    opened, place = Bundle.open(bundle), output or place_of(bundle)
    console = report_console(json_output=json_output)
    with termination_as_interrupt():
        index = write(opened, place, force=force, console=console, **options)
    if json_output:
        print_json({"output": str(place)} | index)


def place_of(bundle: Path) -> Path:
    """The default folder, next to the bundle."""
    return bundle.with_name(f"{bundle.absolute().name.removesuffix('.bundle')}.standard")


def check_place(place: Path, *, force: bool) -> None:
    """Raise BundleError if the place holds something that may not be replaced."""
    EmittedFolder(place, force=force).check_place()


def write(bundle: Bundle, place: Path, *, force: bool, console: Console, **options: Any) -> dict[str, Any]:
    """Emit the models and print their folder; return its index. Raises MxspecError."""
    if bundle.manifest.models["target"].encoder is not None:
        raise BundleError(f"bundle {bundle.path}: models with an encoder cannot be emitted")
    if bundle.manifest.models["target"].states is not None:
        raise BundleError(f"bundle {bundle.path}: a draft that reads hidden states cannot be emitted, nor its target")
    with needs("compile", "emitting"):
        from mxspec.compile.interchange.standard import emit_standard
        from mxspec.compile.progress import Stages
    index = emit_standard(bundle, place, force=force, **({"stages": Stages(console)} | options))
    console.print(f"{place}: the standard models of {bundle.path}", highlight=False, soft_wrap=True)
    return index
