"""An engine with a slot for each of many texts, and what `specbench batch` times with it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mxspec.evaluate.bench.context import require_context
from mxspec.evaluate.bench.harness import same_texts, seconds_of
from mxspec.evaluate.bench.medians import median
from mxspec.evaluate.bench.speculate.guided import GuidedDrafter, draft_of
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.runtime.drafters.drafter import Drafter
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Round, Token
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Session
from mxspec.runtime.request import K, Request
from mxspec.runtime.sampling.shape import argmax_tokens

TEXTS = (1, 2, 4, 8)
CACHED = 128  # tokens of each prompt
TURN = (1000, 32)  # tokens of a first turn and of the second


@dataclass(frozen=True, slots=True)
class Answered:
    """Texts that were written together: wall seconds, tokens, and seconds in the models."""

    seconds: float
    model_seconds: float
    tokens: int
    texts: list[list[int]]
    rounds: list[list[Round]]  # of each text, including the round that gives its first token

    @property
    def longest(self) -> list[Round]:
        """The rounds of the text with the most rounds; all other texts share its steps."""
        return max(self.rounds, key=len)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def write_together(
    engine: Engine, prompts: Sequence[Sequence[int]], texts: int, settings: Mapping[str, Any]
) -> Answered:
    """Write texts for the first `texts` prompts together, after reading all prompts except for their last tokens."""
    reading = {**settings, "max_new_tokens": 1}
    for handle in engine.submit_all([Request(prompt=prompt, **reading) for prompt in prompts]):
        handle.result()
    requests = [Request(prompt=prompt, **settings) for prompt in prompts[:texts]]
    began = time.perf_counter()
    events = [list(handle) for handle in engine.submit_all(requests)]
    seconds = time.perf_counter() - began
    rounds = [[event for event in found if isinstance(event, Round)] for found in events]
    models = sum(event.draft_seconds + event.target_seconds for event in max(rounds, key=len))
    answers = [[event.id for event in found if isinstance(event, Token)] for found in events]
    return Answered(seconds, models, sum(map(len, answers)), answers, rounds)


class BatchBench:
    """An engine with a slot for each text, prompts of random ids, and an acceptance to impose."""

    def __init__(self, bundle: Path, new_tokens: int, acceptance: float, threads: int | None = None) -> None:
        """Raises MxspecError for a context too short for the new tokens."""
        self.engine = Engine(bundle, slots=max(TEXTS), threads=threads)
        if self.engine.target.encoder is not None:
            raise MxspecError(f"bundle {bundle}: its models have encoders, which specbench batch does not time")
        require_context(self.engine.bundle, CACHED, new_tokens)
        require_turns(self.engine.bundle)
        self.new_tokens = new_tokens
        self.session = Session.of(self.engine.bundle, "target", max(TEXTS))
        rng = np.random.default_rng(0)
        vocab = self.engine.bundle.manifest.tokenizer.vocab_size
        self.prompts = [rng.integers(0, vocab, CACHED).tolist() for _ in range(max(TEXTS))]
        self._plain: dict[tuple[int, ...], Sequence[int]] = {}
        self._acceptance = acceptance

    @cached_property
    def guided(self) -> GuidedDrafter:
        """Raises MxspecError for a bundle without a draft."""
        return GuidedDrafter(draft_of(self.engine), self._plain, self._acceptance)

    def write(self, texts: int, k: K = 0, *, drafter: Drafter | None = None, **settings: Any) -> Answered:
        """Write `texts` texts together."""
        shared = {"k": k, "drafter": drafter, "ignore_eos": True, **({"temperature": 0} | settings)}
        return write_together(self.engine, self.prompts, texts, {"max_new_tokens": self.new_tokens, **shared})

    def plain(self, texts: int) -> Answered:
        """Write without drafting, and keep the texts for the guided drafter to guess."""
        done = self.write(texts)
        for prompt, answer in zip(self.prompts, done.texts, strict=False):
            self._plain[tuple(prompt)] = [*prompt, *answer]
        return done

    def speculative(self, texts: int, k: K) -> Answered:
        """Write with the imposed acceptance."""
        done = self.write(texts, k, drafter=None if k == 0 else self.guided)
        for prompt, answer in zip(self.prompts, done.texts, strict=False):
            same_texts(self._plain[tuple(prompt)], [*prompt, *answer])
        return done

    def loop(self) -> float:
        """Tokens a second of a bare loop: a call, its likeliest token, the next call."""
        reader = Reader(self.session)
        reader.append(self.prompts[0][:-1], 1)
        token, began = self.prompts[0][-1], time.perf_counter()
        for _ in range(self.new_tokens):
            token = int(argmax_tokens(reader.forward([token], 1))[0])
        return self.new_tokens / (time.perf_counter() - began)

    def call_seconds(self, texts: int) -> float:
        """Median seconds of a call with one token of each text, halfway through the texts."""
        past = CACHED + self.new_tokens // 2
        parts = [Part(slot, past, [1], 1) for slot in range(texts)]
        for slot in range(texts):
            Reader(self.session, slot).append(self.prompts[slot], 1)
        return median([seconds_of(lambda: self.session.run(parts)) for _ in range(20)])

    def second_turn(self) -> tuple[float, float]:
        """Seconds to the first token of a second turn, and of the same prompt read from its first token."""
        rng = np.random.default_rng(time.perf_counter_ns())
        first, more = (rng.integers(0, self.session.real_vocab, count).tolist() for count in TURN)
        self.engine.generate(first, max_new_tokens=1, k=0).result()
        seconds = []
        for key in ("", "another"):  # another key reuses nothing that was read
            handle = self.engine.generate([*first, *more], max_new_tokens=1, k=0, cache_key=key)
            seconds.append(handle.result().statistics.prefill_seconds)
        return seconds[0], seconds[1]


def require_turns(bundle: Bundle) -> None:
    """Raises MxspecError where the target's context is too short for two turns."""
    context, needed = bundle.manifest.models["target"].context_length, sum(TURN) + 1
    if context < needed:
        raise MxspecError(
            f"bundle {bundle.path}: its context is {context:,} tokens, but timing a second turn takes {needed:,}"
        )
