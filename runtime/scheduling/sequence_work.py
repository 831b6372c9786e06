"""The work of a step for a sequence: the next piece of its prompt, or a round."""

from __future__ import annotations

from dataclasses import dataclass, field

from mxspec.runtime.drafters.drafter import Proposal
from mxspec.runtime.models.part import Part
from mxspec.runtime.policy.choose_k import KByLoad
from mxspec.runtime.sampling.randomness import Draws
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.shaper import Shaper
from mxspec.runtime.scheduling.sequence import Sequence
from mxspec.runtime.scheduling.work import Timing


@dataclass(slots=True)
class SequenceWork:
    """The work of a step for one sequence."""

    text: Sequence
    unread: list[int]  # tokens that the target reads before the proposal
    scored: bool = True  # whether logits are wanted: not for a piece of a prompt before the last
    k: int = 0  # tokens to draft, besides those already in the proposal
    proposal: Proposal = field(default_factory=Proposal)
    draws: Draws = field(init=False)
    forced: int = field(init=False)  # tokens of the proposal that no drafter guessed

    def __post_init__(self) -> None:
        self.draws = self.text.draws()
        self.forced = len(self.proposal.tokens)

    @property
    def rows(self) -> int:
        return len(self.proposal.tokens) + 1 if self.scored else 0

    @property
    def stopped(self) -> bool:
        """Whether the drafter was called and gave fewer tokens than requested."""
        return not self.text.drafter.cheap and len(self.proposal.tokens) - self.forced < self.k

    @property
    def planned(self) -> int:
        return self.rows + self.k

    @property
    def tokens(self) -> int:
        return len(self.unread) + len(self.proposal.tokens)

    def look_aheads(self) -> list[tuple[Shaper, list[int]]]:
        return [(self.text.shaper, self.proposal.tokens)] if self.scored else []

    def parts(self) -> list[Part]:
        slot = self.text.slot
        return [Part(slot.index, slot.target_length, self.unread + self.proposal.tokens, self.rows)]

    def read(self) -> None:
        self.text.slot.target_length += self.tokens

    def verify(self, rows: Logits, timing: Timing, load: KByLoad) -> None:
        """Verify the drafts, and emit the tokens that are kept."""
        if not self.scored:
            return
        verdict = self.text.verify(self.proposal, self.draws, rows)
        done = self.text.emit(self.proposal, verdict, rows, timing, stopped=self.stopped)
        if done.drafted or done.stopped:
            load.pair[self.text.drafter.name].observe(done)
