"""A text with one continuation: its tokens and slot, its part of each step, and what a round gives."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

import numpy as np

from mxspec.formats.errors import MxspecError
from mxspec.runtime.drafters.drafter import Proposal, Wanted
from mxspec.runtime.drafters.isolated import IsolatedDrafter
from mxspec.runtime.events import TARGET, Event, Finished, FinishReason, Token
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.slots import Slot, Slots
from mxspec.runtime.policy.break_even import ALL_WANTED, BreakEven
from mxspec.runtime.policy.choose_k import KByLoad, Load
from mxspec.runtime.policy.shares import Share
from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.logprobs import Logprob, raw_logprob, shaped_logprob
from mxspec.runtime.sampling.randomness import Draws
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.shaper import Shaper
from mxspec.runtime.scheduling.chosen_settings import ChosenSettings
from mxspec.runtime.scheduling.scheduled_text import FailsAlone, Outbox, ScheduledText
from mxspec.runtime.scheduling.tally import Timing
from mxspec.runtime.scheduling.tracer import Tracer, why_k
from mxspec.runtime.text.stream import TextStream
from mxspec.runtime.verifiers.verify import Scored, Verdict, verify_greedy

READY_LAG = 16  # tokens that the draft may read in the first call of a round; more are read beforehand
MEASURE_EVERY = 8  # rounds: comparing two distributions takes as long as drawing from one


class Text(ScheduledText):
    """A text with one continuation; after its first round, the target has read all its tokens but the last."""

    def __init__(
        self,
        settings: ChosenSettings,
        shaper: Shaper,
        stream: TextStream,
        outbox: Outbox,
        capacity: int,
        sample: int = 0,
    ) -> None:
        super().__init__(settings, outbox)
        self.sample = sample
        self.shaper = shaper
        self.acceptance = Share()
        self.drafter = IsolatedDrafter(settings.drafter)
        self._begun = False  # the drafter has begun the text, and remembers it
        self._memory: Any = None
        self._tracer = Tracer() if settings.traced else None
        self._capacity = capacity
        self._stream = stream
        # its part of a step
        self._k = 0  # tokens to draft, besides those that the grammar forces
        self._forced = 0  # tokens of the proposal that the grammar forces
        self._proposal = Proposal()
        self._draws: Draws
        self._verdict: Verdict

    # --- its state ---

    @property
    def slot(self) -> Slot:
        return self.slots[0]

    @property
    def emitted(self) -> int:
        return len(self.tokens) - len(self.settings.prompt)

    @property
    def reading(self) -> bool:
        return self.emitted == 0

    @property
    def _chooses_k(self) -> bool:
        """Whether K is chosen in every step."""
        return self.settings.k == "auto"

    @property
    def drafts_at_once(self) -> bool:
        """Whether the draft must read the prompt by the end of the first round: a fixed K drafts in the second."""
        return not self._chooses_k and self._room > 0 and self.draft_lag > 0

    @property
    def draft_lag(self) -> int:
        return self.drafter.lag(self.tokens, self.slot)

    @property
    def _room(self) -> int:
        """Number of tokens that can be drafted within both contexts and the length of the answer."""
        if self.settings.k == 0 or (self.slots and self.slot.undraftable):
            return 0
        length = len(self.tokens)
        wanted = self.settings.max_new_tokens - self.emitted - 1
        limit = self.drafter.limit(length, len(self.settings.source))
        return max(min(wanted, self._capacity - length, limit), 0)

    def load(self, k_max: int) -> Load:
        """The text as KByLoad sees it; a cheap drafter chooses K itself, up to `k_max`."""
        k = k_max if self._chooses_k and self.settings.drafter.cheap else self.settings.k
        return Load(self.acceptance.value, self._room, None if k == "auto" else k, self.settings.drafter.name)

    # --- its part of a step ---

    @staticmethod
    def plan(texts: Sequence[Text], load: KByLoad, slots: Slots) -> tuple[list[Text], list[Text]]:
        """Plan a round of each text; the texts that go on, and those among them that wait for their draft to read.

        If K is chosen, the draft reads a text only when drafting is first tried on this text.
        """
        loads: list[tuple[Text, Load]] = []
        for text in texts:
            with FailsAlone(text):
                loads.append((text, text.load(load.most)))
        going_on, late = [], []
        for (text, _), k in zip(loads, load.choose([each for _, each in loads]), strict=True):
            with FailsAlone(text):
                if text._plan_round(k, load.most):
                    late.append(text)
                going_on.append(text)
        return going_on, late

    def _plan_round(self, k: int, k_max: int) -> bool:
        """Plan a round that drafts up to `k` tokens; whether it drafts none yet because the draft has to read."""
        self._begin_step(self.unread, self._forced_tokens(k_max))
        self._k = max(k - self._forced, 0)
        waits = self._k > 0 and self._chooses_k and self.draft_lag > READY_LAG
        if self._tracer is not None:
            why = why_k(self.settings, k, self._room, self._forced, waits=waits)
            self._tracer.plan(max(k, self._forced), why)
        if waits:
            self._k = 0
        return waits

    def plan_piece(self, count: int) -> None:
        unread = self.unread
        self._begin_step(unread[:count], Proposal(), scored=count == len(unread))
        self._k = 0

    def _begin_step(self, piece: list[int], proposal: Proposal, *, scored: bool = True) -> None:
        seed = self.settings.sampling.seed
        assert seed is not None, "Sampling.seeded() comes before the first token"
        self.piece, self._proposal, self.scored = piece, proposal, scored
        self._forced = len(proposal.tokens)
        self._draws = Draws(seed, self.sample, len(self.tokens), fresh=self.settings.verifier.fresh)

    def _forced_tokens(self, most: int) -> Proposal:
        """Tokens that the grammar forces: proposed without a drafter, and verified like drafts."""
        if self.shaper.grammar is None:
            return Proposal()
        tokens = self.shaper.forced([])[: max(min(most, self.settings.max_new_tokens - self.emitted - 1), 0)]
        tokens = tokens[: max(self._capacity - len(self.tokens), 0)]
        certain = [] if self.settings.sampling.greedy else [Distribution.point(token) for token in tokens]
        return Proposal(tokens, ["grammar"] * len(tokens), certain)

    @staticmethod
    def draft(
        reads: Sequence[tuple[Text, int]], texts: Sequence[Text], load: KByLoad, scored: int
    ) -> list[tuple[str, int, float]]:
        """Each drafter reads and proposes for all its texts together, in a step that scores `scored` texts."""
        calls: list[tuple[str, int, float]] = []
        texts = [text for text in texts if text._k]
        concerned = [*(text for text, _ in reads), *texts]
        for drafter in {id(text.drafter.drafter): text.drafter.drafter for text in concerned}.values():
            calls += _draft(
                [read for read in reads if read[0].drafter.drafter is drafter],
                [text for text in texts if text.drafter.drafter is drafter],
                load,
                scored,
            )
        return calls

    def _wanted(self, break_even: BreakEven) -> Wanted:
        """The request to the drafter."""
        return Wanted(
            tokens=self.tokens,
            slot=self.slot,
            shaper=self.shaper,
            choice=self.settings.choice,
            draws=self._draws,
            k=self._k,
            memory=self._memory,
            break_even=break_even if self._chooses_k else ALL_WANTED,  # a fixed K is the same under every load
            proposal=self._proposal,
            traced=self.settings.traced,
        )

    @property
    def planned(self) -> int:
        return (len(self._proposal.tokens) + 1 if self.scored else 0) + self._k

    @property
    def step_tokens(self) -> int:
        return len(self.piece) + len(self._proposal.tokens)

    def parts(self) -> list[Part]:
        rows = len(self._proposal.tokens) + 1 if self.scored else 0
        return [Part(self.slot.index, self.slot.target_length, self.piece + self._proposal.tokens, rows)]

    def was_read(self) -> None:
        self.slot.target_length += self.step_tokens

    def look_aheads(self) -> list[tuple[Shaper, list[int]]]:
        return [(self.shaper, self._proposal.tokens)] if self.scored else []

    def verify(self, rows: Logits) -> None:
        """Decide which tokens of the proposal are kept, by the target's logits float32[K + 1, vocab]."""
        proposal, settings = self._proposal, self.settings
        drafted = proposal.tokens
        if settings.sampling.greedy:
            lenient = None if settings.lossless else partial(self._accepts, rows, drafted)
            verdict = verify_greedy(lambda i: self.shaper.greedy(rows[i], drafted[:i]), drafted, lenient)
            if self._tracer is not None:
                self._tracer.see(
                    proposal, verdict, lambda i, token: self.shaper.confidence(rows[i], token, drafted[:i])
                )
            self._verdict = verdict
            return
        shaped = cache(lambda i: self.shaper.distribution(rows[i], drafted[:i]))
        scored = Scored(drafted, proposal.distributions, shaped, self._draws, settings.lenience)
        self._verdict = verdict = settings.verifier.verify(scored)
        if self._tracer is not None:
            self._tracer.see(proposal, verdict, lambda i, token: shaped(i).probability(token))
        if settings.measured is not None and len(self.tally.rounds) % MEASURE_EVERY == 0:
            for place in range(verdict.evaluated):
                settings.measured.observe(shaped(place), proposal.distributions[place])

    def _accepts(self, logits: Logits, drafted: list[int], place: int, token: int) -> bool:
        """Lenience for argmax (Leviathan et al. 2023, A.5): accept a token whose p is a large share of the best."""
        row = self.shaper.process(logits[place], drafted[:place])
        return bool(row[token] > -np.inf and row[token] - row.max() >= np.log(self.settings.lenience))

    def emit(self, rows: Logits, timing: Timing, load: KByLoad) -> None:
        """Append the verified tokens, up to the end of the text; both models forget the rejected drafts."""
        proposal, verdict = self._proposal, self._verdict
        new = [*proposal.tokens[: verdict.accepted], verdict.next_token]
        events: list[Event] = []
        reason: FinishReason | None = None
        for i, token in enumerate(new):
            logprob = self._logprob(rows[i], token)  # before penalties count the token
            self.tokens.append(token)
            piece = "" if token in self.settings.eos else self._stream.push(token)
            origin = proposal.origins[i] if i < verdict.accepted else TARGET
            self.tally.origins[origin] += 1
            events.append(Token(token, piece, origin, self.sample, logprob))
            if (reason := self._end_after(token)) is not None:
                break
        self.slot.rollback(len(self.tokens) - 1)
        done = timing.round(
            len(proposal.tokens),
            min(verdict.evaluated, len(events)),
            min(verdict.accepted, len(events)),
            len(events),
            sample=self.sample,
            stopped=not self.drafter.cheap and len(proposal.tokens) - self._forced < self._k,
            trace=None if self._tracer is None else self._tracer.round(len(events)),
        )
        first = not self.tally.rounds
        self.tally.add(done)
        self.outbox.put(*events, done)
        if not first:
            self.acceptance.observe_round(done)
            self.drafter.observe(self._memory, done)
        if reason is not None:
            self.finish(reason)
        if done.drafted or done.stopped:
            load.pair[self.drafter.name].observe_round(done)

    # --- its life ---

    def start(self, slots: list[Slot], began: float, load: KByLoad) -> None:
        super().start(slots, began, load)
        self.slot.tokens = self.tokens
        self.acceptance = Share.like(load.pair[self.drafter.name])
        self._memory = self.drafter.begin(self.tokens, self.settings.cache_key, self.settings.source)
        self._begun = True

    def finish(self, reason: FinishReason) -> None:
        try:
            tail = "" if reason == "stop" else self._stream.finish()
            self._end()
        except Exception as error:  # in any case, the reader learns that the text has ended
            self.fail(error)
            return
        found = self._stream.stop is not None  # perhaps in the text that was held back until now
        if found and reason != "cancelled":
            reason = "stop"
        self.outbox.put(Finished(reason, self.tally.statistics(), tail, self.sample))

    def fail(self, error: BaseException) -> None:
        with suppress(MxspecError):  # an error of the drafter is dropped: the first error is reported
            self._end()
        if self.slots:
            self.slot.rollback(len(self.tokens) - 1)  # drafts are not part of the text
        self.outbox.put(error)

    def _end(self) -> None:
        self.ended = True
        self.tally.ended = time.perf_counter()
        if self._begun:
            self._begun = False
            self.drafter.end(self._memory, self.tokens)

    def _end_after(self, token: int) -> FinishReason | None:
        """Why the text ends after the token that was just added, if it does."""
        if token in self.settings.eos:
            return "eos"
        self.shaper.keep([token])
        if self._stream.stop is not None:
            return "stop"
        if self.shaper.complete:
            return "grammar"
        if self.emitted >= self.settings.max_new_tokens:
            return "max_new_tokens"
        if len(self.tokens) > self._capacity:
            return "context_end"
        return None

    def _logprob(self, row: Logits, token: int) -> Logprob | None:
        best = self.settings.logprobs
        if best is None:
            return None
        if self.settings.logprobs_of == "raw":
            return raw_logprob(row, token, best)
        if self.settings.sampling.greedy:
            return raw_logprob(self.shaper.process(row, []), token, best)
        return shaped_logprob(self.shaper.distribution(row, []), token, best)


def _draft(
    reads: Sequence[tuple[Text, int]], texts: Sequence[Text], load: KByLoad, scored: int
) -> list[tuple[str, int, float]]:
    """Let the drafter of these texts read and propose."""
    concerned = [*(text for text, _ in reads), *texts]
    drafter, calls = concerned[0].drafter, list[tuple[int, float]]()
    try:
        if reads:
            began = time.perf_counter()
            drafter.read([(text.tokens, text.slot, count) for text, count in reads])
            load.draft_read.add(sum(count for _, count in reads), time.perf_counter() - began)
        if texts:
            chosen = any(text.settings.k == "auto" for text in texts)
            break_even = load.break_even(drafter.name, scored) if chosen else ALL_WANTED
            calls = drafter.propose([text._wanted(break_even) for text in texts])
    except Exception as error:  # only its own texts fail: their entries in the draft's cache cannot be trusted
        for text in concerned:
            text.slot.draft_length = 0
            text.fail(error)
    for text in texts:
        if text._proposal.errors and not text.ended:
            text.fail(text._proposal.errors[0])
    return [(drafter.name, count, seconds) for count, seconds in calls]
