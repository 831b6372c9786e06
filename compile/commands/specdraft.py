"""specdraft: train a draft for a target."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from mxspec.compile.commands.termination import termination_as_interrupt
from mxspec.formats.errors import MxspecError, needs
from mxspec.runtime.cli.command import Group, report_console

_FILE = click.Path(path_type=Path)


@click.group(cls=Group)
@click.version_option(package_name="mxspec")
def main() -> None:
    """Make a draft for a target that has no small sibling.

    \b
    specdraft train OWNER/NAME -o my-head
    speccompile OWNER/NAME --draft ./my-head
    """


@main.command("train")
@click.argument("target")
@click.option("-o", "--output", type=_FILE, required=True, help="Where to write the head.")
@click.option("--text", type=_FILE, help="Text to train on, in place of what the target writes.")
@click.option(
    "--prompts",
    type=_FILE,
    help="Prompts that the target answers, one a line.  [default: questions that the target invents]",
)
@click.option(
    "--tokens", type=click.IntRange(min=1), default=200_000, show_default=True, help="Most tokens of text to train on."
)
@click.option(
    "--vocabulary",
    type=click.IntRange(min=1),
    default=8192,
    show_default=True,
    metavar="N",
    help="Number of tokens that the head can propose, the most frequent ones.",
)
@click.option(
    "--hours",
    type=click.FloatRange(min=0, min_open=True),
    default=2.0,
    show_default=True,
    help="Most hours that it may take; it ends earlier when the head no longer improves.",
)
@click.option(
    "--format",
    "weight_format",
    type=click.Choice(["fp16", "mxfp6_e2m3", "mxfp6_e3m2"]),
    default="fp16",
    show_default=True,
    help="Format of the head's matrices in its file.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of texts and weights.")
@click.option("--from", "start", type=_FILE, metavar="HEAD", help="Go on from this EAGLE-3 head.")
@click.option("--resume", is_flag=True, help="Go on where an interrupted run stopped.")
@click.option("--force", is_flag=True, help="Replace an existing head once the new one is complete.")
def train(*, output: Path, resume: bool, force: bool, **options: Any) -> None:
    """Train an EAGLE-3 head for TARGET, a folder, a GGUF file or a hub id, on text that TARGET writes."""
    if options["text"] is not None and options["prompts"] is not None:
        raise click.UsageError("got both --text and --prompts, expected one of them")
    if (start := options["start"]) is not None and not start.is_dir():
        raise MxspecError(f"--from {start}: no such folder")
    with needs("compile", "training"):
        from mxspec.compile.progress import Stages
        from mxspec.compile.train.train_head import TrainingSettings, train_head

    console = report_console()
    began = time.perf_counter()
    with termination_as_interrupt():
        found = train_head(TrainingSettings(**options), output, resume=resume, force=force, stages=Stages(console))
    rates = " ".join(f"{rate:.3f}" for rate in found.rates)
    console.print(
        f"{output}: held-out acceptance {rates}; trained in {time.perf_counter() - began:.0f} s",
        highlight=False,
        soft_wrap=True,
    )
