"""transformers reads the same windows in float32: is the fp16 baseline itself right?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from mxspec.evaluate.accuracy.models import calls
from mxspec.formats.errors import MxspecError, needs
from mxspec.formats.manifest import ModelEntry
from mxspec.recipes.recipe import Recipe
from mxspec.runtime.sampling.shape import Logits

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MOST_OFF = 1e-3  # largest relative difference of perplexity between the fp16 baseline and float32


class Referee:
    """A checkpoint in transformers; texts begin at `first_position`, as in the models that it is compared with."""

    def __init__(self, model: PreTrainedModel, vocab: int, first_position: int) -> None:
        self._model = model
        self._vocab = vocab
        self.first_position = first_position

    @classmethod
    def open(cls, origin: Recipe, entry: ModelEntry, vocab: int, longest: int) -> Referee:
        """Open the target of `origin` for texts of at most `longest` tokens. Raises MxspecError."""
        with needs("compile", "--referee"):
            from mxspec.compile.check.reference import load_reference, reads_alike_anywhere
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
        return cls(model, vocab, first)

    def score(self, tokens: Sequence[int], rows: int, chunk: int, source: Sequence[int] = ()) -> Iterator[Logits]:
        """Yield float32[rows, vocab] in the same pieces as a model of a bundle."""
        assert not source, "refused beforehand"
        from mxspec.compile.check.reference import forward

        logits = forward(self._model, tuple(tokens), self.first_position)[:, : self._vocab]
        for _, end, wanted in calls(len(tokens), rows, chunk):
            if wanted:
                yield logits[end - wanted : end]
