"""`speccheck accuracy`: what does compression cost the target?"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import click

from mxspec.evaluate.accuracy.documents import FIELD, TOKENS, read_documents, write_documents
from mxspec.evaluate.accuracy.judge import MAX_RATIO
from mxspec.evaluate.accuracy.ranks import SHOWN
from mxspec.evaluate.accuracy.repack import parse_formats
from mxspec.evaluate.accuracy.run import AccuracyOptions, measure_accuracy, require_baseline
from mxspec.evaluate.accuracy.windows import LONGEST, read_pairs
from mxspec.evaluate.options import Count, Run, run_options
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import CheckFailed
from mxspec.recipes.recipe import Recipe, from_here
from mxspec.runtime.cli.command import Command


@click.command(cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--text",
    "texts",
    multiple=True,
    metavar="PATH",
    help="UTF-8 text: a file, .jsonl, .parquet, a folder, or hf://datasets/OWNER/NAME/FILE. May be given several "
    "times.",
)
@click.option(
    "--own", is_flag=True, help=f"Score texts that the fp16 target writes: {TOKENS:,} tokens, or --max-tokens."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the texts of --own.")
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="FILE",
    help="UTF-8 file whose lines an encoder reads, one for each --text; the lines of --text are then the answers.",
)
@click.option(
    "--field", default=FIELD, show_default=True, help="The field of a row in .jsonl or .parquet that is scored."
)
@click.option("--join", is_flag=True, help="Take all rows of a table as one text.")
@click.option("--max-tokens", type=click.IntRange(min=2), help="Read no more than the first N tokens.")
@click.option("--window", type=int, help=f"Tokens in a window.  [default: the context, at most {LONGEST:,}]")
@click.option("--stride", type=click.IntRange(min=1), help="Tokens from window to window.  [default: no overlap]")
@click.option(
    "--max-ratio",
    type=click.FloatRange(min=1.0),
    help=f"Largest ratio that passes.  [default: the bundle's budget, else {MAX_RATIO}]",
)
@click.option(
    "--format",
    "formats",
    multiple=True,
    metavar="NAME",
    help="Also score the target in this format, rounded to nearest; `all`: every format. May be given several times.",
)
@click.option("--referee", metavar="CHECKPOINT", help="Compare fp16 with transformers in float32: a folder or hub id.")
@click.option("--adapter", metavar="ADAPTER", help="The LoRA adapter that was merged into the referee's checkpoint.")
@click.option("--from-pickle", is_flag=True, help="Read the referee's weights out of pickles; no code is run.")
@click.option(
    "--tensors", type=click.IntRange(min=0), help=f"Show the N worst tensors.  [default: {SHOWN} beyond --max-ratio]"
)
@run_options
def accuracy(
    bundle: Path,
    texts: tuple[str, ...],
    own: bool,
    seed: int,
    sources: tuple[str, ...],
    field: str,
    join: bool,
    max_tokens: int | None,
    window: int | None,
    stride: int | None,
    max_ratio: float | None,
    formats: tuple[str, ...],
    referee: str | None,
    adapter: str | None,
    from_pickle: bool,
    tensors: int | None,
    run: Run,
) -> None:
    """Compare the packed target with the fp16 target that `speccompile --with-baseline` adds to a bundle.

    Prints the perplexity of both on a text, their KL divergence and the share of equal top tokens. The exit code is 2
    unless the whole confidence interval of the ratio of perplexities is within --max-ratio: the ratio may be too high,
    the text too short, or a logit not finite. docs/accuracy.md explains how texts are cut, and the interval.
    """
    if (adapter is not None or from_pickle) and referee is None:
        raise click.UsageError("--adapter and --from-pickle need --referee")
    if sources and join:
        raise click.UsageError(
            "--join: given with --source, where each line of --text answers one line; leave --join out"
        )
    if own == bool(texts) or (own and (sources or join)):
        raise click.UsageError("expected either --text, with its options, or --own")
    options = AccuracyOptions(
        max_tokens,
        window,
        stride,
        max_ratio,
        parse_formats(formats),
        None if referee is None else checkpoint_recipe(referee, adapter, from_pickle),
        tensors,
    )
    documents, skipped = [], 0
    if sources:
        documents = read_pairs(sources, texts, field)
    elif texts:
        documents, skipped = read_documents(texts, field, join=join)
    opened = Bundle.open(bundle)
    require_baseline(opened)
    run.set_threads()
    with run.counted("opening the models") as count:
        if own:
            writing = partial(count, "writing tokens to score")
            documents = write_documents(opened, max_tokens or TOKENS, seed, writing)
        result = measure_accuracy(opened, documents, skipped, options, partial(show_progress, count))
    run.finish(result)
    if not result.passed:
        advice = result.advice[:1] if result.verdict == "failed" else ()
        raise CheckFailed("; ".join([*result.reasons, *advice]))


def show_progress(count: Count, done: int, total: int, difference: float) -> None:
    """Show how many tokens are scored, and the ratio so far."""
    ratio = f", ratio {math.exp(difference):.5f}" if done and abs(difference) < 1 else ""
    count(f"scoring tokens{ratio}", done, total)


def checkpoint_recipe(checkpoint: str, adapter: str | None, from_pickle: bool) -> Recipe:
    """The checkpoint that a bundle was made from, as its recipe would name it."""
    return Recipe.of_checkpoints(checkpoint).with_changes(
        from_pickle=from_pickle or None, target={"adapter": None if adapter is None else from_here(adapter)}
    )
