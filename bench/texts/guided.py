"""A drafter whose acceptance is imposed, for models whose weights are random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mxspec.formats.errors import MxspecError
from mxspec.runtime.drafters.draft import Draft
from mxspec.runtime.drafters.drafter import Wanted
from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.engine import Engine
from mxspec.runtime.policy.break_even import ALL_WANTED


def draft_of(engine: Engine) -> Draft:
    """The draft model; raises MxspecError for a bundle without one."""
    drafter = engine.drafters.get("model")
    if not isinstance(drafter, ModelDrafter):
        raise MxspecError(f"bundle {engine.bundle.path}: holds no draft to measure; compile it with one")
    return drafter.draft


class GuidedDrafter(ModelDrafter):
    """Costs what the draft costs, and guesses right with a given probability: random weights agree on nothing.

    `texts` are the target's own texts, including prompts, by their prompts; with an encoder, by their sources.
    """

    def __init__(self, draft: Draft, texts: Mapping[tuple[int, ...], Sequence[int]], acceptance: float) -> None:
        super().__init__(draft)
        self._texts = texts
        self._acceptance = acceptance
        self.seed = 0  # decides which guesses are right; each repetition has its own, so that no K is lucky in all

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, float]]:
        calls = super().propose([replace(want, break_even=ALL_WANTED) for want in wanted])  # noise is never sure
        for want in wanted:
            length = len(want.tokens)
            prompt = want.slot.source or self._prompt_of(want)
            right = self._texts[prompt][length : length + len(want.proposal.tokens)]
            draws = np.random.default_rng([self.seed, length, *prompt]).random(len(right))
            for i, (token, draw) in enumerate(zip(right, draws, strict=True)):
                want.proposal.tokens[i] = (
                    token if draw < self._acceptance else (token + 1) % self.draft.session.real_vocab
                )
        return calls

    def _prompt_of(self, want: Wanted) -> tuple[int, ...]:
        return next(prompt for prompt in self._texts if tuple(want.tokens[: len(prompt)]) == prompt)
