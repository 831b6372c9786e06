"""Models that are functions of what they have read, behind the interface of `mxspec.runtime.models.session.Session`."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from mxspec.runtime.beams.search import Search
from mxspec.runtime.drafters.draft import Draft
from mxspec.runtime.drafters.drafter import Choice, NoDrafter, Proposal, Wanted
from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.events import Event, Token
from mxspec.runtime.models.draft_tokens import DraftTokens, Translation
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.slots import Slot
from mxspec.runtime.policy.break_even import ALL_WANTED, BreakEven
from mxspec.runtime.sampling.randomness import Draws
from mxspec.runtime.sampling.settings import Beams, Sampling
from mxspec.runtime.sampling.shaper import Shaper
from mxspec.runtime.scheduling.chosen_settings import ChosenSettings
from mxspec.runtime.scheduling.scheduler import Scheduler
from mxspec.runtime.scheduling.text import Text
from mxspec.runtime.text.stream import TextStream
from mxspec.runtime.verifiers.verify import VERIFIERS, Verifier

Logits = NDArray[np.float32]
STALE = -1
AFTER_SOURCE = -2  # stands between a source and its text


class ToySession:
    """Logits are a function of the tokens in a slot, and a stale or skipped entry of it is an error.

    With a `source_capacity` it has an encoder: logits are a function of a slot's source as well. With `tokens` it is a
    draft with few or other tokens, and the function is one of what it reads. With a `ring` it can only go on after a
    token of which it says so: it keeps the last written of the positions that share a place of the ring.
    """

    experts_touched: float | None = None

    def __init__(
        self,
        logits: Callable[[tuple[int, ...]], Logits],
        capacity: int = 64,
        slots: int = 1,
        chunk: int = 64,
        source_capacity: int = 0,
        tokens: DraftTokens | None = None,
        ring: int = 0,
    ) -> None:
        self._rings = [[STALE] * ring for _ in range(slots)]
        self.capacity, self.slots, self.chunk, self.source_capacity = capacity, slots, chunk, source_capacity
        self.encoded: list[list[tuple[int, tuple[int, ...]]]] = []  # the sources of each call, by slot
        self._sources: list[tuple[int, ...]] = [()] * slots
        self.real_vocab = len(logits((0,))) if tokens is None else 0  # a draft's is never asked for
        self.calls: list[list[tuple[int, int, int, int]]] = []  # of each part: slot, past length, tokens, rows
        self.drafter = ModelDrafter(Draft(self))  # type: ignore[arg-type]
        self.head_ids = None if tokens is None else tokens.head_ids
        self.texts = None if tokens is None else tokens.texts
        self.translation = Translation(tokens, slots) if tokens is not None and tokens.foreign else None
        self._logits = logits
        self._caches = [[STALE] * capacity for _ in range(slots)]

    def run(self, parts: Sequence[Part]) -> Logits:
        assert self.head_ids is None
        return self.run_head(parts)

    def run_head(self, parts: Sequence[Part]) -> Logits:
        assert len({part.slot for part in parts}) == len(parts), "a slot named twice"
        assert sum(len(part.tokens) for part in parts) > 0
        rows = []
        for part in parts:
            assert 0 <= part.rows <= len(part.tokens)
            assert len(part.tokens) > 0
            past, tokens, ends = self._read(part)
            end = past + len(tokens)
            assert end <= self.capacity, "past the end of the cache"
            assert self._in_ring(part.slot, past), "what a window has passed"
            ring = self._rings[part.slot]
            for position in range(past, end) if ring else ():
                ring[position % len(ring)] = position
            cache = self._caches[part.slot]
            cache[past:] = [STALE] * (self.capacity - past)  # what was rolled back is of no use any more
            cache[past:end] = tokens
            assert STALE not in cache[:end]
            before = (*self._sources[part.slot], AFTER_SOURCE) if self.source_capacity else ()
            assert len(before) != 1, "a source that nobody has read"
            rows += [self._logits((*before, *cache[: past + i])) for i in ends[len(ends) - part.rows :]]
        self.calls.append([(part.slot, part.past, len(part.tokens), part.rows) for part in parts])
        return np.stack(rows)

    def _read(self, part: Part) -> tuple[int, Sequence[int], Sequence[int]]:
        """Entries before a part, the tokens that are read, and the number of these after which each given one ends."""
        if self.translation is None or part.written:
            return part.past, part.tokens, range(1, len(part.tokens) + 1)
        return self.translation.read(part.slot, part.past, part.tokens)

    def _in_ring(self, slot: int, length: int) -> bool:
        ring = self._rings[slot]
        return length == 0 or not ring or ring[(length - 1) % len(ring)] == length - 1

    def goes_on(self, slot: int, length: int) -> bool:
        if self.translation is not None:
            length = self.translation.entries(slot, self.translation.agreed(slot, length), [])
        return self._in_ring(slot, length)

    def fits(self, slot: int, past: int, tokens: Sequence[int]) -> bool:
        if self.translation is None:
            return past + len(tokens) <= self.capacity
        return self.translation.entries(slot, past, tokens) <= self.capacity

    def copy_prefix(self, source: int, destination: int, length: int, first: int = 0) -> None:
        if self.translation is not None:
            length, first = self.translation.copy(source, destination, length, first)
        assert STALE not in self._caches[source][:length]
        assert self._in_ring(source, length), "what a window has passed"
        self._rings[destination] = list(self._rings[source])
        if self.source_capacity:
            self.copy_source(source, destination)
        self._caches[destination][first:length] = self._caches[source][first:length]

    def release(self, slot: int) -> None:
        self._caches[slot] = [STALE] * self.capacity

    def encode(self, sources: Sequence[tuple[int, Sequence[int]]]) -> None:
        assert len({slot for slot, _ in sources}) == len(sources), "a slot named twice"
        for slot, tokens in sources:
            assert 0 < len(tokens) <= self.source_capacity
            self._sources[slot] = tuple(tokens)
        self.encoded.append([(slot, tuple(tokens)) for slot, tokens in sources])

    def copy_source(self, source: int, destination: int) -> None:
        assert self._sources[source], "a source that nobody has read"
        self._sources[destination] = self._sources[source]

    def release_source(self, slot: int) -> None:
        self._sources[slot] = ()


class Outbox(list[Any]):
    """The events of a text in the order in which they were put, and the text."""

    text: Any

    def put(self, *events: Any) -> None:
        self.extend(events)


class ToyText(Iterator[Event]):
    """The events of one text, which runs its scheduler step by step as they are asked for."""

    def __init__(self, scheduler: Scheduler, outbox: Outbox) -> None:
        self.scheduler, self.text, self.outbox = scheduler, outbox.text, outbox

    def __next__(self) -> Event:
        while not self.outbox and self.scheduler.busy:
            self.scheduler.step()
        if not self.outbox:
            raise StopIteration
        event = self.outbox.pop(0)
        if isinstance(event, BaseException):
            raise event
        return event

    @property
    def statistics(self) -> Any:
        return self.text.tally.statistics()


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


CHOSEN = ("logprobs", "logprobs_of", "cache_key", "traced", "source", "lenience")
SHAPED = ("min_new_tokens", "grammar", "rules")
BEAMS = tuple(field.name for field in fields(Beams))


def take(settings: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Those settings, which are not among the others any more."""
    return {name: settings.pop(name) for name in names if name in settings}


def settle(
    target: ToySession,
    draft: ToySession | None,
    prompt: Sequence[int],
    *,
    k: int | Any = 0,
    max_new_tokens: int = 20,
    eos: Sequence[int] = (),
    drafter: Any = None,
    verifier: str | Verifier = "mrs",
    proposal: Any = "sampled",
    draft_temperature: float | None = None,
    **settings: Any,
) -> tuple[ChosenSettings, Shaper]:
    """How a toy's text is written; `settings` are those of CHOSEN, SHAPED and sampling."""
    chosen, shaped = take(settings, CHOSEN), take(settings, SHAPED)
    sampling, rule = Sampling(**settings).seeded(), VERIFIERS[verifier] if isinstance(verifier, str) else verifier
    how = ChosenSettings(
        prompt=list(prompt),
        sampling=sampling,
        drafter=drafter or (NoDrafter() if draft is None else draft.drafter),
        k=0 if draft is None and drafter is None else k,
        choice=Choice(sampling.greedy, proposal, rule.matched, draft_temperature),
        verifier=rule,
        max_new_tokens=max_new_tokens,
        eos=frozenset(eos),
        **chosen,
    )
    limit = min(max_new_tokens, target.capacity + 1 - len(prompt))
    return how, Shaper(sampling, prompt, vocab_size=target.real_vocab, eos=eos, limit=limit, **shaped)


class ToyScheduler(Scheduler):
    """A scheduler of toys, which makes their texts."""

    def __init__(
        self, tokenizer: Tokenizer, target: ToySession, draft: ToySession | None = None, prefill_ms: float = 50
    ) -> None:
        super().__init__(target, draft, 8, prefill_ms)  # type: ignore[arg-type]
        self.target, self.draft, self._tokenizer = target, draft, tokenizer

    def make(
        self, outbox: Any, prompt: Sequence[int], *, sample: int = 0, stop: Sequence[str] = (), **given: Any
    ) -> Any:
        """A text, or with a `count` of beams a search."""
        beams = take(given, BEAMS)
        how, shaper = settle(self.target, self.draft, prompt, **given)
        stream = partial(TextStream, self._tokenizer, prompt, stop)
        if not beams:
            return Text(how, shaper, stream(), outbox, self.target.capacity, sample)
        sessions: Any = self.target, self.draft
        return Search(how, Beams(**beams), shaper, stream, outbox, *sessions, stops=bool(stop))

    def write(self, prompt: Sequence[int], **settings: Any) -> Outbox:
        """Add a text or a search; its events."""
        return self.write_samples(1, prompt, **settings)[0]

    def write_samples(self, count: int, prompt: Sequence[int], /, **settings: Any) -> list[Outbox]:
        """Add the samples of one prompt; the events of each."""
        boxes = [Outbox() for _ in range(count)]
        for sample, box in enumerate(boxes):
            box.text = self.make(box, prompt, **{"sample": sample, **settings})
        self.add([box.text for box in boxes])
        return boxes

    def run(self) -> None:
        """Run all texts to their ends."""
        while self.busy:
            self.step()


def make_want(
    tokens: Sequence[int],
    k: int,
    *,
    vocab_size: int,
    slot: Slot | None = None,
    sampling: Sampling | None = None,
    choice: Choice | None = None,
    seed: int | None = None,
    sample: int = 0,
    memory: Any = None,
    break_even: BreakEven = ALL_WANTED,
    proposal: Proposal | None = None,
    traced: bool = False,
) -> Wanted:
    """A request to a drafter."""
    sampling = sampling or Sampling()
    return Wanted(
        tokens=tokens,
        slot=slot or Slot(0),
        shaper=Shaper(sampling, tokens, vocab_size=vocab_size, eos=()),
        choice=choice or Choice(sampling.greedy),
        draws=Draws((sampling.seed or 0) if seed is None else seed, sample, len(tokens)),
        k=k,
        memory=memory,
        break_even=break_even,
        proposal=proposal or Proposal(),
        traced=traced,
    )


@pytest.fixture(scope="session")
def toys(byte_tokenizer: Tokenizer) -> Any:
    """The toy models, and what to run over them."""

    class Toys:
        Session = ToySession
        Outbox = Outbox
        random_logits = staticmethod(random_logits)
        mixed_logits = staticmethod(mixed_logits)
        scheduler = partial(ToyScheduler, byte_tokenizer)

        @staticmethod
        def pair(vocab: int, slots: int, agreement: float = 0.7, **sizes: int) -> tuple[ToySession, ToySession]:
            """A target, and a draft that agrees with it in a share of all texts."""
            target = random_logits(vocab, 1)
            draft = mixed_logits(random_logits(vocab, 2), target, agreement)
            return ToySession(target, slots=slots, **sizes), ToySession(draft, slots=slots, **sizes)

        @staticmethod
        def tokens(events: Sequence[Any]) -> list[int]:
            return [event.id for event in events if isinstance(event, Token)]

        @staticmethod
        def search(target: ToySession, draft: ToySession | None, prompt: Sequence[int], **settings: Any) -> list[Any]:
            """The events of one beam search alone."""
            scheduler = Toys.scheduler(target, draft)
            outbox = scheduler.write(prompt, **settings)
            scheduler.run()
            for event in outbox:
                if isinstance(event, BaseException):
                    raise event
            return outbox

        @staticmethod
        def generate(target: ToySession, draft: ToySession | None, prompt: Sequence[int], **settings: Any) -> ToyText:
            """One text alone."""
            scheduler = Toys.scheduler(target, draft)
            return ToyText(scheduler, scheduler.write(prompt, **settings))

    return Toys
