"""The planner of beam searches: borrow slots, read a piece of a prompt, draft."""

from __future__ import annotations

from collections.abc import Sequence

from mxspec.runtime.beams.search import Search
from mxspec.runtime.beams.search_work import SearchWork
from mxspec.runtime.models.slots import Slots
from mxspec.runtime.scheduling.work import Alone


class SearchPlanner:
    """Plans for each search separately; drafts borrow slots that no text uses."""

    kind = Search.kind

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def plan(self, searches: Sequence[Search]) -> tuple[list[SearchWork], list[Search]]:
        """The next steps of each search; a search never waits for its draft."""
        works = []
        for search in searches:
            spare = self._slots.spare(search)
            width = search.width(spare)
            if width.steps:
                search.lend(self._slots.borrow(spare, search))
            works.append(SearchWork(search, width))
        return works, []

    def piece(self, search: Search, count: int) -> SearchWork:
        """The work of reading the next `count` tokens of a prompt."""
        return SearchWork(search, unread=search.unread[:count])

    def propose(
        self, reads: Sequence[tuple[Search, int]], works: Sequence[SearchWork], texts: int
    ) -> list[tuple[str, int, float]]:
        """Let the draft read for each search, and run its own search from the target's beams."""
        for search, count in reads:
            with Alone(search):
                search.read_draft(count)
        for work in works:
            if work.width.steps and not work.text.ended:
                with Alone(work.text):
                    work.guess()
        return []
