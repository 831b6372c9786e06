"""One text of an answer as it comes: its events gathered by round, and the choice that shows it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mxspec.runtime.events import Event, Finished, FinishReason, Round, Token
from mxspec.runtime.trace.collect import Collector
from mxspec.serve.texts.shape import Object

LEAST = -9999.0  # the log-probability of an impossible token: JSON has no infinity, and clients add these numbers
STOP, LENGTH = "stop", "length"  # OpenAI's reasons
_REASONS: Mapping[FinishReason, str] = {
    "eos": STOP,
    "stop": STOP,
    "grammar": STOP,
    "max_new_tokens": LENGTH,
    "context_end": LENGTH,
}


def finish_reason(reason: FinishReason) -> str:
    """OpenAI's word for why a text has ended; our own where OpenAI has no word."""
    return _REASONS.get(reason, reason)


def finite(logprob: float) -> float:
    """A log-probability as JSON can hold it, without infinity."""
    return logprob if math.isfinite(logprob) else LEAST


@dataclass(frozen=True, slots=True)
class Piece:
    """The text that a round adds, or at the end the text that was held back."""

    tokens: Sequence[Token]
    text: str
    round: Mapping[str, Any] | None = None  # the round's trace, None unless asked for


@dataclass(slots=True, kw_only=True)
class ChoiceText:
    """The text of a choice; `add` gives a piece for each round, and one for the end. Each API shows it in its form."""

    index: int  # index of the choice
    first_of_prompt: bool  # False for further samples of the same prompt
    collector: Collector | None = None
    tokens: list[Token] = field(default_factory=list)
    finished: Finished | None = None
    rounds: int = 0
    last_round: float = 0.0  # time of the last round, by perf_counter
    _pieces: list[str] = field(default_factory=list)
    _pending: list[Token] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def reason(self) -> str | None:
        """OpenAI's word for why the text has ended; None until then."""
        return None if self.finished is None else finish_reason(self.finished.reason)

    def add(self, event: Event) -> Piece | None:
        """Add the next event; returns the piece that it completes, if any."""
        if self.collector is not None:
            self.collector.add(event)
        if isinstance(event, Token):
            self._pending.append(event)
            self.tokens.append(event)
            self._pieces.append(event.text)
            return None
        if isinstance(event, Round):
            tokens, self._pending = self._pending, []
            self.rounds += 1
            self.last_round = time.perf_counter()
            trace = None if self.collector is None else self.collector.objects.pop()
            return Piece(tokens, "".join(token.text for token in tokens), trace)
        self.finished = event
        self._pieces.append(event.tail)
        return Piece((), event.tail)

    def opening(self) -> Object | None:
        """The choice of the chunk that comes before the text; None if there is no such chunk."""
        return None

    def chunk(self, piece: Piece) -> Object:
        """The choice of the chunk of a piece that was just added."""
        raise NotImplementedError

    def whole(self, index: int) -> Object:
        """The choice of a whole answer, which has the texts under other indices if the best were chosen."""
        raise NotImplementedError
