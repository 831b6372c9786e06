"""What a drafter is, and what it proposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from mxspec.formats.errors import GenerationError
from mxspec.runtime.events import Round
from mxspec.runtime.models.slots import Slot
from mxspec.runtime.policy.break_even import ALL_WANTED, BreakEven
from mxspec.runtime.sampling.distribution import Distribution
from mxspec.runtime.sampling.randomness import Draws, Purpose
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.shaper import NoTokenError, Shaper
from mxspec.runtime.sampling.truncate import Indices as Ids

ProposalKind = Literal["sampled", "greedy"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted tokens, who guessed each, and when sampling the distribution that each was drawn from."""

    tokens: list[int] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)  # names of drafters
    distributions: list[Distribution] = field(default_factory=list)
    confidences: dict[int, float] = field(default_factory=dict)  # of a traced greedy text: a model's own, by place
    errors: list[GenerationError] = field(default_factory=list)  # why nothing more is proposed, and the text ends


@dataclass(frozen=True, slots=True)
class Choice:
    """How a token is chosen from what a drafter expects: drawn, or the likeliest; for draws its noise may be shared.

    `temperature` is that of a draft's distribution, None for the target's; a greedy text takes the likeliest token and
    needs no distribution.
    """

    greedy_text: bool = True
    kind: ProposalKind = "sampled"
    matched: bool = False
    temperature: float | None = None

    @property
    def likeliest(self) -> bool:
        """Whether no token is drawn."""
        return self.greedy_text or self.kind == "greedy"

    def of(self, distribution: Distribution, draws: Draws, place: int) -> tuple[int, Distribution]:
        """A token, and the distribution that it was drawn from."""
        if self.likeliest:
            token = distribution.likeliest
            return token, Distribution.point(token)
        return self.draw(distribution, draws, place), distribution

    def draw(self, distribution: Distribution, draws: Draws, place: int) -> int:
        """A token drawn at random, also where the text takes the likeliest."""
        if self.matched:
            return distribution.race(draws, place)
        return distribution.draw(draws.uniform(place, Purpose.DRAFT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A text, and the number of tokens to propose after it and after what the proposal holds already."""

    tokens: Sequence[int]  # prompt and answer so far
    slot: Slot
    shaper: Shaper
    choice: Choice
    draws: Draws
    k: int
    memory: Any  # what the drafter's `begin` gave for the text
    proposal: Proposal  # added to in place
    break_even: BreakEven = ALL_WANTED
    traced: bool = False

    def add_row(self, row: Logits, origin: str, ids: Ids | None = None) -> bool:
        """Propose the next token by a model's logits float32[vocab], or by those of the tokens `ids` alone.

        False where the text cannot go on with any of them, which a model with few tokens meets; an error is of this
        text alone.
        """
        ahead = self.proposal.tokens
        try:
            if self.choice.greedy_text:
                token = self.shaper.greedy(row, ahead, ids)
                if self.traced:
                    self.proposal.confidences[len(ahead)] = self.shaper.confidence(row, token, ahead, ids)
                self._add(token, None, origin)
            else:
                shaped = self.shaper.distribution(row, ahead, self.choice.temperature, ids)
                self._add(*self.choice.of(shaped, self.draws, len(ahead)), origin)
        except NoTokenError as error:
            if ids is not None:
                return False
            self.proposal.errors.append(error)
        except GenerationError as error:
            self.proposal.errors.append(error)
        return True

    def add_choice(self, expected: Distribution, origin: str) -> bool:
        """Propose a token of what is expected at temperature 1, shaped as the text is.

        False where the text cannot go on with what was chosen.
        """
        if not self.choice.likeliest:
            expected = self.shaper.reshape(expected, self.choice.temperature)
        return self.add(*self.choice.of(expected, self.draws, len(self.proposal.tokens)), origin)

    def add(self, token: int, drawn_from: Distribution, origin: str) -> bool:
        """Propose this token; False where the text cannot go on with it, so that nothing may follow.

        One that was drawn is proposed all the same, and not kept: to leave it out because of what was drawn would bias
        the text.
        """
        allowed = self.shaper.allows(token, self.proposal.tokens)
        if allowed or not (self.choice.greedy_text or drawn_from.certain):
            self._add(token, drawn_from, origin)
        return allowed

    def _add(self, token: int, drawn_from: Distribution | None, origin: str) -> None:
        if not self.choice.greedy_text:
            assert drawn_from is not None
            self.proposal.distributions.append(drawn_from)
        self.proposal.tokens.append(token)
        self.proposal.origins.append(origin)


@runtime_checkable
class Drafter(Protocol):
    """Proposes what may follow each of several texts; one that inherits reads nothing beforehand and remembers nothing.

    One that raises, or proposes what cannot be scored, ends its own texts with an error (drafters/isolated.py).
    """

    name: str = ""
    # What it proposes depends on the text and its settings alone, not on other texts nor on the clock.
    repeatable: bool = True
    cheap: bool = True  # it decides by `break_even` how much to propose, and a guess costs next to nothing

    def limit(self, length: int, source: int = 0) -> int:
        """Number of tokens that can be proposed after `length` tokens, under a source of `source` tokens."""
        return 1 << 30

    def lag(self, tokens: Sequence[int], slot: Slot) -> int:
        """Number of tokens of a text and its source to read before anything can be proposed after it."""
        return 0

    def read(self, pieces: Sequence[tuple[Sequence[int], Slot, int]]) -> None:
        """Read the given number of tokens more of each text, those of its source first."""
        return

    def begin(self, tokens: Sequence[int], cache_key: str, source: Sequence[int] = ()) -> Any:
        """A text begins, after the `source` where an encoder reads one; returns the memory that later calls get."""
        return None

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        """Add up to k tokens to each proposal; returns its calls of a model: texts in the call, and seconds."""
        ...

    def observe(self, memory: Any, done: Round) -> None:
        """A round of the text is over."""
        return

    def end(self, memory: Any, tokens: Sequence[int]) -> None:
        """A text that was begun is over; `tokens` are its prompt and answer."""
        return


class NoDrafter(Drafter):
    """Proposes nothing."""

    name = "none"

    def limit(self, length: int, source: int = 0) -> int:
        return 0

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        return []
