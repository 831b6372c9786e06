"""A beam search from its admission to its end: its beams, its slots, and the result of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mxspec.formats.errors import GenerationError, MxspecError
from mxspec.runtime.beams.draft_search import PLAIN, DraftSearch, Leaf, Width, leaves
from mxspec.runtime.beams.forks import Forks, Place
from mxspec.runtime.beams.node import Node, common_ancestor
from mxspec.runtime.beams.shaping import Shaping
from mxspec.runtime.beams.step import Candidate, Hypotheses, continuations, looked_at, normalised, select
from mxspec.runtime.events import TARGET, Event, Finished, FinishReason, Round, Token
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session
from mxspec.runtime.models.slots import Slot, Slots
from mxspec.runtime.policy.choose_k import KByLoad
from mxspec.runtime.sampling.settings import Beams
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.shaper import Shaper
from mxspec.runtime.scheduling.chosen_settings import ChosenSettings
from mxspec.runtime.scheduling.scheduled_text import FailsAlone, Outbox, ScheduledText
from mxspec.runtime.scheduling.tally import Timing
from mxspec.runtime.text.stream import TextStream

Ended = tuple[Node, FinishReason]

SUMMED = ("drafted", "evaluated", "accepted", "draft_seconds", "target_seconds", "seconds")  # over all rounds
LEAVES = 1.3  # about this number of leaves of a trellis for each beam of the draft


class Search(ScheduledText):
    """A search with N beams, which finds the N likeliest texts and answers with the n best.

    All events come at the end, because nothing is certain before; the best text comes first. Each live beam has a
    slot; the guesses of a draft borrow slots that no text uses, until a text needs them.
    """

    def __init__(
        self,
        settings: ChosenSettings,
        beams: Beams,
        shaper: Shaper,
        stream: Callable[[], TextStream],
        outbox: Outbox,
        target: Session,
        draft: Session | None,
        *,
        stops: bool = False,
    ) -> None:
        """`stream` makes a TextStream for each answer; with `stops`, stop strings may end an answer."""
        super().__init__(settings, outbox, beams.count)
        self.beams = beams
        self.slots_needed, self.answers = beams.count, beams.best
        self.root = Node.root(len(settings.prompt))
        self.live = [self.root]
        self.scores = [np.float32(0)]
        self.steps = 0
        self.hypotheses: Hypotheses[Ended] = Hypotheses(beams)
        self._target = target
        self._forks = Forks(target.copy_prefix, target.goes_on, self.root, settings.prompt)
        self._draft = None if draft is None else DraftSearch(draft, self.root, settings.prompt)
        room = target.capacity + 1 - len(settings.prompt)
        self.shaping = Shaping(
            shaper,
            self.root,
            settings.eos,
            min(settings.max_new_tokens, room),
            stream() if stops else None,
            settings.logprobs,
            shaped=settings.logprobs_of == "shaped",
            at_limit="max_new_tokens" if settings.max_new_tokens <= room else "context_end",
        )
        self._spares: list[Slot] = []
        self._stream = stream
        # its part of a step, if no piece of the prompt is read: the next steps of the beams
        self._width = PLAIN  # of the draft's search
        self._drafted = 0  # steps that the draft has guessed
        self._leaves: list[Leaf] = []
        self._places: list[Place] = []
        self._steps_before = 0

    # --- its state ---

    @property
    def reading(self) -> bool:
        return self.steps == 0

    @property
    def drafts_at_once(self) -> bool:
        return self.settings.k != 0 and self._room > 0

    @property
    def draft_lag(self) -> int:
        return 0 if self._draft is None else self._draft.lag(self.live, self.slots[0])

    @property
    def _room(self) -> int:
        """Number of steps that can be drafted within both contexts and the length of the answer."""
        if self._draft is None or self.slots[0].undraftable:
            return 0
        draft = self._draft.session
        if len(self.settings.source) > draft.source_capacity:
            return 0
        length = self.root.length + self.steps
        wanted = self.shaping.longest - self.steps - 1
        return max(min(wanted, self._target.capacity - length, draft.capacity - length + 1), 0)

    @property
    def over(self) -> bool:
        """Whether no further step could change the answer."""
        if self.steps == 0:
            return False
        best = self.scores[0] if self.scores else None
        counted = self.beams.counted
        return best is None or not self.hypotheses.may_improve(
            best, self.steps + counted, self.shaping.longest + counted
        )

    def _normalised(self, score: np.float32) -> float:
        return normalised(score, max(self.steps + self.beams.counted, 1), self.beams.length_penalty)

    # --- its part of a step ---

    @staticmethod
    def plan(texts: Sequence[Search], load: KByLoad, slots: Slots) -> tuple[Sequence[Search], Sequence[Search]]:
        """Plan the next steps of each search by itself, with slots that no text uses; none waits for its draft."""
        for search in texts:
            spare = slots.spare(search)
            search._begin_step([], search._width_with(spare))
            if search._width.steps:
                search._spares += [slot for slot in slots.borrow(spare, search) if slot not in search._spares]
        return texts, []

    def plan_piece(self, count: int) -> None:
        unread = self.unread
        self._begin_step(unread[:count], PLAIN, scored=count == len(unread))

    def _begin_step(self, piece: list[int], width: Width, *, scored: bool = True) -> None:
        self.piece, self._width, self.scored = piece, width, scored
        self._drafted, self._leaves, self._places = 0, [], []

    def _width_with(self, spare: int) -> Width:
        """The width of the draft's search with `spare` slots more; by default it has twice the target's beams."""
        k = self.settings.k
        assert k != "auto", "a search drafts by explicit k only"
        wanted = self.beams.draft_beams or 2 * self.beams.count
        steps = min(k, self._room)
        return Width(min(wanted, len(self.slots) + spare), steps) if steps else PLAIN

    @staticmethod
    def draft(
        reads: Sequence[tuple[Search, int]], texts: Sequence[Search], load: KByLoad, scored: int
    ) -> list[tuple[str, int, float]]:
        """Let the draft read for each search, and run its own search from the target's beams on."""
        for search, count in reads:
            with FailsAlone(search):
                assert search._draft is not None, "a search without a draft lets nothing be read"
                search._draft.read(search.live, search.slots[0], count, search._usable())
        for search in texts:
            if search._width.steps and not search.ended:
                with FailsAlone(search):
                    search._guess()
        return []

    def _guess(self) -> None:
        assert self._draft is not None, "a search without a draft has a plain width"
        levels = self._draft.guess(self.live, self.scores, self.slots[0], self._width, self.shaping, self._usable)
        if levels:
            self._drafted = len(levels) - 1
            self._leaves = leaves(levels, len(self._usable()))

    def _usable(self) -> list[int]:
        """Indices of its own slots, and of lent slots that no text has taken back."""
        lost = [slot for slot in self._spares if slot.borrower is not self]
        for slot in lost:
            for forks in (self._forks, None if self._draft is None else self._draft.forks):
                if forks is not None:
                    forks.hold(slot.index, [])
        self._spares = [slot for slot in self._spares if slot.borrower is self]
        return [slot.index for slot in (*self.slots, *self._spares)]

    @property
    def planned(self) -> int:
        if not self._width.steps:
            return len(self.piece or self.live)
        return round(LEAVES * self._width.beams) * (self._width.steps + 1)

    @property
    def step_tokens(self) -> int:
        return len(self.piece) + sum(len(place.tokens) for place in self._places)

    def parts(self) -> list[Part]:
        if self.piece:
            slot = self.slots[0]
            return [Part(slot.index, slot.target_length, self.piece, int(self.scored))]
        if not self._leaves:
            self._leaves = [Leaf(node, [node]) for node in self.live]
        self._places = self._forks.place([(leaf.node, leaf.scored[0]) for leaf in self._leaves], self._usable())
        pairs = zip(self._leaves, self._places, strict=True)
        return [Part(place.slot, place.past, place.tokens, len(leaf.scored)) for leaf, place in pairs]

    def was_read(self) -> None:
        if not self.piece:
            return
        self.slots[0].target_length += len(self.piece)
        if self.scored:
            self._forks.hold(self.slots[0].index, [self.root])
            self._leaves = [Leaf(self.root, [self.root])]

    def verify(self, rows: Logits) -> None:
        """Take steps while the logits of all live beams are known."""
        nodes = [node for leaf in self._leaves for node in leaf.scored]
        for node in nodes:
            node.drafted |= node not in self.live
        known = dict(zip(nodes, rows, strict=True))
        self._steps_before = self.steps
        while not self.over and all(node in known for node in self.live):
            self._step(np.stack([known[node] for node in self.live]))

    def emit(self, rows: Logits, timing: Timing, load: KByLoad) -> None:
        """Note the figures of the steps; answer if the search is over."""
        steps = self.steps - self._steps_before
        evaluated = min(steps - self.over, self._drafted)  # not counting the first step
        self.tally.add(timing.round(self._drafted, evaluated, steps - 1, steps))
        if self.over:
            self._answer(self._found())

    # --- its life ---

    def finish(self, reason: FinishReason) -> None:
        """End early, with the best texts so far."""
        running = [
            (self._normalised(score), (node, reason)) for node, score in zip(self.live, self.scores, strict=True)
        ]
        found = sorted([*self.hypotheses.found, *running], key=lambda one: -one[0])
        found = [(score, (node, reason)) for score, (node, _) in found]
        self._answer((found + found[-1:] * self.answers)[: self.answers])

    def fail(self, error: BaseException) -> None:
        self._end()
        for slot in self.slots:
            slot.rollback(0)  # the failed call may have written there
        self.outbox.put(error)

    # --- a step, and the end ---

    def _step(self, rows: Logits) -> None:
        count, nodes = self.beams.count, self.live
        log_probs = self.shaping.log_probs(nodes, rows)
        found = continuations(self.scores, log_probs, looked_at(count, len(self.shaping.ends)))
        live, ended = select(found, count, self.shaping.ends_of(nodes))
        self.steps += 1

        def become(one: Candidate) -> Node:
            node = nodes[one.parent].child(one.token)
            self.shaping.note(node, rows[one.parent], log_probs[one.parent])
            return node

        for one, end in ended:
            score = self._normalised(one.score)
            self.hypotheses.add(score, (become(one), end))
        self.live = [become(one) for one in live]
        self.scores = [one.score for one in live]
        for node in nodes:  # no beam continues from the other children
            node.stream = None
            node.children = {token: child for token, child in node.children.items() if child in self.live}
        if self.live:
            self.shaping.keep(self.live)

    def _found(self) -> list[tuple[float, Ended]]:
        """The n best texts; raises GenerationError if the settings allow fewer than n."""
        found = self.hypotheses.found[: self.answers]
        if len(found) < self.answers:
            raise GenerationError(
                "n",
                f"got {self.answers}, but only {len(found)} texts are possible under the request's settings; "
                "ask for fewer, or allow more",
            )
        return found

    def _answer(self, found: Sequence[tuple[float, Ended]]) -> None:
        """Give the reader these texts with their scores; the round of the first text has the figures of all calls."""
        self._end()
        for sample, (score, (node, reason)) in enumerate(found):
            try:
                self.outbox.put(*self._events(sample, score, node, reason))
            except MxspecError as error:
                self.outbox.put(error)
                return

    def _events(self, sample: int, score: float, node: Node, reason: FinishReason) -> list[Event]:
        stream, events = self._stream(), list[Event]()
        origins: dict[str, int] = {}
        for each in node.path():
            piece = "" if each.token in self.settings.eos else stream.push(each.token)
            origin = self.settings.drafter.name if each.drafted else TARGET
            origins[origin] = origins.get(origin, 0) + 1
            events.append(Token(each.token, piece, origin, sample, each.logprob))
        tail = "" if reason == "stop" else stream.finish()
        if stream.stop is not None and reason != "cancelled":
            reason = "stop"
        tokens = len(events)
        statistics = self.tally.statistics_of(tokens, origins)
        rounds = self.tally.rounds if sample == 0 else []
        sums: dict[str, Any] = {name: sum(getattr(done, name) for done in rounds) for name in SUMMED}
        events.append(Round(**sums, emitted=tokens, sample=sample))
        return [*events, Finished(reason, statistics, tail, sample, score)]

    def _end(self) -> None:
        """Note the tokens in its slots, so that later texts can reuse their prefixes."""
        self.ended = True
        self.tally.ended = time.perf_counter()
        for slot in self.slots:
            path = self._forks.path(slot.index)
            if not path:  # an unused slot, or the first one before the prompt was read to its end
                slot.rollback(slot.target_length if slot is self.slots[0] else 0)
                continue
            slot.tokens = [*self.settings.prompt, *path[-1].tokens()]
            slot.target_length, slot.target_encoded = path[-1].length, True
            read = [] if self._draft is None else self._draft.forks.path(slot.index)
            if read:
                slot.draft_length, slot.draft_encoded = common_ancestor([path[-1], read[-1]]).length, True
        for slot in self._spares:
            if slot.borrower is self:
                slot.borrower = None
