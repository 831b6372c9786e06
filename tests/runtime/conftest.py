"""Models that are functions of what they have read, behind the interface of `mxspec.runtime.model.Model`."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from mxspec.runtime.choose_k import FixedK
from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.drafters.none import NoDrafter
from mxspec.runtime.events import Event
from mxspec.runtime.generation import Generation, Request
from mxspec.runtime.sampling.settings import Sampling

Logits = NDArray[np.float32]
STALE = -1


class ToyModel:
    """Logits are a function of the tokens in the cache, and a stale or skipped entry in it is an error."""

    def __init__(self, logits: Callable[[tuple[int, ...]], Logits], capacity: int = 64) -> None:
        self.name = "toy"
        self.capacity = capacity
        self.length = 0
        self.calls: list[tuple[int, int, int]] = []  # past length, tokens, rows
        self._logits = logits
        self._cache = [STALE] * capacity

    def begin(self, user: object) -> None:
        self.length = 0

    def require(self, user: object) -> None:
        pass

    def append(self, tokens: Sequence[int], rows: int) -> Logits:
        assert 0 < rows <= len(tokens)
        assert self.length + len(tokens) <= self.capacity, "past the end of the cache"
        self.calls.append((self.length, len(tokens), rows))
        end = self.length + len(tokens)
        self._cache[self.length : end] = tokens
        self.length = end
        assert STALE not in self._cache[:end]
        return np.stack([self._logits(tuple(self._cache[:i])) for i in range(end - rows + 1, end + 1)])

    def rollback(self, length: int) -> None:
        assert 0 <= length <= self.length
        self._cache[length:] = [STALE] * (self.capacity - length)
        self.length = length


def random_logits(vocab: int, seed: int, spread: float = 1.5) -> Callable[[tuple[int, ...]], Logits]:
    """A random but fixed row for every text, so that a token at a wrong position shows."""

    @cache
    def logits(text: tuple[int, ...]) -> Logits:
        rng = np.random.default_rng([seed, zlib.crc32(repr(text).encode())])
        return (spread * rng.standard_normal(vocab)).astype(np.float32)

    return logits


def mixed_logits(
    first: Callable[[tuple[int, ...]], Logits], second: Callable[[tuple[int, ...]], Logits], share: float
) -> Callable[[tuple[int, ...]], Logits]:
    """As `first`, but for the share of texts in which it is `second`."""
    return lambda text: (second if zlib.crc32(b"mix" + repr(text).encode()) < share * 2**32 else first)(text)


@pytest.fixture(scope="session")
def toys(byte_tokenizer: Tokenizer) -> Any:
    """The toy models, and `generate` over them."""

    class Toys:
        Model = ToyModel
        random_logits = staticmethod(random_logits)
        mixed_logits = staticmethod(mixed_logits)

        @staticmethod
        def generate(
            target: ToyModel,
            draft: ToyModel | None,
            prompt: Sequence[int],
            *,
            k: int = 0,
            max_new_tokens: int = 20,
            eos: Sequence[int] = (),
            **sampling: Any,
        ) -> Generation:
            drafter = NoDrafter() if draft is None else ModelDrafter(draft)  # type: ignore[arg-type]
            request = Request(list(prompt), Sampling(**sampling), FixedK(k), max_new_tokens)
            return Generation(target, drafter, request, byte_tokenizer, eos)  # type: ignore[arg-type]

        @staticmethod
        def token_ids(events: Iterator[Event]) -> list[int]:
            return [event.id for event in events if hasattr(event, "id")]

    return Toys
