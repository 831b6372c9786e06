"""Counting while a generation runs."""

from __future__ import annotations

import time

from mxspec.runtime.events import Round, Statistics


class Tally:
    """Sums over the rounds of one generation, and the moments of its first and last token."""

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.emitted = 0
        self.rounds: list[Round] = []
        self.began = time.perf_counter()
        self.first_token = self.began
        self.last_token = self.began

    def add_token(self) -> None:
        self.last_token = time.perf_counter()
        if not self.emitted:
            self.first_token = self.last_token
        self.emitted += 1

    def statistics(self) -> Statistics:
        return Statistics(
            prompt_tokens=self.prompt_tokens,
            emitted=self.emitted,
            rounds=len(self.rounds),
            drafted=sum(r.drafted for r in self.rounds),
            evaluated=sum(r.evaluated for r in self.rounds),
            accepted=sum(r.accepted for r in self.rounds),
            bonus=sum(r.drafted > 0 and r.accepted == r.drafted for r in self.rounds),
            prefill_seconds=self.first_token - self.began,
            decode_seconds=self.last_token - self.first_token,
            draft_seconds=sum(r.draft_seconds for r in self.rounds),
            target_seconds=sum(r.target_seconds for r in self.rounds),
        )
