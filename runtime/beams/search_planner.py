"""What beam searches do at each verb of a step: borrow slots, read a piece of a prompt, be guessed by a draft."""

from __future__ import annotations

from collections.abc import Sequence

from mxspec.runtime.beams.search import Search
from mxspec.runtime.beams.search_work import SearchWork
from mxspec.runtime.models.slots import Slots
from mxspec.runtime.scheduling.work import alone


class SearchPlanner:
    """Plans for each search by itself, in slots that no text uses."""

    kind = Search.kind

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def plan(self, searches: Sequence[Search]) -> tuple[list[SearchWork], list[Search]]:
        """The next steps of each search; no search waits for its draft."""
        works = []
        for search in searches:
            spare = self._slots.spare(search)
            width = search.width(spare)
            if width.steps:
                search.lend(self._slots.borrow(spare, search))
            works.append(SearchWork(search, width))
        return works, []

    def piece(self, search: Search, count: int) -> SearchWork:
        """The next `count` tokens of its prompt."""
        return SearchWork(search, unread=search.unread[:count])

    def propose(
        self, reads: Sequence[tuple[Search, int]], works: Sequence[SearchWork], texts: int
    ) -> list[tuple[str, int, float]]:
        """The draft reads for each search, and searches itself from where its beams are."""
        for search, count in reads:
            with alone(search):
                search.read_draft(count)
        for work in works:
            if work.width.steps and not work.text.ended:
                with alone(work.text):
                    work.guess()
        return []
