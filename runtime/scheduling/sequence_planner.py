"""The planner of sequences, texts with one continuation: choose K, read a piece of a prompt, draft."""

from __future__ import annotations

import time
from collections import abc

from mxspec.runtime.policy.break_even import ALL_WANTED
from mxspec.runtime.policy.choose_k import KByLoad, Load
from mxspec.runtime.scheduling.sequence import Sequence
from mxspec.runtime.scheduling.sequence_work import SequenceWork
from mxspec.runtime.scheduling.work import Alone

READY_LAG = 16  # tokens that the draft may read in the first call of a round; more are read beforehand


class SequencePlanner:
    """Plans for all sequences of an engine together."""

    kind = Sequence.kind

    def __init__(self, load: KByLoad, k_max: int) -> None:
        self._load, self._k_max = load, k_max

    def plan(self, texts: abc.Sequence[Sequence]) -> tuple[list[SequenceWork], list[Sequence]]:
        """The round of each text, and the texts that must wait for their draft.

        If K is chosen, the draft reads a text only when drafting is first tried on this text.
        """
        loads: list[tuple[Sequence, Load]] = []
        for text in texts:
            with Alone(text):
                loads.append((text, text.load(self._k_max)))
        works, late = [], []
        ks = self._load.choose([load for _, load in loads])
        for (text, _), k in zip(loads, ks, strict=True):
            with Alone(text):
                work = SequenceWork(text, text.unread, proposal=text.forced(self._k_max))
                forced = len(work.proposal.tokens)
                work.k = max(k - forced, 0)
                waits = work.k > 0 and text.chooses_k and text.draft_lag > READY_LAG
                text.note_k(k, forced, waits=waits)
                if waits:
                    late.append(text)
                    work.k = 0
                works.append(work)
        return works, late

    def piece(self, text: Sequence, count: int) -> SequenceWork:
        """The work of reading the next `count` tokens of a prompt."""
        unread = text.unread
        return SequenceWork(text, unread[:count], scored=count == len(unread))

    def propose(
        self, reads: abc.Sequence[tuple[Sequence, int]], works: abc.Sequence[SequenceWork], texts: int
    ) -> list[tuple[str, int, float]]:
        """Each drafter reads and proposes for all its texts together; the step has `texts` texts."""
        calls: list[tuple[str, int, float]] = []
        works = [work for work in works if work.k]
        concerned = (*(text for text, _ in reads), *(work.text for work in works))
        for drafter in {id(text.drafter.drafter): text.drafter.drafter for text in concerned}.values():
            calls += self._propose(
                [read for read in reads if read[0].drafter.drafter is drafter],
                [work for work in works if work.text.drafter.drafter is drafter],
                texts,
            )
        return calls

    def _propose(
        self, reads: abc.Sequence[tuple[Sequence, int]], works: abc.Sequence[SequenceWork], texts: int
    ) -> list[tuple[str, int, float]]:
        """Let one drafter read and propose."""
        concerned = (*(text for text, _ in reads), *(work.text for work in works))
        drafter, calls = concerned[0].drafter, list[tuple[int, float]]()
        try:
            if reads:
                began = time.perf_counter()
                drafter.read([(text.tokens, text.slot, count) for text, count in reads])
                self._load.draft_read.add(sum(count for _, count in reads), time.perf_counter() - began)
            if works:
                chosen = any(work.text.chooses_k for work in works)
                break_even = self._load.break_even(drafter.name, texts) if chosen else ALL_WANTED
                calls = drafter.propose(
                    [work.text.wanted(work.k, work.proposal, work.draws, break_even) for work in works]
                )
        except Exception as error:  # only its own texts fail: their entries in the draft's cache cannot be trusted
            for text in concerned:
                text.slot.draft_length = 0
                text.fail(error)
        for work in works:
            if work.proposal.errors and not work.text.ended:
                work.text.fail(work.proposal.errors[0])
        return [(drafter.name, count, seconds) for count, seconds in calls]
