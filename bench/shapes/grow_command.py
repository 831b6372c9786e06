"""A checkpoint of a real size that computes what a small one computes."""

from __future__ import annotations

from pathlib import Path

import click

from bench.shapes.grow import grow
from bench.shapes.known import GROWN
from mxspec.runtime.cli.command import Command, report_console


@click.command(cls=Command)
@click.argument("checkpoint", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--to", "name", required=True, type=click.Choice(sorted(GROWN)), help="The size to reach.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The folder to write.")
@click.option("--force", is_flag=True, help="Replace a grown checkpoint.")
def main(checkpoint: Path, name: str, output: Path, force: bool) -> None:
    """Write a checkpoint that computes what CHECKPOINT computes, at the cost of a model of another size.

    Its logits are the small one's to rounding, so a draft agrees with it as often as with the small one, and what
    speculation gains can be measured at a real size without a download. CHECKPOINT is a Llama, such as the demo's
    target; its head size, vocabulary and context stay, and layers make up for a smaller vocabulary.
    """
    console = report_console()
    with console.status("reading") as status:
        sizes = grow(checkpoint, GROWN[name], output, force, status.update)
    console.print(
        f"{output}: {sizes.layers} layers, {sizes.hidden:,} wide, {sizes.inner:,} neurons, {sizes.heads} heads of "
        f"{sizes.head_size} ({sizes.kv_heads} of keys), {sizes.vocab:,} tokens; a step reads "
        f"{sizes.read_weights / 1e6:,.0f} million weights"
    )
