"""The texts of one request while they are written, and the objects of its answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from mxspec.runtime.cli.report import statistics_as_json, timings
from mxspec.runtime.events import Event, Finished, Round, Statistics, Token
from mxspec.runtime.handle import Handle
from mxspec.runtime.trace.collect import Collector
from mxspec.serve.engines.metrics import Metrics
from mxspec.serve.engines.models import Served
from mxspec.serve.texts.choice_text import ChoiceText, Piece
from mxspec.serve.texts.fields import GenerationRequest
from mxspec.serve.texts.shape import Object, Shape


@dataclass(slots=True)
class Generation:
    """A request that has begun; each handle writes `samples` of its texts, all of them or the best are answered."""

    served: Served
    asked: GenerationRequest
    shape: Shape
    texts: Sequence[ChoiceText]
    handles: Sequence[Handle]
    samples: int
    prompt_tokens: int | None = None  # given where no text continues the prompts
    scoring: Sequence[Future[Any]] = ()  # what is computed before anything is shown, on another thread
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))
    asked_at: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.id = f"{self.asked.id_prefix}-{secrets.token_hex(12)}"
        if self.asked.mxspec.trace:
            tokenizer = self.served.engine.tokenizer
            for text in self.texts:
                text.collector = Collector(lambda token: tokenizer.decode([token], skip_special_tokens=False))

    def add(self, prompt: int, event: Event, metrics: Metrics) -> tuple[ChoiceText, Piece] | None:
        """Add the next event of a handle's texts; returns the text and the piece that it completes."""
        text = self.texts[prompt * self.samples + event.sample]
        before = text.last_round
        piece = text.add(event)
        if isinstance(event, Round):
            if text.rounds == 1:
                statistics = self.handles[prompt].statistics_of(event.sample)
                metrics.begin(self.served.id, statistics, follows=not text.first_of_prompt)
            metrics.add_round(self.served.id, event, text.last_round - before if before else None)
        elif isinstance(event, Finished):
            reason = "abort" if event.reason == "cancelled" else text.reason
            metrics.end(self.served.id, event.statistics, str(reason), time.perf_counter() - self.asked_at)
        return None if piece is None else (text, piece)

    # --- the answer ---

    def chosen(self) -> Sequence[ChoiceText]:
        """The texts to answer with, once all have ended: all of them, or the best."""
        if not self.handles:
            return self.texts
        return [
            self.texts[prompt * self.samples + answer.sample]
            for prompt, handle in enumerate(self.handles)
            for answer in handle.results()
        ]

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
            "texts": len(self.handles) * self.samples,
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
        return {**self.envelope(self.asked.chunk_object, choices), **nothing, **more}

    def whole(self) -> Object:
        """The whole answer, not streamed."""
        chosen = self.chosen()
        choices = [text.whole(index) for index, text in enumerate(chosen)]
        for choice, text in zip(choices, chosen, strict=True):
            if text.finished is not None:
                choice["mxspec"] = self._end(text.finished)
                if self.asked.mxspec.origins:
                    choice["mxspec"]["tokens"] = tokens_as_json(text.tokens)
        answer = {**self.envelope(self.asked.whole_object, choices), "usage": self.usage()}
        if chosen[0].finished is not None:
            answer["timings"] = timings(chosen[0].finished.statistics)
        return answer

    def chunk_of(self, text: ChoiceText, piece: Piece) -> Object | None:
        """The chunk of a piece that was just added; None for tokens whose text a later one completes."""
        own = self._own(text, piece)
        if not (own or piece.text or any(token.logprob is not None for token in piece.tokens)):
            return None
        choice = text.chunk(piece)
        if own:
            choice["mxspec"] = own
        more = {} if text.finished is None else {"timings": timings(text.finished.statistics)}
        return self.chunk([choice], **more)

    def _own(self, text: ChoiceText, piece: Piece) -> Object:
        own: Object = {}
        if text.finished is not None:
            own |= self._end(text.finished)
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
