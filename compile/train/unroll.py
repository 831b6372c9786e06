"""The steps of a head from every place of a text at once, as it takes them when it drafts (Li et al. 2025, 3.2).

Step 0 reads the target's states, each later one its own state of the step before: what the paper calls training-time
test. Start i reads token i + 1 beside the state of token i, then tokens i + 2, i + 3, ... beside its own states, at
positions i, i + 1, i + 2, ... Its later steps see step 0 of the starts up to i, and the later steps of start i alone:

    step 2 of start 3 sees    step 0: 0 1 2 3    step 1: 3    step 2: 3
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mxspec.compile.heads.eagle3 import Eagle3Head


class _EarlierSteps:
    """The keys and values of all steps so far, in the place of a cache."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        self._kept = [
            torch.cat(both, dim=2) for both in zip(self._kept or (keys[:, :, :0],) * 2, (keys, values), strict=True)
        ]
        return self._kept[0], self._kept[1]


def unroll(head: Eagle3Head, tokens: Tensor, states: Tensor, steps: int) -> Iterator[Tensor]:
    """The logits float32[tokens - 2 - step, rows] of each step, one row for each start.

    Row i of step s is about token i + s + 2 of `tokens` int64[tokens]; `states` float32[tokens, size] are the target's.
    """
    starts = len(tokens) - 2
    hidden = torch.finfo(states.dtype).min
    before = torch.full((starts, starts), hidden).triu(1)
    own = torch.full((starts, starts), hidden).fill_diagonal_(0)
    g, earlier = head.project(states[:starts])[None], _EarlierSteps()
    for step in range(min(steps, starts)):
        left = starts - step
        mask = torch.cat([before[:left], *(own[:left, : starts - each] for each in range(1, step + 1))], dim=1)
        read = tokens[None, 1 + step : 1 + step + left]
        output = head(read, g[:, :left], torch.arange(step, starts)[None], earlier, mask)
        g = output.states
        yield output.logits[0]
