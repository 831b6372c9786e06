"""Which texts run, and what a step does for all of them: admit, encode, draft, score, verify, emit.

Where the models have encoders, a step first reads the sources of new texts, each whole in one call. Then a step
is one call of the target over the tokens of all running sequences: the next piece of a prompt, one token, or the K + 1
of a sequence that drafted. A row's logits depend on its own sequence alone, so each writes the text that it writes
alone, bit for bit.
"""

from __future__ import annotations

import time
from collections import abc, deque
from dataclasses import dataclass, field

import numpy as np

from mxspec.runtime.choose_k import Acceptance, KByLoad, StepCost
from mxspec.runtime.costs import Costs
from mxspec.runtime.drafters.drafter import Drafter, Proposal
from mxspec.runtime.sampling.randomness import Draws
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.shaper import prepare
from mxspec.runtime.sequence import Sequence, Timing
from mxspec.runtime.session import Part, Session
from mxspec.runtime.slots import Slots, Taken

FIRST_CHUNK = 16  # tokens of a prompt in a step that others wait for, before costs are known
READY_LAG = 16  # tokens that the draft may read in the first call of a round; more are read beforehand


@dataclass(slots=True)
class Work:
    """What a step does for one sequence."""

    sequence: Sequence
    tokens: list[int]  # what the target reads before the proposal
    scored: bool = True  # whether logits are wanted; not of a piece of a prompt that goes on
    k: int = 0  # tokens to draft, beside those that the proposal holds already
    proposal: Proposal = field(default_factory=Proposal)
    draws: Draws = field(init=False)
    forced: int = field(init=False)  # tokens of the proposal that no drafter guessed

    def __post_init__(self) -> None:
        self.draws = self.sequence.draws()
        self.forced = len(self.proposal.tokens)

    @property
    def rows(self) -> int:
        return len(self.proposal.tokens) + 1 if self.scored else 0

    @property
    def stopped(self) -> bool:
        """Whether a drafter that was called gave fewer tokens than it was asked for."""
        return not self.sequence.drafter.cheap and len(self.proposal.tokens) - self.forced < self.k

    def part(self) -> Part:
        """What it adds to the target's call."""
        slot = self.sequence.slot
        return Part(slot.index, slot.target_length, self.tokens + self.proposal.tokens, self.rows)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a step does: for the target, and tokens of prompts that drafts have to read beside it."""

    works: list[Work]
    draft_reads: list[tuple[Sequence, int]]
    as_chosen: bool  # texts draft as many tokens as was chosen: a step that K by load learns from


class Scheduler:
    """Owns the slots, and alone calls the sessions; one thread calls it.

    `prefill_ms` is how much longer a step may take for reading prompts while sequences wait for their next token.
    """

    def __init__(self, target: Session, draft: Session | None, k_max: int, prefill_ms: float) -> None:
        self.load = KByLoad(k_max)
        self._target, self._draft = target, draft
        self._k_max = k_max
        self._prefill_seconds = prefill_ms / 1e3
        self._slots = Slots(target.slots)
        self._encode_costs = Costs()
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    def add(self, samples: abc.Sequence[Sequence]) -> None:
        """The samples of one prompt, at the end of those that wait; all but the first wait until it has been read."""
        first, *others = samples
        first.followers = others
        self._waiting.append(first)

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._waiting or self._running)

    @property
    def waiting(self) -> int:
        """How many prompts wait for a slot."""
        return len(self._waiting)

    @property
    def free(self) -> int:
        """How many slots are."""
        return self._target.slots - len(self._running)

    def step(self) -> None:
        """One turn over all running sequences."""
        began = time.perf_counter()
        self._end_cancelled()
        self._admit(began)
        if not self._running:
            return
        self._encode()
        encoded = time.perf_counter()
        try:
            self._step(self._plan(), began, encoded)
        except Exception as error:  # of a call: what it wrote cannot be trusted
            self._fail_running(error)
        self._retire()

    def end_all(self, error: BaseException | None = None) -> None:
        """Every text ends now: in an error, or as cancelled."""
        while self.busy:
            for sequence in (*self._running, *self._waiting):
                if sequence.ended:
                    continue
                if error is None:
                    sequence.finish("cancelled")
                else:
                    sequence.fail(error)
            self._retire()

    # --- admit ---

    def _end_cancelled(self) -> None:
        while cancelled := [text for text in (*self._running, *self._waiting) if text.cancelled]:
            for sequence in cancelled:
                sequence.finish("cancelled")
            self._retire()  # which may bring samples that wait, and are cancelled too

    def _admit(self, now: float) -> None:
        """First come, first served, as long as there are slots."""
        while self._waiting:
            settings = self._waiting[0].settings
            taken = self._slots.take(settings.prompt, settings.cache_key, settings.source)
            if taken is None:
                return
            sequence = self._waiting.popleft()
            self._hand_over(taken)
            sequence.start(taken, now, Acceptance.like(self.load.pair[settings.strategy.drafter.name]))
            self._running.append(sequence)

    def _hand_over(self, taken: Taken) -> None:
        """Copy the beginning and the source that other slots hold, or give back the memory of an older text."""
        slot = taken.slot.index
        for session, length, source in (
            (self._target, taken.target, taken.target_source),
            (self._draft, taken.draft, taken.draft_source),
        ):
            if session is None:
                continue
            if taken.slot.source and source is None:
                session.release_source(slot)
            elif source is not None and source is not taken.slot:
                session.copy_source(source.index, slot)
            if length == 0:
                session.release(slot)
            elif taken.lender is not taken.slot:
                session.copy_prefix(taken.lender.index, slot, length)

    def _retire(self) -> None:
        """Slots of texts that have ended are free; samples that waited for their prompt to be read come next."""
        for sequence in reversed((*self._running, *self._waiting)):  # each goes before all, so the first is the last
            if sequence.followers and (sequence.ended or not sequence.reading):
                self._waiting.extendleft(reversed(sequence.followers))
                sequence.followers = []
        for sequence in self._running:
            if sequence.ended:
                self._slots.free(sequence.slot)
        self._running = [sequence for sequence in self._running if not sequence.ended]
        self._waiting = deque(sequence for sequence in self._waiting if not sequence.ended)

    def _fail_running(self, error: Exception) -> None:
        for sequence in self._running:
            self._slots.forget(sequence.slot)
            if not sequence.ended:
                sequence.fail(error)

    # --- encode ---

    def _encode(self) -> None:
        """The target's encoder reads sources of texts that came in, in their order, in one call.

        A source that several wait for is read once. The draft's reads one when the text is first drafted after.
        """
        waiting = [text for text in self._running if text.slot.target_unencoded]
        if not waiting:
            return
        chosen: dict[tuple[str, tuple[int, ...]], list[Sequence]] = {}
        left = self._source_budget(others=len(waiting) < len(self._running))
        for text in waiting:
            key = text.settings.cache_key, text.slot.source
            if key not in chosen and chosen and len(text.slot.source) > left:
                break
            if key not in chosen:
                left -= len(text.slot.source)
            chosen.setdefault(key, []).append(text)
        groups = list(chosen.values())
        try:
            self._encode_together(groups)
        except Exception:  # of some source: the texts of the others are to be what they are alone
            for texts in groups:
                try:
                    self._encode_together([texts])
                except Exception as error:
                    for text in texts:
                        self._slots.forget(text.slot)
                        text.fail(error)

    def _encode_together(self, groups: abc.Sequence[abc.Sequence[Sequence]]) -> None:
        """One call of the encoder for the source of each group, which all of its texts get."""
        began = time.perf_counter()
        self._target.encode([(texts[0].slot.index, texts[0].slot.source) for texts in groups])
        seconds = time.perf_counter() - began
        self._encode_costs.add(sum(len(texts[0].slot.source) for texts in groups), seconds)
        for first, *others in groups:
            for text in (first, *others):
                if text is not first:
                    self._target.copy_source(first.slot.index, text.slot.index)
                text.slot.target_encoded = True
                text.tally.encode_seconds = seconds

    def _source_budget(self, *, others: bool) -> int:
        """How many tokens of sources a call may read: as many as the longest has, or what `others` can wait for."""
        most = self._target.source_capacity
        if not others:
            return most
        costs = self._encode_costs
        return costs.affordable(0, self._prefill_seconds, most) if costs.sizes else 0

    # --- plan ---

    def _plan(self) -> Plan:
        """A round for every text that has begun, and pieces of prompts as far as the budget goes."""
        decoding = [sequence for sequence in self._running if not sequence.reading]
        works, late = [], []
        for sequence, k in zip(decoding, self.load.choose([s.load(self._k_max) for s in decoding]), strict=True):
            work = Work(sequence, sequence.unread, proposal=sequence.forced(self._k_max))
            work.k = max(k - len(work.proposal.tokens), 0)
            waits = work.k > 0 and sequence.chooses_k and sequence.draft_lag > READY_LAG
            sequence.note_k(k, len(work.proposal.tokens), waits=waits)
            if waits:
                late.append(sequence)  # K is chosen, so the draft reads a text only when it is first tried on it
                work.k = 0
            works.append(work)
        left = self._budget(self.load.score, sum(work.rows + work.k for work in works))
        reading = [s for s in self._running if s.reading and not s.ended and not s.slot.target_unencoded]
        pieces, draft_reads = self._pieces(reading, left)
        left = self._budget(self.load.draft_read, 0 if not decoding else sum(count for _, count in draft_reads) + 1)
        for sequence in late:
            count = sequence.draft_piece(left) if left > 0 else 0
            left -= count
            if count:
                draft_reads.append((sequence, count))
        return Plan([*works, *pieces], draft_reads, as_chosen=bool(decoding) and not late)

    def _budget(self, costs: Costs, tokens: int) -> int:
        """How many tokens of prompts a call may read beside `tokens` that are waited for, by what calls cost."""
        most = self._target.chunk
        if tokens == 0:
            return most
        if costs.sizes == 0:
            return min(FIRST_CHUNK, most)
        return costs.affordable(tokens, self._prefill_seconds, most)

    def _pieces(self, reading: abc.Sequence[Sequence], left: int) -> tuple[list[Work], list[tuple[Sequence, int]]]:
        """The next pieces of prompts, in the order in which they came; a fixed K wants the draft to keep up."""
        works: list[Work] = []
        draft_reads: list[tuple[Sequence, int]] = []
        for sequence in reading:
            if left <= 0:
                break
            unread = sequence.unread
            missed = sequence.draft_lag - len(unread) if sequence.drafts_at_once else 0
            if missed > 0:  # of a beginning that was taken over the draft had read less
                count = min(sequence.draft_piece(left), missed)
            else:
                count = min(len(unread), left)
                works.append(Work(sequence, unread[:count], scored=count == len(unread)))
            if sequence.drafts_at_once and sequence.draft_lag:  # most drafters have nothing to read
                draft_reads.append((sequence, count))
            left -= count
        return works, draft_reads

    # --- draft, score, verify, emit ---

    def _step(self, plan: Plan, began: float, encoded: float) -> None:
        draft_calls = self._propose(plan)
        works = [work for work in plan.works if not work.sequence.ended]
        drafted = time.perf_counter()
        if not works:
            return
        logits = self._score(works)
        scored = time.perf_counter()
        self._verify(works, logits, Timing(began, encoded, drafted, scored))
        tokens = sum(len(work.tokens) + len(work.proposal.tokens) for work in works)
        seconds = time.perf_counter() - drafted
        if plan.as_chosen:
            self.load.observe(StepCost(tokens, seconds, draft_calls))
        else:
            self.load.score.add(tokens, seconds)

    def _propose(self, plan: Plan) -> list[tuple[str, int, float]]:
        """Each drafter reads and proposes for all its texts together; the calls of the rounds."""
        calls: list[tuple[str, int, float]] = []
        texts = sum(work.scored for work in plan.works)
        drafters: dict[int, Drafter] = {id(s.drafter): s.drafter for s in self._running}
        for drafter in drafters.values():
            reads = [(s, count) for s, count in plan.draft_reads if s.drafter is drafter]
            works = [work for work in plan.works if work.k and work.sequence.drafter is drafter]
            try:
                if reads:
                    began = time.perf_counter()
                    drafter.read([(sequence.tokens, sequence.slot, count) for sequence, count in reads])
                    self.load.draft_read.add(sum(count for _, count in reads), time.perf_counter() - began)
                if works:
                    worth = self.load.worth(drafter.name, texts)
                    wanted = [work.sequence.wanted(work.k, work.proposal, work.draws, worth) for work in works]
                    calls += [(drafter.name, texts, seconds) for texts, seconds in drafter.propose(wanted)]
            except Exception as error:  # of its texts alone, whose drafts' entries cannot be trusted
                for sequence in (*(s for s, _ in reads), *(work.sequence for work in works)):
                    sequence.slot.draft_length = 0
                    sequence.fail(error)
            for work in works:
                for found in work.proposal.errors:
                    work.sequence.fail(found)
        return calls

    def _score(self, works: abc.Sequence[Work]) -> list[Logits]:
        """One call of the target; the rows of each work."""
        parts = [work.part() for work in works]
        if not any(part.rows for part in parts):
            parts[0] = Part(parts[0].slot, parts[0].past, parts[0].tokens, 1)  # a call has at least one
        logits = self._target.run(parts)
        for work, part in zip(works, parts, strict=True):
            work.sequence.slot.target_length += len(part.tokens)
        return np.split(logits, np.cumsum([part.rows for part in parts[:-1]]))

    def _verify(self, works: abc.Sequence[Work], logits: abc.Sequence[Logits], timing: Timing) -> None:
        """Verify what each sequence drafted, and emit what is kept of it."""
        prepare([(work.sequence.shaper, work.proposal.tokens) for work in works if work.scored])
        for work, rows in zip(works, logits, strict=True):
            sequence = work.sequence
            if not work.scored:
                continue
            try:
                verdict = sequence.verify(work.proposal, work.draws, rows)
                done = sequence.emit(work.proposal, verdict, rows, timing, stopped=work.stopped)
                if done.drafted or done.stopped:
                    self.load.pair[sequence.drafter.name].observe(done)
            except Exception as error:  # of this text alone: nothing here touches another
                sequence.fail(error)
