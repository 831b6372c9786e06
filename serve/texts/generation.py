"""The texts of one request while they are written, and the objects that its route shows them as."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mxspec.runtime.cli.report import statistics_as_json, timings
from mxspec.runtime.events import Event, Finished, Round, Statistics, Token
from mxspec.runtime.handle import Handle
from mxspec.runtime.trace.collect import Collector
from mxspec.serve.engines.flight import Flight
from mxspec.serve.engines.metrics import Metrics
from mxspec.serve.engines.models import Served
from mxspec.serve.texts.choice_text import ChoiceText, Piece, finish_reason
from mxspec.serve.texts.fields import GenerationRequest
from mxspec.serve.texts.shape import Chunks, Object, Shape


class Dialect(Protocol):
    """How a route shows texts: as whole choices, and as the choices of chunks."""

    prefix: str  # prefix of the answer's id
    whole_object: str
    chunk_object: str

    @property
    def logprobs(self) -> bool:
        """Whether log-probabilities are wanted."""

    async def begin(self, flight: Flight) -> None:
        """Compute what is shown before the texts, such as scores of the prompts."""

    def openings(self, index: int) -> list[Object]:
        """Choices of the chunks that come before any text."""

    def pieces(self, index: int, piece: Piece) -> list[Object]:
        """Choices of the chunks for a piece of a text, at least one; the last one of the text has the reason."""

    def choice(self, index: int, text: ChoiceText) -> Object:
        """The choice of a whole answer."""

    def echoes(self) -> list[Object]:
        """The choices of an answer for which nothing is written."""


@dataclass(slots=True)
class Generation:
    """A request that has begun; `samples` texts of each handle are written, `n` of them answered.

    A greedy text that is asked for several times has as many handles: `copies`.
    """

    served: Served
    asked: GenerationRequest
    dialect: Dialect
    handles: Sequence[Handle]
    samples: int
    prompt_tokens: int | None = None  # given where no text continues the prompts
    copies: int = 1  # handles of each prompt
    shape: Shape = field(default_factory=Chunks)
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))
    asked_at: float = field(default_factory=time.perf_counter)
    texts: list[ChoiceText] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.id = f"{self.dialect.prefix}-{secrets.token_hex(12)}"
        texts = self.served.engine.tokenizer
        for index in range(self.samples * len(self.handles)):
            collector = Collector(lambda token: texts.decode([token], skip_special_tokens=False))
            first = index % (self.samples * self.copies) == 0
            self.texts.append(ChoiceText(index, first, collector if self.asked.mxspec.trace else None))

    def add(self, prompt: int, event: Event, metrics: Metrics) -> tuple[int, Piece] | None:
        """Add the next event of a prompt's texts; returns the index of the choice and the piece that it completes."""
        index = prompt * self.samples + event.sample
        text = self.texts[index]
        before = text.last_round
        piece = text.add(event)
        if isinstance(event, Round):
            if text.rounds == 1:
                statistics = self.handles[prompt].statistics_of(event.sample)
                metrics.begin(self.served.id, statistics, follows=not text.first_of_prompt)
            metrics.add_round(self.served.id, event, text.last_round - before if before else None)
        elif isinstance(event, Finished):
            reason = "abort" if event.reason == "cancelled" else finish_reason(event.reason)
            metrics.end(self.served.id, event.statistics, reason, time.perf_counter() - self.asked_at)
        return None if piece is None else (index, piece)

    # --- the answer ---

    def chosen(self) -> list[ChoiceText]:
        """The texts to answer with, once all have ended: all of them, or the best."""
        texts = []
        for prompt, handle in enumerate(self.handles):
            texts += [self.texts[prompt * self.samples + answer.sample] for answer in handle.results()]
        return texts

    def usage(self) -> Object:
        """Tokens read and written; a prompt counts once, even if several texts continue it."""
        ends = [text.finished.statistics for text in self.texts if text.finished is not None]
        firsts = [t.finished.statistics for t in self.texts if t.first_of_prompt and t.finished is not None]
        read = sum(statistics.prompt_tokens for statistics in firsts)
        prompts = read if self.prompt_tokens is None else self.prompt_tokens
        completions = sum(statistics.emitted for statistics in ends)
        return {
            "prompt_tokens": prompts,
            "completion_tokens": completions,
            "total_tokens": prompts + completions,
            "prompt_tokens_details": {"cached_tokens": sum(statistics.reused_tokens for statistics in firsts)},
        }

    def facts(self) -> Object:
        """What the access log says of the texts."""
        ends = [text.finished for text in self.texts if text.finished is not None]
        found: Object = {
            "model": self.served.id,
            "stream": self.asked.stream,
            "texts": len(self.texts),
            **{name: value for name, value in self.usage().items() if isinstance(value, int)},
            "reasons": sorted({end.reason for end in ends}),
        }
        if ends:
            found["waiting_ms"] = round(ends[0].statistics.waiting_seconds * 1e3, 1)
            found["prefill_ms"] = round(ends[0].statistics.prefill_seconds * 1e3, 1)
        return found

    def envelope(self, kind: str, choices: list[Object]) -> Object:
        """An object of the answer around `choices`."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.served.id,
            "system_fingerprint": None,
            "choices": choices,
        }

    def chunk(self, choices: list[Object], **more: Any) -> Object:
        """One object of a stream."""
        nothing = {"usage": None} if self.asked.include_usage else {}
        return {**self.envelope(self.dialect.chunk_object, choices), **nothing, **more}

    def whole(self) -> Object:
        """The whole answer, not streamed."""
        chosen = self.chosen()
        choices = [self.dialect.choice(index, text) for index, text in enumerate(chosen)]
        choices = choices or self.dialect.echoes()
        for choice, text in zip(choices, chosen, strict=False):
            assert text.finished is not None, "all texts have ended"
            choice["mxspec"] = self._end(text.finished)
            if self.asked.mxspec.origins:
                choice["mxspec"]["tokens"] = tokens_as_json(text.tokens)
        answer = {**self.envelope(self.dialect.whole_object, choices), "usage": self.usage()}
        if chosen and chosen[0].finished is not None:
            answer["timings"] = timings(chosen[0].finished.statistics)
        return answer

    def chunks(self, index: int, piece: Piece) -> list[Object]:
        """The chunks of a piece."""
        own = self._own(piece)
        if not (own or piece.text or piece.finished or self.dialect.logprobs):
            return []  # tokens whose text a later one completes
        choices = self.dialect.pieces(index, piece)
        chunks = [self.chunk([choice]) for choice in choices]
        if own:
            choices[-1]["mxspec"] = own
        if piece.finished is not None:
            chunks[-1]["timings"] = timings(piece.finished.statistics)
        return chunks

    def _own(self, piece: Piece) -> Object:
        own: Object = {}
        if piece.finished is not None:
            own |= self._end(piece.finished)
        elif self.asked.mxspec.origins:
            own["tokens"] = tokens_as_json(piece.tokens)
        if piece.round is not None:
            own["round"] = piece.round
        return own

    def _end(self, finished: Finished) -> Object:
        """Our own fields about how a text has ended."""
        end: Object = {"finish_reason": finished.reason, "seed": finished.statistics.seed}
        if finished.score is not None:
            end["score"] = finished.score
        if self.asked.mxspec.origins or self.asked.mxspec.trace:
            end["statistics"] = _statistics(finished.statistics)
        return end


def tokens_as_json(tokens: Sequence[Token]) -> list[Object]:
    """Each token with its origin; its text is empty while later tokens can change it."""
    return [{"id": token.id, "text": token.text, "origin": token.origin} for token in tokens]


def _statistics(statistics: Statistics) -> Mapping[str, Any]:
    report = statistics_as_json(statistics)
    del report["timings"]  # they have a field of their own
    return report
