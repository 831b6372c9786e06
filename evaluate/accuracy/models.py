"""The models that are compared, and their scores of a window, call by call.

Models of a bundle run in their own sessions, with room for one text. transformers, in float32, is the referee: is the
fp16 baseline itself right?
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np

from mxspec.evaluate.accuracy.statistics import Scores, compare_rows
from mxspec.evaluate.accuracy.windows import Window
from mxspec.formats.errors import MxspecError, needs
from mxspec.formats.manifest import ModelEntry
from mxspec.recipes.recipe import Recipe
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.sampling.shape import Logits

ScoredModel = Callable[[Window, int], Iterator[Logits]]
"""Yields float32[rows, vocab], the logits before the scored tokens of a window, in calls of at most so many tokens."""


def calls(window: Window, chunk: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, rows) of each call of at most `chunk` tokens; the last `rows` tokens of the call need logits."""
    tokens = len(window.tokens) - 1  # nothing comes after the last
    for begin in range(0, tokens, chunk):
        end = min(begin + chunk, tokens)
        yield begin, end, max(0, min(end - begin, end - (tokens - window.scored)))


def bundle_rows(reader: Reader, window: Window, chunk: int) -> Iterator[Logits]:
    """The rows of a model of a bundle: the session's own buffer, which its next call overwrites."""
    reader.begin(window.source)
    for begin, end, wanted in calls(window, chunk):
        logits = reader.forward(window.tokens[begin:end], max(wanted, 1))
        if wanted:
            yield logits


def open_referee(origin: Recipe, entry: ModelEntry, vocab: int, longest: int) -> tuple[ScoredModel, int]:
    """The target of `origin` in transformers, for texts of at most `longest` tokens, and where its texts must begin.

    Models that are compared with it begin at the same position. Raises MxspecError.
    """
    with needs("compile", "--referee"):
        from mxspec.compile.check.reference import forward, load_reference, reads_alike_anywhere
        from mxspec.compile.checkpoint.open_checkpoint import open_checkpoint
    with ExitStack() as files:
        checkpoint, _ = open_checkpoint(origin, origin.target, files)
        config = checkpoint.config
        first = 0 if reads_alike_anywhere(config, entry.context_length) else entry.context_length - longest
        model = load_reference(checkpoint, config)
    if model.config.vocab_size < vocab:
        raise MxspecError(
            f"--referee: has {model.config.vocab_size} logits, the bundle {vocab} tokens: they are of two models"
        )

    def rows(window: Window, chunk: int) -> Iterator[Logits]:
        assert not window.source, "refused beforehand"
        logits = forward(model, window.tokens[:-1], first)[:, :vocab]
        for _, end, wanted in calls(window, chunk):
            if wanted:
                yield logits[end - wanted : end]

    return rows, first


def score_window(models: Sequence[ScoredModel], window: Window, chunk: int) -> list[Scores]:
    """The scores of each model, the baseline first, for the window's scored tokens.

    The models alternate call by call, so that memory holds the logits of one call of each.
    """
    next_ids = np.asarray(window.tokens[-window.scored :], dtype=np.int64)
    parts: list[list[Scores]] = []
    first = 0
    for baseline, *others in zip(*(model(window, chunk) for model in models), strict=True):
        parts.append(compare_rows(baseline, others, next_ids[first : first + len(baseline)]))
        first += len(baseline)
    return [Scores.joined(of_model) for of_model in zip(*parts, strict=True)]
