"""`speccheck logits`: compare a bundle's model with transformers' float32 forward of its checkpoint.

`speccheck accuracy` compares a packed target with its fp16 twin on the same runtime, so it misses an error that the
export made in both; this check finds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import ClassVar, get_args

import click

from mxspec.evaluate.accuracy.command import checkpoint_recipe
from mxspec.evaluate.options import Run, record_options
from mxspec.evaluate.result import Result, Sheet
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import CheckFailed, MxspecError, needs
from mxspec.formats.manifest import BLURS, BlurName, ModelName
from mxspec.recipes.recipe import Recipe
from mxspec.runtime.cli.command import Command, read_text
from mxspec.runtime.models.draft_tokens import DraftTokens
from mxspec.runtime.text.tokenizer import load_tokenizer

MODELS: tuple[ModelName, ...] = get_args(ModelName)
TEXTS = 4  # two texts, and what each becomes after a rollback


class LogitsResult(Result):
    """The largest errors of a model's logits with int16 rows, as shares of the largest logit; what blurs change.

    `divergences` are KL divergences in nats, by the blur that causes them.
    """

    kind: ClassVar[str] = "logits"

    model: ModelName
    format: str
    tokens: int
    error_stored_weights: float
    worst_reading: str
    error_checkpoint_weights: float
    tolerance: float
    divergences: dict[BlurName, float]
    failure: str | None
    passed: bool

    def sheets(self) -> Sequence[Sheet]:
        largest = f"largest error, weights as stored (at most {self.tolerance:g})"
        figures = [
            ("format", self.format),
            ("tokens compared", f"{self.tokens:,}"),
            (largest, f"{self.error_stored_weights:.1e}"),
            ("where", self.worst_reading),
            ("largest error, weights of the checkpoint", f"{self.error_checkpoint_weights:.1e}"),
        ]
        for blur, divergence in self.divergences.items():
            figures.append((f"{BLURS[blur]} change it by, nats (KL)", f"{divergence:.1e}"))
        figures.append(("verdict", "passed" if self.passed else "failed"))
        note = "An error is a share of the largest logit; rows are int16, caches at least float16."
        return [Sheet.of_figures(f"logits of the {self.model} against transformers in float32", figures, [note])]


@click.command(cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("checkpoint")
@click.option("--adapter", metavar="ADAPTER", help="The LoRA adapter that was merged: a folder or a hub id.")
@click.option("--from-pickle", is_flag=True, help="Read weights that exist only as pickles; no code is run.")
@click.option(
    "--model", type=click.Choice(MODELS), default="target", show_default=True, help="Model of the bundle to compare."
)
@click.option("--text", "text_file", type=click.Path(path_type=Path), help="UTF-8 text.  [default: random tokens]")
@click.option("--tokens", type=click.IntRange(min=2), help="Length of each of the four texts.  [default: 72]")
@record_options
def logits(
    bundle: Path,
    checkpoint: str,
    adapter: str | None,
    from_pickle: bool,
    model: ModelName,
    text_file: Path | None,
    tokens: int | None,
    run: Run,
) -> None:
    """Compare a model of BUNDLE with transformers' float32 forward of CHECKPOINT, which the model was made from.

    CHECKPOINT is a folder or a hub id. Prints the largest difference of logits as a share of the largest logit, for
    prompts, single steps, scored rows and after a rollback. The exit code is 2 if the difference is larger than
    half-precision caches explain, or int8 rows change more than rounding explains. Needs memory for the checkpoint's
    weights in float32, and uses all processor cores.
    """
    text = None if text_file is None else read_text(text_file, "--text")
    origin = checkpoint_recipe(checkpoint, adapter, from_pickle)
    result = measure_logits(Bundle.open(bundle), model, origin, text, tokens)
    run.finish(result)
    if result.failure is not None:
        raise CheckFailed(result.failure)


def measure_logits(
    bundle: Bundle, model: ModelName, origin: Recipe, text: str | None, length: int | None
) -> LogitsResult:
    """Compare one model with transformers, on random tokens if no text is given.

    The target of `origin` is the checkpoint, with its adapter, that the model was made from. Raises MxspecError if the
    checkpoint cannot be opened or the text is too short, CheckFailed for a tensor that transformers loads from
    elsewhere.
    """
    with needs("compile", "comparing with transformers"):
        from mxspec.compile.check.own_weights import TOLERANCE, compare_own_weights
        from mxspec.compile.check.readings import LENGTH, random_texts
        from mxspec.compile.check.reference import pad_of
        from mxspec.compile.checkpoint.open_checkpoint import open_checkpoint
    bundle.graph_path(model)
    entry = bundle.manifest.models[model]
    length = min(length or LENGTH, entry.context_length)
    vocab_size = bundle.manifest.tokenizer.vocab_size
    tokens = DraftTokens.of(bundle.path, entry, vocab_size)
    known = min(entry.vocab_size, vocab_size) if tokens is None else tokens.reads
    with ExitStack() as files:
        checkpoint, _ = open_checkpoint(origin, origin.target, files)
        if entry.states is not None and entry.states.own is not None:
            raise MxspecError(
                f"--model: got {model}, which reads hidden states and cannot be compared here; its compile has done it"
            )
        if text is None:
            texts = random_texts(known, length, but=pad_of(checkpoint.config))
        else:
            ids = load_tokenizer(bundle.tokenizer_path).encode(text).ids
            own = ids if tokens is None or not tokens.foreign else chain.from_iterable(map(tokens.read_as, ids))
            texts = cut_texts(list(own), length)
        rows = None if tokens is None else tokens.rows
        found, original = compare_own_weights(bundle.path, entry, checkpoint, texts, rows)
    if not math.isfinite(found.stored.error):
        raise CheckFailed(f"{entry.graph}: gave logits with NaN or infinity, or of another size than transformers' own")
    failure = None
    try:
        found.check(entry)
    except CheckFailed as refusal:
        failure = str(refusal)
    return LogitsResult(
        model=model,
        format=entry.format,
        tokens=TEXTS * length,
        error_stored_weights=found.stored.error,
        worst_reading=found.stored.way,
        error_checkpoint_weights=original.error,
        tolerance=TOLERANCE,
        divergences=found.divergences,
        failure=failure,
        passed=failure is None,
    )


def cut_texts(ids: Sequence[int], length: int) -> tuple[tuple[int, ...], ...]:
    """Four pieces of a text, spread from its beginning to its end. Raises MxspecError if the text is too short."""
    if len(ids) < length + TEXTS - 1:
        raise MxspecError(f"--text: got {len(ids)} tokens, expected at least {length + TEXTS - 1}: give a longer text")
    step = (len(ids) - length) // (TEXTS - 1)
    return tuple(tuple(ids[begin : begin + length]) for begin in range(0, TEXTS * step, step))
