"""Ours: a bundle, opened by the engine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.llama_cpp.answer import Answer, K
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Round, Token
from mxspec.runtime.request import Request


@dataclass(frozen=True, slots=True)
class Bundled:
    """A bundle to open; K = 0 is plain decoding."""

    bundle: Path
    threads: int
    k: K = 0

    @contextmanager
    def open(self) -> Iterator[Opened]:
        with Engine(self.bundle, slots=1, threads=self.threads) as engine:
            yield Opened(engine, self.k)


@dataclass(frozen=True, slots=True)
class Opened:
    """An engine that writes at one K."""

    engine: Engine
    k: K

    def answer(self, prompt: Sequence[int], new_tokens: int) -> Answer:
        """An answer, timed by the caller: from the first token, which reading the prompt gives, to the last one."""
        request = Request(
            prompt=list(prompt),
            temperature=0,
            k=self.k,
            max_new_tokens=new_tokens,
            drafter="none" if self.k == 0 else "model",
            ignore_eos=True,
        )
        tokens: list[int] = []
        drafted = accepted = 0
        began = ended = 0.0
        for event in self.engine.submit(request):
            if isinstance(event, Token):
                ended = time.perf_counter()
                began = began or ended
                tokens.append(event.id)
            elif isinstance(event, Round):
                drafted += event.drafted
                accepted += event.accepted
        return Answer(tuple(tokens), ended - began, drafted, accepted)
