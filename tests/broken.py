"""Verifiers and drafts that are wrong in ways known from the wild: tests of several rooms have to catch them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from mxspec.runtime.drafters.drafter import Wanted
from mxspec.runtime.sampling.randomness import Purpose
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shape import shape
from mxspec.runtime.sampling.truncate import Indices
from mxspec.runtime.verifiers.verify import Scored, Verdict, verify_mrs


def verify_with_a_late_bonus(scored: Scored) -> Verdict:
    """The bonus comes from the row that judged the last drafted token, as one well-known engine has it."""
    verdict = verify_mrs(scored)
    count = len(scored.drafted)
    if count and verdict.accepted == count:
        late = scored.target(count - 1).draw(scored.draws.uniform(count, Purpose.RESAMPLE))
        return replace(verdict, next_token=late)
    return verdict


def unprocessed_draft(patch: pytest.MonkeyPatch) -> None:
    """The draft's token is drawn from the shaped distribution and judged by the plain softmax."""
    add_row = Wanted.add_row

    def add(want: Wanted, row: NDArray[np.float32], origin: str, ids: Indices | None = None) -> bool:
        added = add_row(want, row, origin, ids)
        if want.proposal.distributions:
            want.proposal.distributions[-1] = shape(row, Sampling(1.0), ids)
        return added

    patch.setattr(Wanted, "add_row", add)
