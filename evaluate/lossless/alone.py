"""The reference of all comparisons: the target alone, in its own session, one token a call."""

from __future__ import annotations

from mxspec.evaluate.lossless.job import Job
from mxspec.runtime.engine import Engine
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Session
from mxspec.runtime.sampling.randomness import Draws
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.shaper import Shaper


class Alone:
    """Writes texts without a scheduler, slots, drafters or verifiers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._eos = frozenset(engine.bundle.manifest.tokenizer.eos_token_ids)
        self._reader = Reader(Session.of(engine.bundle, "target", 1))

    def write(self, job: Job) -> list[int]:
        """The tokens after the prompt. Sampled tokens are chosen by the noise of sample-and-match."""
        reader, shaper = self._reader, job.shaper(self._engine, ignore_eos=False)
        reader.begin(job.prompt.source)
        row = reader.append(job.prompt.tokens, 1)[0]
        tokens: list[int] = []
        while True:
            token = _choice(job, shaper, row, len(job.prompt.tokens) + len(tokens))
            tokens.append(token)
            if token in self._eos:
                return tokens
            shaper.keep([token])
            if shaper.complete or len(tokens) == job.length or reader.length == reader.session.capacity:
                return tokens
            row = reader.forward([token], 1)[0]


def _choice(job: Job, shaper: Shaper, row: Logits, position: int) -> int:
    if job.sampling.greedy:
        return shaper.greedy(row)
    seed = job.sampling.seed
    assert seed is not None
    return shaper.distribution(row).race(Draws(seed, 0, position), 0)
