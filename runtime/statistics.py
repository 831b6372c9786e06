"""Counting while a generation runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from mxspec.runtime.events import Round, Statistics


@dataclass(slots=True)
class Tally:
    """The rounds of one generation so far."""

    prompt_tokens: int
    draft_prefill_seconds: float = 0.0
    rounds: list[Round] = field(default_factory=list)

    def statistics(self) -> Statistics:
        first, rest = self.rounds[:1], self.rounds[1:]
        return Statistics(
            prompt_tokens=self.prompt_tokens,
            emitted=sum(r.emitted for r in self.rounds),
            rounds=len(self.rounds),
            drafted=sum(r.drafted for r in self.rounds),
            evaluated=sum(r.evaluated for r in self.rounds),
            accepted=sum(r.accepted for r in self.rounds),
            bonus=sum(r.drafted > 0 and r.accepted == r.drafted for r in self.rounds),
            prefill_seconds=self.draft_prefill_seconds + sum(r.seconds for r in first),
            decode_seconds=sum(r.seconds for r in rest),
            draft_seconds=sum(r.draft_seconds for r in rest),
            target_seconds=sum(r.target_seconds for r in rest),
        )
