"""`specbench columns`: what compression gives, and what speculation gives beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mxspec.evaluate.bench import columns as bench
from mxspec.evaluate.bench.speculate import prompts_of
from mxspec.evaluate.finish import report
from mxspec.formats.errors import BundleError, MxspecError
from mxspec.runtime.columns import open_columns
from mxspec.runtime.command import Command, read_text, report_console
from mxspec.runtime.commands.settings import parse_k
from mxspec.runtime.drafters import NAMES


@click.command(cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--text", "text_file", required=True, type=click.Path(path_type=Path), help="UTF-8 text to take prompts from."
)
@click.option("--prompts", default=4, show_default=True, type=click.IntRange(min=1))
@click.option("--new-tokens", default=128, show_default=True, type=click.IntRange(min=2))
@click.option(
    "--k", callback=parse_k, metavar="INTEGER|auto", default="auto", show_default=True, help="Of the last column."
)
@click.option("--drafter", type=click.Choice(NAMES), help="Likewise.  [default: model, or suffix without a draft]")
@click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(min=0))
@click.option(
    "--verifier", type=click.Choice(["auto", "mrs", "block", "match"]), help="Of sampled text.  [default: auto]"
)
@click.option("--repetitions", default=3, show_default=True, type=click.IntRange(min=1))
@click.option("--threads", type=click.IntRange(min=1), help="Threads to use.  [default: all cores]")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")
@click.option("--record", type=click.Path(dir_okay=False, path_type=Path), help="Write a record of the run.")
def columns(
    bundle: Path,
    text_file: Path,
    prompts: int,
    new_tokens: int,
    repetitions: int,
    threads: int | None,
    json_output: bool,
    record: Path | None,
    **options: Any,
) -> None:
    """Time fp16, the packed target, and the packed target speculating, in one run on one bundle.

    BUNDLE was compiled with --with-baseline. The columns answer the same prompts alternately and go on after an end of
    text; speeds are compared by pairs.
    """
    console = report_console(json_output=json_output)
    settings = {name: value for name, value in options.items() if value is not None}
    if settings["temperature"] == 0 and "verifier" in settings:
        raise MxspecError("--verifier: got it at temperature 0, which is greedy; give a --temperature above 0")
    settings |= {"max_new_tokens": new_tokens, "ignore_eos": True}
    with console.status("opening") as status, open_columns(bundle, threads) as opened:
        engine = opened[-1].engine
        if len(opened) < 3:
            raise BundleError(f"{bundle}: holds no fp16 baseline to compare with: compile it with --with-baseline")
        starts = prompts_of(engine.encode(read_text(text_file, "--text")), prompts)
        longest = engine.target.capacity - max(map(len, starts))
        if new_tokens > longest:
            raise MxspecError(f"--new-tokens: got {new_tokens}, expected at most {longest} after prompts of 64 tokens")
        result = bench.measure(opened, starts, settings, repetitions, status.update)
    report(result, json_output, record)
