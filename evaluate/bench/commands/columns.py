"""specbench columns: what compression gives, and what speculation gives beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mxspec.evaluate.bench.columns.measure import measure
from mxspec.evaluate.bench.context import require_context
from mxspec.evaluate.bench.options import VERIFIERS, new_tokens_option, repetitions_option
from mxspec.evaluate.bench.prompts import PROMPT_TOKENS, read_prompts, read_questions
from mxspec.evaluate.options import Run, run_options
from mxspec.formats.errors import BundleError, MxspecError
from mxspec.runtime.cli.command import Command
from mxspec.runtime.cli.settings import parse_k
from mxspec.runtime.columns import open_columns
from mxspec.runtime.drafters import NAMES


@click.command("columns", cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--text", "text_file", type=click.Path(path_type=Path), help="UTF-8 text to take prompts from.")
@click.option("--questions", type=click.Path(path_type=Path), help="Questions for a chat model, one a line.")
@click.option("--prompts", type=click.IntRange(min=1), help="Number of prompts from --text.  [default: 4]")
@new_tokens_option(128)
@click.option(
    "--k",
    callback=parse_k,
    metavar="INTEGER|auto",
    default="auto",
    show_default=True,
    help="Tokens drafted in a round, by the third column.",
)
@click.option(
    "--drafter",
    type=click.Choice(NAMES),
    help="Drafter of the third column.  [default: model, or suffix without a draft]",
)
@click.option(
    "--temperature", default=0.0, show_default=True, type=click.FloatRange(min=0), help="Temperature; 0 is greedy."
)
@click.option("--verifier", type=click.Choice(VERIFIERS), help="Verifier of sampled text.")
@repetitions_option(3)
@run_options
def bench_columns(
    bundle: Path,
    text_file: Path | None,
    questions: Path | None,
    prompts: int | None,
    new_tokens: int,
    repetitions: int,
    run: Run,
    **options: Any,
) -> None:
    """Time fp16, the packed target, and the packed target speculating, in one run on one bundle.

    BUNDLE was compiled with --with-baseline. The columns answer the same prompts alternately; speeds are compared by
    pairs. Answers to --questions end where the model ends them; what continues a --text goes on after an end of text.
    """
    if (text_file is None) == (questions is None):
        raise MxspecError("give either --text or --questions, where the prompts come from")
    if questions is not None and prompts is not None:
        raise MxspecError("--prompts: given with --questions, which are all asked; give it with --text")
    given = {name: value for name, value in options.items() if value is not None}
    if given["temperature"] == 0 and "verifier" in given:
        raise MxspecError("--verifier: given at temperature 0, which is greedy; give a --temperature above 0")
    with run.progress() as progress, open_columns(bundle) as columns:
        engine = columns[-1].engine
        if len(columns) < 3:
            raise BundleError(f"{bundle}: holds no fp16 baseline to compare with: compile it with --with-baseline")
        if questions is None:
            require_context(engine.bundle, PROMPT_TOKENS, new_tokens)
            starts = read_prompts(bundle, text_file, prompts or 4)
        else:
            starts = read_questions(bundle, questions)
            require_context(engine.bundle, max(map(len, starts)), new_tokens)
        # A second token, so that each answer has a round to time.
        settings = given | {"max_new_tokens": new_tokens, "min_new_tokens": 2, "ignore_eos": questions is None}
        result = measure(columns, starts, settings, repetitions, progress)
    run.finish(result)
