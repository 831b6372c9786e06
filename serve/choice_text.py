"""One text of an answer as it comes: its events gathered by round."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mxspec.runtime.events import Event, Finished, FinishReason, Round, Token
from mxspec.runtime.trace.collect import Collector

STOP, LENGTH = "stop", "length"  # OpenAI's reasons
_REASONS: Mapping[FinishReason, str] = {
    "eos": STOP,
    "stop": STOP,
    "grammar": STOP,
    "max_new_tokens": LENGTH,
    "context_end": LENGTH,
}


def finish_reason(reason: FinishReason) -> str:
    """OpenAI's word for why a text has ended; our own for what it has none."""
    return _REASONS.get(reason, reason)


@dataclass(frozen=True, slots=True)
class Piece:
    """What a round adds to a text, or its end: what was held back."""

    tokens: Sequence[Token]
    text: str
    round: Mapping[str, Any] | None = None  # its trace, where one was asked for
    finished: Finished | None = None


@dataclass(slots=True)
class ChoiceText:
    """The text of a choice; `add` gives a piece for each round, and one for the end."""

    index: int  # of the choice
    first_of_prompt: bool  # not a further sample
    collector: Collector | None = None
    tokens: list[Token] = field(default_factory=list)
    finished: Finished | None = None
    rounds: int = 0
    last_round: float = 0.0  # perf_counter
    _pieces: list[str] = field(default_factory=list)
    _pending: list[Token] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def add(self, event: Event) -> Piece | None:
        """The next event; what it completes."""
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
        return Piece((), event.tail, None, event)
