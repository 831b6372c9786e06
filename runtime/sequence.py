"""One text in the making: its tokens, its slot, its settings, and what comes of a round."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from mxspec.formats.errors import MxspecError
from mxspec.runtime.choose_k import Acceptance, Load
from mxspec.runtime.drafters.drafter import Drafter, Proposal, Wanted
from mxspec.runtime.events import Event, Finished, FinishReason, Round, Token
from mxspec.runtime.request import K
from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.logprobs import Logprob, raw_logprob, shaped_logprob
from mxspec.runtime.sampling.randomness import Purpose, uniform
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.shaper import Shaper
from mxspec.runtime.slots import Slot, Taken
from mxspec.runtime.statistics import Tally
from mxspec.runtime.text.stream import TextStream
from mxspec.runtime.verifiers.greedy import verify_greedy
from mxspec.runtime.verifiers.mrs import verify_mrs
from mxspec.runtime.verifiers.verdict import Verdict


class Outbox(Protocol):
    """Where a sequence's events go; called by the thread that runs the steps."""

    def put(self, event: Event | BaseException) -> None: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """How a text is to be written, checked: the prompt is not empty and fits, no k exceeds k_max."""

    prompt: list[int]
    sampling: Sampling  # with a seed
    k: K
    drafter: Drafter
    max_new_tokens: int
    eos: frozenset[int]  # tokens that end the text
    logprobs: int | None = None
    logprobs_of: str = "raw"
    cache_key: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """When a step began, when its drafts were there, and when they were scored: seconds of perf_counter."""

    began: float
    drafted: float
    scored: float


class Sequence:
    """A text from its admission to its end; after its first round the target has read all its tokens but the last."""

    def __init__(
        self, settings: Settings, shaper: Shaper, stream: TextStream, outbox: Outbox, capacity: int, sample: int = 0
    ) -> None:
        self.settings = settings
        self.sample = sample
        self.tokens = list(settings.prompt)
        self.shaper = shaper
        self.tally = Tally(
            len(settings.prompt), None if settings.sampling.greedy else settings.sampling.seed, settings.k
        )
        self.acceptance = Acceptance()
        self.followers: list[Sequence] = []  # samples of the same prompt, which wait until it has been read
        self.cancelled = False  # set by any thread
        self.ended = False
        self._slot: Slot | None = None
        self._capacity = capacity
        self._stream = stream
        self._outbox = outbox

    # --- where it stands ---

    @property
    def slot(self) -> Slot:
        assert self._slot is not None, "a slot is had from admission on"
        return self._slot

    @property
    def emitted(self) -> int:
        return len(self.tokens) - len(self.settings.prompt)

    @property
    def reading(self) -> bool:
        """Whether its prompt has not been read to the end."""
        return self.emitted == 0

    @property
    def prompt_read(self) -> int:
        """Tokens of the prompt that the target has read, or was spared."""
        if not self.reading:
            return len(self.settings.prompt)
        return 0 if self._slot is None else self._slot.target_length

    @property
    def unread(self) -> list[int]:
        """What the target has not read: the rest of the prompt, later the last token."""
        return self.tokens[self.slot.target_length :]

    @property
    def chooses_k(self) -> bool:
        """Whether K is chosen for it in every step."""
        return self.settings.k == "auto"

    @property
    def drafts_at_once(self) -> bool:
        """Whether the draft has to have read the prompt when the first round is over: a fixed K drafts in the next."""
        return not self.chooses_k and self.settings.k != 0 and self._room > 0

    @property
    def draft_lag(self) -> int:
        """Tokens that the draft has to read before it can guess."""
        return self.settings.drafter.lag(self.tokens, self.slot)

    @property
    def _room(self) -> int:
        """How many tokens can be drafted: never past the contexts or the tokens wanted."""
        length = len(self.tokens)
        wanted = self.settings.max_new_tokens - self.emitted - 1
        return max(min(wanted, self._capacity - length, self.settings.drafter.limit(length)), 0)

    def load(self) -> Load:
        """What it is to those who choose K."""
        k = self.settings.k
        return Load(self.acceptance.share, self._room, None if k == "auto" else k)

    def wanted(self, k: int, proposal: Proposal) -> Wanted:
        """What it asks of its drafter."""
        settings = self.settings
        return Wanted(self.tokens, self.slot, settings.sampling, self.sample, self.shaper, k, proposal)

    def forced(self, most: int) -> Proposal:
        """What its grammar allows no other for: proposed for nothing, and verified like any."""
        tokens = self.shaper.forced([])[: max(min(most, self.settings.max_new_tokens - self.emitted - 1), 0)]
        tokens = tokens[: max(self._capacity - len(self.tokens), 0)]
        if self.settings.sampling.greedy:
            return Proposal(tokens)
        return Proposal(tokens, [Distribution.point(token) for token in tokens])

    # --- its life ---

    def start(self, taken: Taken, began: float, acceptance: Acceptance) -> None:
        """It has been given a slot; `acceptance` is what to believe of its drafts."""
        self.acceptance = acceptance
        self._slot = taken.slot
        self._slot.tokens = self.tokens
        self.tally.began = began
        self.tally.reused_tokens = taken.target

    def verify(self, proposal: Proposal, logits: Logits) -> Verdict:
        """What is kept of a proposal, by the target's logits float32[K + 1, vocab]."""
        sampling, drafted = self.settings.sampling, proposal.tokens
        if sampling.greedy:
            return verify_greedy(lambda i: self.shaper.greedy(logits[i], drafted[:i]), drafted)
        seed, sample, first = sampling.seed, self.sample, len(self.tokens)
        return verify_mrs(
            lambda i: self.shaper.distribution(logits[i], drafted[:i]),
            proposal.distributions,
            drafted,
            lambda i: uniform(seed, sample, first + i, Purpose.ACCEPT),
            lambda i: uniform(seed, sample, first + i, Purpose.RESAMPLE),
        )

    def emit(self, proposal: Proposal, verdict: Verdict, logits: Logits, timing: Timing) -> Round:
        """Keep what was verified, up to the end if there is one; both models forget what was drafted beyond."""
        new = [*proposal.tokens[: verdict.accepted], verdict.next_token]
        events: list[Event] = []
        reason: FinishReason | None = None
        for i, token in enumerate(new):
            logprob = self._logprob(logits[i], token)  # before the token is counted: of what it was chosen from
            self.tokens.append(token)
            piece = "" if token in self.settings.eos else self._stream.push(token)
            events.append(Token(token, piece, i < verdict.accepted, self.sample, logprob))
            if (reason := self._end_after(token)) is not None:
                break
        self.slot.rollback(len(self.tokens) - 1)
        now = time.perf_counter()
        done = Round(
            drafted=len(proposal.tokens),
            evaluated=min(verdict.evaluated, len(events)),
            accepted=min(verdict.accepted, len(events)),
            emitted=len(events),
            draft_seconds=timing.drafted - timing.began,
            target_seconds=timing.scored - timing.drafted,
            seconds=now - timing.began,
            sample=self.sample,
        )
        if self.tally.rounds:
            self.acceptance.observe(done)
        else:
            self.tally.first_token = now
        self.tally.rounds.append(done)
        for event in (*events, done):
            self._outbox.put(event)
        if reason is not None:
            self.finish(reason)
        return done

    def finish(self, reason: FinishReason) -> None:
        """The text ends; its slot is whoever's asks for it."""
        try:
            tail = "" if reason == "stop" else self._stream.finish()
        except MxspecError as error:
            self.fail(error)
            return
        self._end()
        found = self._stream.stop is not None  # maybe in what was held back, which was open until now
        if found and reason != "cancelled":
            reason = "stop"
        self._outbox.put(Finished(reason, self.tally.statistics(), tail, self.sample))

    def fail(self, error: BaseException) -> None:
        """The text ends in an error, which its reader gets."""
        self._end()
        if self._slot is not None:
            self._slot.rollback(len(self.tokens) - 1)  # what was drafted is not the text's
        self._outbox.put(error)

    def _end(self) -> None:
        self.ended = True
        self.tally.ended = time.perf_counter()

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
