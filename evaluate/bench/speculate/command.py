"""specbench speculate: does speculation pay, at which K, temperature, drafter, context and number of texts?"""

from __future__ import annotations

import hashlib
from pathlib import Path

import click

from mxspec.evaluate.bench.options import SPEAKING, VERIFIERS, new_tokens_option, parse_ks, repetitions_option
from mxspec.evaluate.bench.prompts import PROMPT_TOKENS, Prompts, read_questions
from mxspec.evaluate.bench.speculate.grid import WorkFile, points_of, require_runnable
from mxspec.evaluate.bench.speculate.measure import Measurement
from mxspec.evaluate.bench.speculate.result import SpeculationResult
from mxspec.evaluate.options import Run, record_options
from mxspec.evaluate.record import machine
from mxspec.formats.errors import MxspecError
from mxspec.formats.manifest import MANIFEST
from mxspec.runtime import ops
from mxspec.runtime.cli.command import Command, read_text
from mxspec.runtime.settings import K

PROMPTS = 4


@click.command("speculate", cls=Command)
@click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="BUNDLE...")
@click.option(
    "--text",
    "text_file",
    type=click.Path(path_type=Path),
    help="UTF-8 text to take prompts from; encoders read lines of it.  [default: random tokens]",
)
@click.option("--questions", type=click.Path(path_type=Path), help="Questions for a chat model, one a line.")
@click.option("--fp16", is_flag=True, help="Time the fp16 target as well, of bundles compiled with --with-baseline.")
@click.option(
    "--k",
    multiple=True,
    callback=parse_ks,
    default=("1", "2", "4", "auto"),
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
    type=click.IntRange(min=1),
    help=f"Number of tokens of a prompt from a text.  [default: {PROMPT_TOKENS}]",
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
    "--prompts",
    type=click.IntRange(min=1),
    help=f"Minimum number of prompts from a text at each point.  [default: {PROMPTS}]",
)
@new_tokens_option(128)
@repetitions_option(3)
@click.option(
    "--work",
    default=Path("speculate.jsonl"),
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that keeps measured points; removed when the record is written.",
)
@record_options
def bench_speculate(
    bundles: tuple[Path, ...],
    text_file: Path | None,
    questions: Path | None,
    fp16: bool,
    k: tuple[K, ...],
    temperature: tuple[float, ...],
    drafter: tuple[str, ...],
    verifier: tuple[str, ...],
    threads: tuple[int, ...],
    context: tuple[int, ...],
    batch: tuple[int, ...],
    prompts: int | None,
    new_tokens: int,
    repetitions: int,
    work: Path,
    run: Run,
) -> None:
    """Time speculative beside plain decoding at every combination of what is varied.

    --k, --temperature, --drafter, --verifier, --threads, --context and --batch may be given several times; formats
    and activations are those of the bundles. Both ways answer the same prompts alternately. Answers to --questions end
    where the model ends them; what continues a --text goes on after an end of text. A measurement that was killed
    continues where it stopped.
    """
    with run.progress() as progress:
        asked = _prompts(text_file, questions, prompts, context)
        contexts = (0,) if questions is not None else context or (PROMPT_TOKENS,)
        decoding = {"temperature": temperature, "drafter": drafter, "verifier": verifier, "k": k}
        points = points_of(bundles, threads=threads or (ops.threads(),), batch=batch, context=contexts, **decoding)
        require_runnable(bundles, points, new_tokens, fp16=fp16)
        shared = {"prompts": asked.least, "new_tokens": new_tokens, "repetitions": repetitions}
        digests = {path.name: _digest((path / MANIFEST).read_bytes()) for path in bundles}
        source = _digest(repr((asked.text, asked.questions)).encode())
        kept = WorkFile(work, {**shared, "fp16": fp16, "text": source, "machine": machine(), "bundles": digests})
        left = [point for point in points if point not in kept.points]
        if len(left) < len(points):
            click.echo(f"{len(points) - len(left)} of {len(points)} points were measured before: {work}", err=True)
        paths = {path.name: path for path in bundles}
        for found in Measurement(paths, asked, new_tokens, repetitions, fp16).run(left, progress):
            kept.add(found)
    run.finish(SpeculationResult(**shared, points=tuple(kept.points[point] for point in points)))
    if run.record is not None:
        work.unlink()


def _prompts(text: Path | None, questions: Path | None, prompts: int | None, context: tuple[int, ...]) -> Prompts:
    """Where prompts come from. Raises MxspecError for options that exclude each other."""
    if questions is None:
        return Prompts(None if text is None else read_text(text, "--text"), None, prompts or PROMPTS)
    for option, value in (("--text", text), ("--prompts", prompts), ("--context", context or None)):
        if value is not None:
            raise MxspecError(f"{option}: given with --questions, which are all asked as they are")
    asked = read_questions(questions)
    return Prompts(None, asked, len(asked))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
