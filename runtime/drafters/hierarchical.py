"""A draft model that is itself sped up: what the text's own endings suggest is checked by it in one call.

The draft's token is a function of its distribution and of the place's random number (or the likeliest, or the winner
of the shared noise). A suggestion is kept where it is that token, with the draft's probability of it: as modified
rejection sampling would keep it, since a suggestion is a point. So what is proposed is what the draft model alone
proposes, bit for bit, in fewer calls, and both levels are lossless.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from mxspec.runtime.costs import Costs
from mxspec.runtime.drafters.drafter import ByText, Wanted
from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.drafters.suffix_text import SuffixText
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.shaper import prepare
from mxspec.runtime.session import Part, Session
from mxspec.runtime.slots import Slot
from mxspec.runtime.worth import Worth, worth_of_row


class HierarchicalDrafter(ByText):
    """The draft model of a bundle, sped up by suffix decoding; K is drafted to its end, however sure the draft is."""

    name = "hierarchical"
    cheap = False

    def __init__(self, session: Session) -> None:
        self._session = session
        self._costs = Costs()
        self._model = ModelDrafter(session)

    def limit(self, length: int) -> int:
        return self._model.limit(length)

    def lag(self, tokens: Sequence[int], slot: Slot) -> int:
        return self._model.lag(tokens, slot)

    def read(self, pieces: Sequence[tuple[Sequence[int], Slot, int]]) -> None:
        self._model.read(pieces)

    def begin(self, tokens: Sequence[int], cache_key: str) -> SuffixText:
        return SuffixText(len(tokens))

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        began, calls = time.perf_counter(), 0
        ends = {id(want): len(want.proposal.tokens) + want.k for want in wanted}
        while active := [
            want for want in wanted if len(want.proposal.tokens) < ends[id(want)] and not want.proposal.errors
        ]:
            worth = Worth(row=worth_of_row(self._costs, len(active)))
            guesses = [self._guess(want, ends[id(want)], worth) for want in active]
            self._step(active, guesses)
            calls += 1
        most = max((want.k for want in wanted), default=0)
        return [(len(wanted), (time.perf_counter() - began) / most)] * most if calls else []

    def _guess(self, want: Wanted, end: int, worth: Worth) -> list[int]:
        """What the draft is likely to propose, but for the last token, which no call needs to read."""
        ahead = want.proposal.tokens
        most = end - len(ahead) - 1
        return want.memory.guess(want.tokens, ahead, most).worthwhile(worth) if most > 0 else []

    def _step(self, active: Sequence[Wanted], guesses: Sequence[list[int]]) -> None:
        """One call of the draft, and what it proposes along the guesses."""
        began = time.perf_counter()
        parts = []
        for want, guess in zip(active, guesses, strict=True):
            beyond = max(want.slot.draft_length - len(want.tokens), 0)  # of the proposal it has read so much
            unread = [*want.tokens[want.slot.draft_length :], *want.proposal.tokens[beyond:]]
            parts.append(Part(want.slot.index, want.slot.draft_length, unread + guess, len(guess) + 1))
        rows = self._session.run(parts)
        self._costs.add(sum(part.rows for part in parts), time.perf_counter() - began)
        prepare([(want.shaper, want.proposal.tokens) for want in active])
        first = 0
        for want, part, guess in zip(active, parts, guesses, strict=True):
            want.slot.draft_length += len(part.tokens) - len(guess)
            self._follow(want, rows[first : first + part.rows], guess)
            first += part.rows

    def _follow(self, want: Wanted, rows: Logits, guess: Sequence[int]) -> None:
        """Propose the draft's tokens as long as they are those that it has read."""
        for place, row in enumerate(rows):
            want.add_row(row, self.name)
            if want.proposal.errors or place == len(guess) or want.proposal.tokens[-1] != guess[place]:
                break
            want.slot.draft_length += 1
