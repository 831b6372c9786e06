"""A drafter as the scheduler calls it: a mistake of the drafter is one error line, which ends its own texts alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, TypeVar

from mxspec.formats.errors import GenerationError, MxspecError
from mxspec.runtime.drafters.drafter import Drafter, Wanted
from mxspec.runtime.events import Round
from mxspec.runtime.models.slots import Slot
from mxspec.runtime.sampling.distribution import Distribution

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class IsolatedDrafter:
    """Makes every call of a drafter; whatever it raises or returns, a caller meets a MxspecError at most."""

    drafter: Drafter

    @property
    def name(self) -> str:
        return self.drafter.name

    @property
    def cheap(self) -> bool:
        return self.drafter.cheap

    def limit(self, length: int, source: int) -> int:
        return self._call("limit", lambda: index(self.drafter.limit(length, source)))

    def lag(self, tokens: Sequence[int], slot: Slot) -> int:
        return self._call("lag", lambda: max(index(self.drafter.lag(tokens, slot)), 0))

    def read(self, pieces: Sequence[tuple[Sequence[int], Slot, int]]) -> None:
        self._call("read", lambda: self.drafter.read(pieces))

    def begin(self, tokens: Sequence[int], cache_key: str, source: Sequence[int]) -> Any:
        return self._call("begin", lambda: self.drafter.begin(tokens, cache_key, source))

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        """The calls that it took; a proposal that cannot be scored gets an error, which ends its text alone."""
        before = [len(want.proposal.tokens) for want in wanted]
        calls = self._call(
            "propose", lambda: [(index(texts), float(seconds)) for texts, seconds in self.drafter.propose(wanted)]
        )
        for want, count in zip(wanted, before, strict=True):
            if not want.proposal.errors and (mistake := _mistake(want, count)):
                want.proposal.errors.append(GenerationError(f"drafter {self.name}", f"{mistake}"))
        return calls

    def observe(self, memory: Any, done: Round) -> None:
        self._call("observe", lambda: self.drafter.observe(memory, done))

    def end(self, memory: Any, tokens: Sequence[int]) -> None:
        self._call("end", lambda: self.drafter.end(memory, tokens))

    def _call(self, what: str, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except MxspecError:  # which says itself what is wrong
            raise
        except Exception as error:
            text = " ".join(str(error).split())
            raise GenerationError(f"drafter {self.name}", f"{what} raised {type(error).__name__}: {text}") from error


def _mistake(want: Wanted, before: int) -> str | None:
    """What is wrong with a proposal that had `before` tokens, if anything; ids of any integer type become int."""
    proposal, vocab_size = want.proposal, want.shaper.vocab_size
    tokens, distributions = proposal.tokens, proposal.distributions
    for place, token in enumerate(tokens):
        try:
            tokens[place] = index(token)
        except TypeError:
            return f"proposed {token!r}, expected a token id"
        if not 0 <= tokens[place] < vocab_size:
            return f"proposed token {token}, expected ids from 0 to {vocab_size - 1}"
    if not before <= len(tokens) <= before + want.k:
        return f"proposed {len(tokens) - before} tokens, expected at most k = {want.k}"
    if len(proposal.origins) != len(tokens):
        return f"gave {len(proposal.origins)} origins for {len(tokens)} tokens, expected one each"
    if want.choice.greedy_text:
        return None
    if len(distributions) != len(tokens):
        return f"gave {len(distributions)} distributions for {len(tokens)} tokens, expected one each"
    for token, distribution in zip(tokens, distributions, strict=True):
        if not isinstance(distribution, Distribution) or not distribution.probability(token) > 0:
            return f"proposed token {token} with a distribution that never draws it"
    return None
