"""A beam search from its admission to its end: its beams, its slots, and the result of a step."""

from __future__ import annotations

import time
from collections import abc
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from mxspec.formats.errors import GenerationError, MxspecError
from mxspec.runtime.beams.forks import Forks
from mxspec.runtime.beams.node import Node, common_ancestor
from mxspec.runtime.beams.shaping import Shaping
from mxspec.runtime.beams.step import Continuation, Hypotheses, Selected, continuations, looked_at, normalised, select
from mxspec.runtime.beams.trellis import PLAIN, Width
from mxspec.runtime.drafters.drafts.draft import Draft
from mxspec.runtime.events import TARGET, Event, Finished, FinishReason, Round, Token
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session
from mxspec.runtime.models.slots import Slot, Taken
from mxspec.runtime.policy.choose_k import KByLoad
from mxspec.runtime.sampling.beam_settings import Beams
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.shaper import Shaper
from mxspec.runtime.scheduling.settings import Settings
from mxspec.runtime.scheduling.tally import Tally
from mxspec.runtime.scheduling.work import Outbox, ScheduledText
from mxspec.runtime.text.stream import TextStream

Ended = tuple[Node, FinishReason]


class Search:
    """A search with N beams, which finds the N likeliest texts and answers with the n best.

    All events come at the end, because nothing is certain before; the best text comes first. Each live beam has a
    slot; the guesses of a draft borrow slots that no text uses, until a text needs them.
    """

    kind = "search"

    def __init__(
        self,
        settings: Settings,
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
        self.settings, self.beams = settings, beams
        self.followers: list[ScheduledText] = []
        self.cancelled = False
        self.ended = False
        self.tally = Tally(len(settings.source) + len(settings.prompt), None, settings.strategy, beams=beams.count)
        self.answers = beams.best
        self.root = Node.root(len(settings.prompt))
        self.live = [self.root]
        self.scores = [np.float32(0)]
        self.steps = 0
        self.hypotheses: Hypotheses[Ended] = Hypotheses(beams)
        self.target, self.draft = target, draft
        self.target_forks = self._forks_of(target)
        self.draft_forks = None if draft is None else self._forks_of(draft)
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
        self._slots: list[Slot] = []
        self._spares: list[Slot] = []
        self._stream = stream
        self._outbox = outbox

    def _forks_of(self, session: Session) -> Forks:
        return Forks(session.copy_prefix, session.goes_on, self.root, self.settings.prompt)

    # --- its state ---

    @property
    def slots_needed(self) -> int:
        return self.beams.count

    @property
    def slots(self) -> list[Slot]:
        return self._slots

    @property
    def reading(self) -> bool:
        return self.steps == 0

    @property
    def unread(self) -> list[int]:
        return self.settings.prompt[self._slots[0].target_length :]

    @property
    def drafts_at_once(self) -> bool:
        return self.settings.strategy.k != 0 and self.room > 0

    @property
    def draft_lag(self) -> int:
        """Number of tokens of the source and of the beams' common prefix that the draft has not read."""
        if self.draft_forks is None:
            return 0
        trunk, slot = self._trunk, self._slots[0]
        if (held := self.draft_forks.held(trunk)) is not None:
            return trunk.length - held.length + slot.draft_unencoded
        return 0 if self.draft_ready else trunk.length - self._prompt_read + slot.draft_unencoded

    @property
    def draft_ready(self) -> bool:
        """Whether the draft has read the prompt, and can go on with every beam."""
        return self.draft_forks is not None and all(self.draft_forks.held(node) is not None for node in self.live)

    @property
    def _prompt_read(self) -> int:
        """Tokens of the prompt that the draft has read in the first slot; none where it read all, and has lost it."""
        length = self._slots[0].draft_length
        return length if length < len(self.settings.prompt) else 0

    @property
    def _trunk(self) -> Node:
        """The common prefix of all beams, without the last token of any of them."""
        node = common_ancestor(self.live)
        return node.parent if node in self.live and node.parent is not None else node

    @property
    def room(self) -> int:
        """Number of steps that can be drafted within both contexts and the length of the answer."""
        if self.draft is None or len(self.settings.source) > self.draft.source_capacity or self._slots[0].undraftable:
            return 0
        length = self.root.length + self.steps
        wanted = self.shaping.longest - self.steps - 1
        return max(min(wanted, self.target.capacity - length, self.draft.capacity - length + 1), 0)

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

    def width(self, spare: int) -> Width:
        """The width of the draft's search with `spare` slots more; by default it has twice the target's beams."""
        k = self.settings.strategy.k
        assert k != "auto", "a search drafts by explicit k only"
        wanted = self.beams.draft_beams or 2 * self.beams.count
        steps = min(k, self.room)
        return Width(min(wanted, len(self._slots) + spare), steps) if steps else PLAIN

    def usable(self) -> list[int]:
        """Indices of its own slots, and of lent slots that no text has taken back."""
        lost = [slot for slot in self._spares if slot.borrower is not self]
        for slot in lost:
            for forks in (self.target_forks, self.draft_forks):
                if forks is not None:
                    forks.hold(slot.index, [])
        self._spares = [slot for slot in self._spares if slot.borrower is self]
        return [slot.index for slot in (*self._slots, *self._spares)]

    def lend(self, slots: abc.Sequence[Slot]) -> None:
        """Lend slots that no text uses; the search may write to them while it is their borrower."""
        self._spares += [slot for slot in slots if slot not in self._spares]

    # --- its life ---

    def start(self, taken: abc.Sequence[Taken], began: float, load: KByLoad) -> None:
        self._slots = [each.slot for each in taken]
        self.tally.began = began
        self.tally.reread_tokens = taken[0].again
        self.tally.reused_tokens = len(self.settings.source) - taken[0].slot.target_unencoded + taken[0].target

    def prompt_was_read(self) -> None:
        """Note that the target has read the whole prompt, in the first slot."""
        self.target_forks.hold(self._slots[0].index, [self.root])

    def read_draft(self, count: int) -> None:
        """Let the draft read `count` more tokens of the source, then of the beams' common prefix."""
        assert self.draft is not None
        assert self.draft_forks is not None
        slot, trunk = self._slots[0], self._trunk
        count -= slot.draft_unencoded
        Draft(self.draft).encode([slot])
        if slot.undraftable or count <= 0:
            return
        if self.draft_forks.held(trunk) is None:
            first = self._prompt_read
            tokens = self.settings.prompt[first : first + count]
            self.draft_forks.hold(slot.index, [])
            self.draft.run([Part(slot.index, first, tokens, 1)])
            slot.draft_length = first + len(tokens)
            if slot.draft_length == len(self.settings.prompt):
                self.draft_forks.hold(slot.index, [self.root])
            return
        held = self.draft_forks.held(trunk)
        next_nodes = trunk.path(held)[:count]
        (place,) = self.draft_forks.place([(next_nodes[-1], next_nodes[0])], self.usable())
        self.draft.run([Part(place.slot, place.past, place.tokens, 1)])

    def advance(self, scored: Mapping[Node, Logits]) -> int:
        """Take steps while the logits of all live beams are known; return the number of steps."""
        before = self.steps
        while not self.over and all(node in scored for node in self.live):
            self._step(np.stack([scored[node] for node in self.live]))
        return self.steps - before

    def end_of(self, nodes: abc.Sequence[Node], one: Continuation) -> FinishReason | None:
        """Why a continuation of one of these beams ends the text; None if it goes on."""
        return self.shaping.end_of(nodes[one.parent].child(one.token))

    def note_round(self, done: Round) -> None:
        """Note the steps of a call of the target; answer if the search is over."""
        if self.tally.first_token is None:
            self.tally.first_token = time.perf_counter()
        self.tally.rounds.append(done)
        if self.over:
            self._answer(self._found())

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
        for slot in self._slots:
            slot.rollback(0)  # the failed call may have written there
        self._outbox.put(error)

    # --- a step, and the end ---

    def _step(self, rows: Logits) -> None:
        count, nodes = self.beams.count, self.live
        log_probs = self.shaping.log_probs(nodes, rows)
        found = continuations(self.scores, log_probs, looked_at(count, len(self.shaping.ends)))
        selected: Selected[FinishReason] = select(found, count, partial(self.end_of, nodes))
        self.steps += 1

        def become(one: Continuation) -> Node:
            node = nodes[one.parent].child(one.token)
            self.shaping.note(node, rows[one.parent], log_probs[one.parent])
            return node

        for one, end in selected.ended:
            score = self._normalised(one.score)
            self.hypotheses.add(score, (become(one), end))
        self.live = [become(one) for one in selected.live]
        self.scores = [one.score for one in selected.live]
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
                f"n: got {self.answers}, but only {len(found)} texts are possible under the request's settings; "
                "ask for fewer, or allow more"
            )
        return found

    def _answer(self, found: abc.Sequence[tuple[float, Ended]]) -> None:
        """Give the reader these texts with their scores; the round of the first text has the figures of all calls."""
        self._end()
        for sample, (score, (node, reason)) in enumerate(found):
            try:
                self._outbox.put(*self._events(sample, score, node, reason))
            except MxspecError as error:
                self._outbox.put(error)
                return

    def _events(self, sample: int, score: float, node: Node, reason: FinishReason) -> list[Event]:
        stream, events = self._stream(), list[Event]()
        origins: dict[str, int] = {}
        for each in node.path():
            piece = "" if each.token in self.settings.eos else stream.push(each.token)
            origin = self.settings.strategy.drafter.name if each.drafted else TARGET
            origins[origin] = origins.get(origin, 0) + 1
            events.append(Token(each.token, piece, origin, sample, each.logprob))
        tail = "" if reason == "stop" else stream.finish()
        if stream.stop is not None and reason != "cancelled":
            reason = "stop"
        tokens = len(events)
        statistics = self.tally.statistics_of(tokens, origins)
        rounds = self.tally.rounds if sample == 0 else []
        events.append(
            Round(
                drafted=sum(done.drafted for done in rounds),
                evaluated=sum(done.evaluated for done in rounds),
                accepted=sum(done.accepted for done in rounds),
                emitted=tokens,
                draft_seconds=sum(done.draft_seconds for done in rounds),
                target_seconds=sum(done.target_seconds for done in rounds),
                seconds=sum(done.seconds for done in rounds),
                sample=sample,
            )
        )
        return [*events, Finished(reason, statistics, tail, sample, score)]

    def _end(self) -> None:
        """Note the tokens in its slots, so that later texts can reuse their prefixes."""
        self.ended = True
        self.tally.ended = time.perf_counter()
        for slot in self._slots:
            path = self.target_forks.path(slot.index)
            if not path:  # an unused slot, or the first one before the prompt was read to its end
                slot.rollback(slot.target_length if slot is self._slots[0] else 0)
                continue
            slot.tokens = [*self.settings.prompt, *path[-1].tokens()]
            slot.target_length, slot.target_encoded = path[-1].length, True
            read = [] if self.draft_forks is None else self.draft_forks.path(slot.index)
            if read:
                slot.draft_length, slot.draft_encoded = common_ancestor([path[-1], read[-1]]).length, True
        for slot in self._spares:
            if slot.borrower is self:
                slot.borrower = None
