"""The drafters of an engine, by the names under which users ask for them."""

from __future__ import annotations

from mxspec.runtime.drafters.drafter import Drafter
from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.drafters.none import NoDrafter
from mxspec.runtime.drafters.random import RandomDrafter
from mxspec.runtime.session import Session


def make_drafters(vocab_size: int, draft: Session | None) -> dict[str, Drafter]:
    """Those that a bundle allows; one that guesses by a model needs a draft."""
    drafters: list[Drafter] = [NoDrafter(), RandomDrafter(vocab_size)]
    if draft is not None:
        drafters.append(ModelDrafter(draft))
    return {drafter.name: drafter for drafter in drafters}
