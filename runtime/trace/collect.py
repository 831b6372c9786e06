"""The trace of a request as plain objects: what a trace file holds, and what the page is made of.

{"trace": 1, …}                  the header: what was asked for
{"sample": 0, "round": 1, …}     each round of each sample, in the order in which they happened
{"sample": 0, "finished": …}     each sample's end
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mxspec.runtime.events import Event, Finished, Round, Token
from mxspec.runtime.round_trace import DraftedToken, Next

VERSION = 1


@dataclass(slots=True)
class Collector:
    """Turns the events of a request into objects as they come; `text_of` is a token's text on its own."""

    text_of: Callable[[int], str]
    objects: list[dict[str, Any]] = field(default_factory=list)
    _tokens: dict[int, list[Token]] = field(default_factory=dict)  # tokens of the unfinished round, by sample
    _rounds: dict[int, int] = field(default_factory=dict)
    _emitted: dict[int, int] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        """Add the next event of any sample."""
        if isinstance(event, Token):
            self._tokens.setdefault(event.sample, []).append(event)
        elif isinstance(event, Round):
            self._add_round(event)
        else:
            self._add_end(event)

    def _add_round(self, done: Round) -> None:
        assert done.trace is not None, "the request asked for no trace"
        sample, trace = done.sample, done.trace
        tokens = self._tokens.pop(sample, [])
        number, place = self._rounds.get(sample, 0) + 1, self._emitted.get(sample, 0)
        self._rounds[sample], self._emitted[sample] = number, place + len(tokens)
        texts = [token.text for token in tokens]
        drafted = [
            self._guess(guess, texts[i] if guess.decision == "accepted" else None)
            for i, guess in enumerate(trace.guesses)
        ]
        self.objects.append(
            {
                "sample": sample,
                "round": number,
                "place": place,
                "k": trace.k,
                "why": trace.why,
                "draft_s": done.draft_seconds,
                "target_s": done.target_seconds,
                "seconds": done.seconds,
                "drafted": drafted,
                "next": None if trace.next is None else _next(trace.next, texts[-1]),
            }
        )

    def _guess(self, guess: DraftedToken, text: str | None) -> dict[str, Any]:
        return {
            "id": guess.token,
            "text": self.text_of(guess.token) if text is None else text,
            "origin": guess.origin,
            "draft_p": guess.draft_probability,
            "target_p": guess.target_probability,
            "decision": guess.decision,
        }

    def _add_end(self, event: Finished) -> None:
        statistics = event.statistics
        self.objects.append(
            {
                "sample": event.sample,
                "finished": event.reason,
                "tail": event.tail,
                "emitted": statistics.emitted,
                "seed": statistics.seed,
                "prefill_s": statistics.prefill_seconds,
                "decode_s": statistics.decode_seconds,
            }
        )


def _next(token: Next, text: str) -> dict[str, Any]:
    return {
        "id": token.token,
        "text": text,
        "kind": token.kind,
        "draft_p": token.draft_probability,
        "target_p": token.target_probability,
    }
