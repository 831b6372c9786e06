"""specbench serve: what the server costs beside the engine, and what texts notice of each other."""

from __future__ import annotations

from pathlib import Path

import click

from mxspec.evaluate.bench.options import bundle_argument, new_tokens_option, repetitions_option
from mxspec.evaluate.bench.prompts import read_tokens
from mxspec.evaluate.options import Run, run_options
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.runtime.cli.command import Command


@click.command("serve", cls=Command)
@bundle_argument
@click.option(
    "--text", type=click.Path(path_type=Path), help="UTF-8 text to take prompts from.  [default: random tokens]"
)
@new_tokens_option(64)
@repetitions_option(3)
@run_options
def bench_serve(bundle: Path, text: Path | None, new_tokens: int, repetitions: int, run: Run) -> None:
    """Time 1 and 8 clients of specserve beside as many of the engine in this process, and a long prompt that joins.

    Also says how long the server takes to be ready.
    """
    from mxspec.evaluate.bench.serve.measure import ANSWERS, CLIENTS, context_needed, measure

    opened = Bundle.open(bundle)
    context, needed = opened.manifest.models["target"].context_length, context_needed(new_tokens)
    if context < needed:
        raise MxspecError(f"bundle {bundle}: its context is {context:,} tokens, but serve takes {needed:,}")
    with run.progress() as progress:
        result = measure(
            bundle,
            read_tokens(bundle, text, max(CLIENTS) * ANSWERS),
            new_tokens,
            repetitions,
            run.threads,
            progress,
        )
    run.finish(result)
