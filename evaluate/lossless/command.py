"""`speccheck lossless`: is drafted text the target's own?"""

from __future__ import annotations

from pathlib import Path

import click

from mxspec.evaluate.lossless.certificate import CHECKS, certify
from mxspec.evaluate.lossless.effort import EFFORTS
from mxspec.evaluate.options import Run, run_options
from mxspec.formats.errors import CheckFailed
from mxspec.runtime.cli.command import Command, read_text
from mxspec.runtime.engine import SLOTS, Engine


@click.command(cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--text",
    "text_file",
    type=click.Path(path_type=Path),
    help="UTF-8 file that prompts are cut from.  [default: random tokens]",
)
@click.option(
    "--effort", type=click.Choice(list(EFFORTS)), default="normal", show_default=True, help="Amount of checking."
)
@click.option(
    "--only", multiple=True, type=click.Choice(CHECKS), help="Run only this check. May be given several times."
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed of prompts and samples.")
@click.option(
    "--slots", type=click.IntRange(min=1), default=SLOTS, show_default=True, help="Largest number of texts at a time."
)
@run_options
def lossless(
    bundle: Path,
    text_file: Path | None,
    effort: str,
    only: tuple[str, ...],
    seed: int,
    slots: int,
    run: Run,
) -> None:
    """Check that BUNDLE writes the same with drafts as its target alone.

    Compares the scores of K + 1 tokens with those of single steps, bit for bit; greedy and seeded text of each drafter
    and K with the text of the target alone; and sampled text with the target's distribution. The exit code is 2 if
    anything differs. A correct engine fails in at most one of a thousand runs.
    """
    text = None if text_file is None else read_text(text_file, "--text")
    with Engine(bundle, slots=slots, threads=run.threads) as engine, run.console.status("opening the bundle") as status:
        found = certify(engine, text, effort, seed, only or CHECKS, status.update)
    run.finish(found)
    if not run.json_output:
        for line in found.sentences():
            run.console.print(line, highlight=False, markup=False)
    if not found.passed:
        first, *others = found.failures
        more = f"; and {len(others)} more" if others else ""
        raise CheckFailed(f"not lossless: {first}{more}")
