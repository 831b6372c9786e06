"""The work of a step for a beam search: a piece of its prompt, or its next steps, with the draft's guesses."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial

from mxspec.runtime.beams.forks import Place
from mxspec.runtime.beams.search import Search
from mxspec.runtime.beams.step import continuations, looked_at, select
from mxspec.runtime.beams.trellis import PLAIN, Leaf, Width, leaves
from mxspec.runtime.events import Round
from mxspec.runtime.models.part import Part
from mxspec.runtime.policy.choose_k import KByLoad
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.shaper import Shaper
from mxspec.runtime.scheduling.work import Timing

LEAVES = 1.3  # about this number of leaves of a trellis for each beam of the draft
MOST_BEHIND = 2  # tokens of the common prefix that the draft may read once for each beam


@dataclass(slots=True)
class SearchWork:
    """`unread` is a piece of the prompt; if it is empty, the beams go on with a trellis of this width."""

    text: Search
    width: Width = PLAIN
    unread: list[int] = field(default_factory=list)
    drafted: int = 0  # levels of the trellis that the draft has guessed
    _leaves: list[Leaf] = field(default_factory=list)
    _places: list[Place] = field(default_factory=list)

    @property
    def scored(self) -> bool:
        return not self.unread or len(self.unread) == len(self.text.unread)

    @property
    def planned(self) -> int:
        if not self.width.steps:
            return len(self.unread or self.text.live)
        return round(LEAVES * self.width.beams) * (self.width.steps + 1)

    @property
    def tokens(self) -> int:
        return len(self.unread) + sum(len(place.tokens) for place in self._places)

    def guess(self) -> None:
        """Run the draft's own search from the target's beams on."""
        search = self.text
        assert search.draft is not None
        assert search.draft_forks is not None
        if not search.draft_ready or search.draft_lag > MOST_BEHIND:
            search.read_draft(search.draft_lag)  # once, not for each beam
        if search.slots[0].undraftable:
            return
        nodes, scores, levels = search.live, search.scores, [search.live]
        for _ in range(self.width.steps):
            places = search.draft_forks.place([(node, node) for node in nodes], search.usable())
            rows = search.draft.run([Part(place.slot, place.past, place.tokens, 1) for place in places])
            log_probs = search.shaping.log_probs(nodes, rows)
            found = continuations(scores, log_probs, looked_at(self.width.beams, len(search.shaping.ends)))
            live = select(found, self.width.beams, partial(search.end_of, nodes)).live
            if not live:
                break
            nodes, scores = [nodes[one.parent].child(one.token) for one in live], [one.score for one in live]
            levels.append(nodes)
        self.drafted = len(levels) - 1
        self._leaves = leaves(levels, len(search.usable()))

    def look_aheads(self) -> list[tuple[Shaper, list[int]]]:
        return []  # a search computes the masks of each beam itself

    def parts(self) -> list[Part]:
        search = self.text
        if self.unread:
            slot = search.slots[0]
            return [Part(slot.index, slot.target_length, self.unread, int(self.scored))]
        if not self._leaves:
            self._leaves = [Leaf(node, [node]) for node in search.live]
        self._places = search.target_forks.place(
            [(leaf.node, leaf.scored[0]) for leaf in self._leaves], search.usable()
        )
        pairs = zip(self._leaves, self._places, strict=True)
        return [Part(place.slot, place.past, place.tokens, len(leaf.scored)) for leaf, place in pairs]

    def read(self) -> None:
        if self.unread:
            last = self.scored
            self.text.slots[0].target_length += len(self.unread)
            if last:
                self.text.prompt_was_read()
                self._leaves = [Leaf(self.text.root, [self.text.root])]

    def verify(self, rows: Logits, timing: Timing, load: KByLoad) -> None:
        """Take the steps whose rows are known."""
        nodes = [node for leaf in self._leaves for node in leaf.scored]
        if not nodes:
            return
        for node in nodes:
            node.drafted |= node not in self.text.live
        steps = self.text.advance(dict(zip(nodes, rows, strict=True)))
        done = Round(
            drafted=self.drafted,
            evaluated=min(steps - self.text.over, self.drafted),  # not counting the first step
            accepted=steps - 1,
            emitted=steps,
            draft_seconds=timing.drafted - timing.encoded,
            target_seconds=timing.scored - timing.drafted,
            seconds=time.perf_counter() - timing.began,
            experts=timing.experts,
        )
        self.text.note_round(done)
