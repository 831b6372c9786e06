"""specbench serve: what the server costs beside the engine, and what texts notice of each other."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from mxspec.evaluate.bench.options import Choice, choice_options, repetitions_option
from mxspec.evaluate.options import Run, run_options
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.runtime.command import Command, read_text
from mxspec.runtime.text.tokenizer import encode_prompt, load_tokenizer

RANDOM_TOKENS = 4096  # where there is no text


@click.command("serve", cls=Command)
@choice_options
@click.option("--text", type=click.Path(path_type=Path), help="UTF-8 text to take prompts of. [random tokens]")
@click.option("--new-tokens", default=64, show_default=True, type=click.IntRange(min=2), help="Of each text.")
@repetitions_option(3)
@run_options
def bench_serve(choice: Choice, text: Path | None, new_tokens: int, repetitions: int, run: Run) -> None:
    """Time 1 and 8 clients of specserve beside as many of the engine in this process, and a long prompt that joins.

    Says how long the server takes to be ready, too.
    """
    try:
        import mxspec.serve.app  # noqa: F401  # what the server needs, before anything is measured
    except ModuleNotFoundError as missing:
        raise MxspecError(f"specserve needs {missing.name}: pip install 'mxspec[serve]'") from None
    from mxspec.evaluate.bench.serve.measure import context_needed, measure

    bundle = Bundle.open(choice.path())
    context, needed = bundle.manifest.models["target"].context_length, context_needed(new_tokens)
    if context < needed:
        raise MxspecError(f"bundle {bundle.path}: its context is {context:,} tokens, but serve takes {needed:,}")
    with run.progress() as progress:
        result = measure(bundle.path, _token_ids(bundle, text), new_tokens, repetitions, run.threads, progress)
    run.finish(result)


def _token_ids(bundle: Bundle, text: Path | None) -> list[int]:
    if text is not None:
        entry = bundle.manifest.tokenizer
        return encode_prompt(load_tokenizer(bundle.tokenizer_path), read_text(text, "--text"), entry.bos_token_id)
    vocab = bundle.manifest.tokenizer.vocab_size
    return [int(token) for token in np.random.default_rng(0).integers(0, vocab, RANDOM_TOKENS)]
