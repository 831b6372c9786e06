"""specbench speculate: does speculation pay?"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from mxspec.evaluate.bench.options import Choice, Run, choice_options, repetitions_option, run_options
from mxspec.evaluate.bench.speculate.bench import PROMPT_TOKENS, SpeculateBench, prompts_of
from mxspec.evaluate.bench.speculate.measure import measure
from mxspec.formats.bundle import Bundle
from mxspec.runtime.command import Command, read_text
from mxspec.runtime.drafters import NAMES
from mxspec.runtime.text.tokenizer import load_tokenizer

SPEAKING = tuple(name for name in NAMES if name != "none")  # drafters that propose anything
MOST_K = 8


@click.command("speculate", cls=Command)
@choice_options
@click.option("--text", "text_file", type=click.Path(path_type=Path), help="UTF-8 text to take prompts from.")
@click.option("--prompts", default=8, show_default=True, type=click.IntRange(min=1))
@click.option("--new-tokens", default=128, show_default=True, type=click.IntRange(min=2))
@click.option("--acceptance", type=click.FloatRange(0, 1), help="Impose it: random weights agree on nothing.")
@click.option(
    "--drafter", "drafters", multiple=True, type=click.Choice(SPEAKING), help="May be repeated.  [default: model]"
)
@repetitions_option(3)
@run_options
def bench_speculate(
    choice: Choice,
    text_file: Path | None,
    prompts: int,
    new_tokens: int,
    acceptance: float | None,
    drafters: tuple[str, ...],
    repetitions: int,
    run: Run,
) -> None:
    """Time speculative against plain decoding for K = 1 to 8, beside what the formula predicts.

    Texts are greedy and go on after an end of text. c and v are what a drafted token and a scored round cost over a
    plain step, in the rounds themselves; ideal and predicted are (1 - a^(K+1)) / (1 - a) tokens a round, and that over
    cK + v.
    """
    with run.progress() as progress:
        path = choice.path()
        token_ids = read_tokens(path, text_file, prompts)
        bench = SpeculateBench(path, prompts_of(token_ids, prompts), new_tokens, acceptance)
        ks = range(1, min(MOST_K, bench.engine.bundle.manifest.k_max) + 1)
        result = measure(bench, ks, repetitions, drafters or ("model",), progress)
    run.finish(result)


def read_tokens(bundle: Path, text_file: Path | None, prompts: int) -> list[int]:
    """Tokens of the text; of random ids where there is none."""
    opened = Bundle.open(bundle)
    if text_file is None:
        ids = np.random.default_rng(0).integers(0, opened.manifest.tokenizer.vocab_size, prompts * PROMPT_TOKENS)
        return [int(token) for token in ids]
    return list(load_tokenizer(opened.tokenizer_path).encode(read_text(text_file, "--text")).ids)
