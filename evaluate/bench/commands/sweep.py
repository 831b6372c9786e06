"""specbench sweep: what K, temperature, drafters, threads, context and batch do to speed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click

from mxspec.evaluate.bench.options import SPEAKING, VERIFIERS, new_tokens_option, parse_ks, repetitions_option
from mxspec.evaluate.bench.prompts import PROMPT_TOKENS
from mxspec.evaluate.bench.sweep.grid import Grid
from mxspec.evaluate.bench.sweep.measure import measure
from mxspec.evaluate.bench.sweep.result import SweepResult
from mxspec.evaluate.bench.sweep.work_file import WorkFile
from mxspec.evaluate.options import Run, record_options
from mxspec.evaluate.record import machine
from mxspec.formats.manifest import MANIFEST
from mxspec.runtime import ops
from mxspec.runtime.cli.command import Command, read_text
from mxspec.runtime.request import K


@click.command("sweep", cls=Command)
@click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="BUNDLE...")
@click.option(
    "--text", "text_file", required=True, type=click.Path(path_type=Path), help="UTF-8 text to take prompts from."
)
@click.option(
    "--k",
    multiple=True,
    callback=parse_ks,
    default=("4",),
    show_default=True,
    metavar="INTEGER|auto",
    help="Number of tokens drafted in a round.",
)
@click.option(
    "--temperature",
    multiple=True,
    default=(0.0,),
    show_default=True,
    type=click.FloatRange(min=0),
    help="Temperature; 0 is greedy.",
)
@click.option(
    "--drafter",
    multiple=True,
    default=("model",),
    show_default=True,
    type=click.Choice(SPEAKING),
    help="Drafter to measure.",
)
@click.option(
    "--verifier",
    multiple=True,
    default=("auto",),
    show_default=True,
    type=click.Choice(VERIFIERS),
    help="Verifier of sampled text.",
)
@click.option("--threads", multiple=True, type=click.IntRange(min=1), help="Number of threads.  [default: all cores]")
@click.option(
    "--context",
    multiple=True,
    default=(PROMPT_TOKENS,),
    show_default=True,
    type=click.IntRange(min=1),
    help="Number of tokens of a prompt.",
)
@click.option(
    "--batch",
    multiple=True,
    default=(1,),
    show_default=True,
    type=click.IntRange(min=1),
    help="Number of texts at the same time.",
)
@click.option(
    "--prompts", default=4, show_default=True, type=click.IntRange(min=1), help="Least number of prompts at each point."
)
@new_tokens_option(128)
@repetitions_option(3)
@click.option(
    "--work",
    default=Path("sweep.jsonl"),
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that keeps what is measured; removed when the record is written.",
)
@record_options
def bench_sweep(
    bundles: tuple[Path, ...],
    text_file: Path,
    k: tuple[K, ...],
    temperature: tuple[float, ...],
    drafter: tuple[str, ...],
    verifier: tuple[str, ...],
    threads: tuple[int, ...],
    context: tuple[int, ...],
    batch: tuple[int, ...],
    prompts: int,
    new_tokens: int,
    repetitions: int,
    work: Path,
    run: Run,
) -> None:
    """Time speculative beside plain decoding at every combination of what is varied.

    --k, --temperature, --drafter, --verifier, --threads, --context and --batch may be given several times; formats
    and activations are those of the bundles. A sweep that was killed goes on where it stopped.
    """
    with run.progress() as progress:
        grid = Grid(bundles, threads or (ops.threads(),), batch, context, temperature, drafter, verifier, k)
        grid.require(new_tokens)
        text, points = read_text(text_file, "--text"), grid.points()
        shared = {"prompts": prompts, "new_tokens": new_tokens, "repetitions": repetitions}
        digests = {path.name: _digest((path / MANIFEST).read_bytes()) for path in bundles}
        settings = {**shared, "text": _digest(text.encode()), "machine": machine(), "bundles": digests}
        kept = WorkFile(work, settings)
        left = [point for point in points if point not in kept.points]
        if len(left) < len(points):
            click.echo(f"{len(points) - len(left)} of {len(points)} points were measured before: {work}", err=True)
        paths = {path.name: path for path in bundles}
        for found in measure(paths, left, text, prompts, new_tokens, repetitions, progress):
            kept.add(found)
    run.finish(SweepResult(**shared, points=tuple(kept.points[point] for point in points)))
    if run.record is not None:
        work.unlink()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
