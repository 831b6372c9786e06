"""A running request: its events as they come, its answer when it is complete, and how to cancel it."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mxspec.formats.errors import GenerationError
from mxspec.runtime.events import Event, Finished, FinishReason, Statistics, Token
from mxspec.runtime.sampling.logprobs import Logprob
from mxspec.runtime.scheduling.scheduled_text import prompt_read
from mxspec.runtime.scheduling.tally import Tally


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    text: str
    token_ids: list[int]
    reason: FinishReason
    statistics: Statistics
    sample: int = 0
    logprobs: list[Logprob] | None = None  # one a token, where they were asked for
    score: float | None = None  # of a beam search, as in Finished

    @classmethod
    def of(cls, tokens: Sequence[Token], end: Finished) -> Answer:
        """The answer that the events of a text make."""
        logprobs = [token.logprob for token in tokens if token.logprob is not None]
        return cls(
            text="".join(token.text for token in tokens) + end.tail,
            token_ids=[token.id for token in tokens],
            reason=end.reason,
            statistics=end.statistics,
            sample=end.sample,
            logprobs=logprobs if len(logprobs) == len(tokens) else None,
            score=end.score,
        )

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability of the tokens."""
        assert self.logprobs is not None
        return sum(entry.logprob for entry in self.logprobs) / len(self.logprobs) if self.logprobs else 0.0


class Mailbox:
    """Where the engine's thread puts the events of a request, for one reader on any thread or event loop."""

    def __init__(self) -> None:
        self._put: queue.SimpleQueue[tuple[Event | BaseException, ...]] = queue.SimpleQueue()
        self._taken: deque[Event | BaseException] = deque()  # out of it, but not read yet
        self._listener: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._awaited = False  # the listener has found nothing: waking an event loop costs more than the event

    def put(self, *events: Event | BaseException) -> None:
        """Add events, all at once: each put wakes the reader."""
        self._put.put(events)
        if self._awaited and self._listener is not None:
            self._awaited = False
            loop, arrived = self._listener
            with suppress(RuntimeError):  # the loop was closed, and its reader is gone
                loop.call_soon_threadsafe(arrived.set)

    def get(self) -> Event | BaseException:
        """The next event; waits for it."""
        while not self._taken:
            self._taken += self._put.get()
        return self._taken.popleft()

    async def get_async(self) -> Event | BaseException:
        """The next event, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        if self._listener is None or self._listener[0] is not loop:
            self._listener = loop, asyncio.Event()
        _, arrived = self._listener
        while True:
            if self._take():
                return self._taken.popleft()
            arrived.clear()
            self._awaited = True  # set before the next look, so that an event put from here on wakes the reader
            if self._take():
                return self._taken.popleft()
            await arrived.wait()

    def _take(self) -> bool:
        """Whether there is an event to read; does not wait for one."""
        if not self._taken:
            with suppress(queue.Empty):
                self._taken += self._put.get_nowait()
        return bool(self._taken)


class Handle(Iterator[Event]):
    """An iterator over the events of a request; dropped or cancelled, its texts give their slots back within a step.

    With several samples their events come mixed; `sample` says whose each is. Mistakes that show only while a text is
    written are raised from the iteration.
    """

    def __init__(self, engine: Any, texts: Sequence[Any], mailbox: Mailbox, answers: int, streamed: bool) -> None:
        self._engine = engine  # an engine lives as long as somebody reads from it
        self._texts = texts
        self._tallies: list[Tally] = [text.tally for text in texts for _ in range(text.answers)]
        self._mailbox = mailbox
        self._answers = answers
        self._streamed = streamed
        self._left = len(self._tallies)
        self._error: BaseException | None = None
        self._tokens: list[list[Token]] = [[] for _ in self._tallies]  # of each sample
        self._ends: dict[int, Finished] = {}
        self._turn = threading.Lock()  # held by the thread that reads
        self._pid = os.getpid()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        self._require_stream()
        event = self._next()
        if event is None:
            raise StopIteration
        return event

    def __aiter__(self) -> AsyncIterator[Event]:
        self._require_stream()
        return self

    async def __anext__(self) -> Event:
        event = await self.next_async()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next_async(self) -> Event | None:
        """The next event without blocking the event loop, also where the best of many is wanted; None after the last.

        results() then has the answers at once. Raises the error that a text has ended in.
        """
        if not self._left:
            return None
        self._require_own_process()
        return self._seen(await self._mailbox.get_async())

    def cancel(self) -> None:
        """End all texts of the request; their last event says so. From any thread, any number of times."""
        for text in self._texts:
            text.cancelled = True
        self._engine.wake()

    def __del__(self) -> None:
        if getattr(self, "_left", 0):
            self.cancel()

    @property
    def statistics(self) -> Statistics:
        """Statistics of the first sample, at any time."""
        return self.statistics_of(0)

    def statistics_of(self, sample: int) -> Statistics:
        """Statistics of one sample, at any time."""
        return self._tallies[sample].statistics()

    @property
    def prompt_read(self) -> int:
        """Tokens of the prompt that have been read, at any time."""
        return prompt_read(self._texts[0])

    def result(self) -> Answer:
        """Wait for the answer, whatever was read of it before; the best one where there are several."""
        return self.results()[0]

    def results(self) -> list[Answer]:
        """Wait for all n answers, in the order of the samples; with best_of or beams the best first."""
        while self._next() is not None:
            pass
        if self._error is not None:
            raise self._error
        answers = [Answer.of(tokens, self._ends[sample]) for sample, tokens in enumerate(self._tokens)]
        if not self._streamed:
            answers.sort(key=lambda answer: (not answer.token_ids, -answer.mean_logprob))
        return answers[: self._answers]

    def _next(self) -> Event | None:
        """The next event; None after the last. Each goes to one of the threads that ask."""
        self._require_own_process()
        with self._turn:
            return self._seen(self._mailbox.get()) if self._left else None

    def _seen(self, event: Event | BaseException) -> Event:
        if isinstance(event, BaseException):
            self._left = 0
            self._error = event
            for text in self._texts:
                text.cancelled = True
            raise event
        if isinstance(event, Token):
            self._tokens[event.sample].append(event)
        elif isinstance(event, Finished):
            self._left -= 1
            self._ends[event.sample] = event
        return event

    def _require_own_process(self) -> None:
        if self._left and os.getpid() != self._pid:
            raise GenerationError("engine", "belongs to the process that made it; make another after the fork")

    def _require_stream(self) -> None:
        if not self._streamed:
            raise GenerationError(
                "best_of", "events cannot be streamed, because the best sample is known only at the end; call result()"
            )
