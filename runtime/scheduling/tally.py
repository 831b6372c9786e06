"""Count the rounds of a text while it is written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mxspec.runtime.events import Round, Statistics
from mxspec.runtime.models.slots import Slot
from mxspec.runtime.scheduling.chosen_settings import ChosenSettings


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of a step (perf_counter): when it began, and when its sources, drafts and scores were done.

    `experts` is the mean number of a layer's experts that scoring touched, None without experts.
    """

    began: float
    encoded: float
    drafted: float
    scored: float
    experts: float | None = None

    def round(self, drafted: int, evaluated: int, accepted: int, emitted: int, **more: Any) -> Round:
        """The round of a text in the step, which ends now; `more` are fields of Round that are not the step's."""
        draft, target = self.drafted - self.encoded, self.scored - self.drafted
        seconds = time.perf_counter() - self.began
        return Round(drafted, evaluated, accepted, emitted, draft, target, seconds, experts=self.experts, **more)


@dataclass(slots=True)
class Tally:
    """The rounds of one text so far, and the times of its request, start, first token and end (perf_counter)."""

    settings: ChosenSettings
    asked: float = field(default_factory=time.perf_counter)
    began: float | None = None
    first_token: float | None = None
    ended: float | None = None
    reused_tokens: int = 0
    reread_tokens: int = 0
    beams: int = 1
    encode_seconds: float = 0.0
    rounds: list[Round] = field(default_factory=list)
    origins: Counter[str] = field(default_factory=Counter)

    def begin(self, began: float, slot: Slot) -> None:
        """The text has a slot, which holds some of its source and prompt."""
        self.began = began
        self.reused_tokens = len(self.settings.source) - slot.target_unencoded + slot.target_length
        self.reread_tokens = slot.reread

    def add(self, done: Round) -> None:
        """Count a round that has just ended."""
        if self.first_token is None:
            self.first_token = time.perf_counter()
        self.rounds.append(done)

    def statistics(self) -> Statistics:
        """The statistics of the rounds so far."""
        return self.statistics_of(sum(done.emitted for done in list(self.rounds)), self.origins)

    def statistics_of(self, emitted: int, origins: Mapping[str, int]) -> Statistics:
        """The statistics of one text of a beam search, which has not the tokens of all rounds."""
        rounds = list(self.rounds)  # the engine's thread may be adding one
        rest = rounds[1:]
        now = time.perf_counter() if self.ended is None else self.ended
        began = now if self.began is None else self.began
        return Statistics(
            seed=None if self.settings.sampling.greedy else self.settings.sampling.seed,
            k=self.settings.k,
            drafter=self.settings.drafter.name,
            verifier=self._verifier,
            proposal=self.settings.choice.kind,
            lossless=self.settings.lossless,
            prompt_tokens=len(self.settings.source) + len(self.settings.prompt),
            reused_tokens=self.reused_tokens,
            reread_tokens=self.reread_tokens,
            emitted=emitted,
            beams=self.beams,
            steps=len(rounds) + sum(r.accepted for r in rounds),
            rounds=len(rounds),
            drafted=sum(r.drafted for r in rounds),
            evaluated=sum(r.evaluated for r in rounds),
            accepted=sum(r.accepted for r in rounds),
            bonus=sum(r.drafted > 0 and r.accepted == r.drafted for r in rounds),
            origins=dict(origins),
            evaluated_by_position=_by_position([r.evaluated for r in rounds]),
            accepted_by_position=_by_position([r.accepted for r in rounds]),
            rounds_by_k=dict(sorted(Counter(r.drafted for r in rounds).items())),
            waiting_seconds=began - self.asked,
            prefill_seconds=(now if self.first_token is None else self.first_token) - began,
            encode_seconds=self.encode_seconds,
            decode_seconds=sum(r.seconds for r in rest),
            draft_seconds=sum(r.draft_seconds for r in rest),
            target_seconds=sum(r.target_seconds for r in rest),
            experts_a_step=_mean([r.experts for r in rest if r.experts is not None]),
        )

    @property
    def _verifier(self) -> str:
        if self.beams > 1:
            return "beams"
        return "greedy" if self.settings.sampling.greedy else self.settings.verifier.name


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _by_position(lengths: list[int]) -> tuple[int, ...]:
    """The number of rounds that reached the first position, the second, and so on."""
    return tuple(sum(length > place for length in lengths) for place in range(max(lengths, default=0)))
