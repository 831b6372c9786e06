"""An example as tensors, the steps that a head takes on it, and how often its guesses are kept.

A head takes the steps from every place of a text at once, as it does when it drafts (Li et al. 2025, 3.2). Step 0 reads
the target's states, each later one its own state of the step before: what the paper calls training-time test. Start i
reads token i + 1 beside the state of token i, then tokens i + 2, i + 3, ... beside its own states, at positions i,
i + 1, i + 2, ... Its later steps see step 0 of the starts up to i, and the later steps of start i alone:

    step 2 of start 3 sees    step 0: 0 1 2 3    step 1: 3    step 2: 3
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mxspec.compile.heads.eagle3 import Eagle3Head
from mxspec.compile.train.examples import Example


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


@dataclass(frozen=True, slots=True)
class Acceptance:
    """`rates` are shares of guesses that the target takes, at each place after the guesses before it were taken."""

    rates: tuple[float, ...]

    @classmethod
    def of(cls, counts: Iterable[Sequence[tuple[int, int]]]) -> Acceptance:
        """From (reached, taken) at each place of each text."""
        totals = np.sum([np.array(each) for each in counts], axis=0)
        return cls(tuple(float(taken) / max(float(reached), 1.0) for reached, taken in totals))

    def tokens(self, k: int) -> float:
        """Tokens of a round with k guesses (Leviathan et al. 2023, equation 1, with a rate for each place)."""
        return 1 + float(np.cumprod(self.rates[:k]).sum())

    def speedup(self, cost: float) -> tuple[float, int]:
        """The largest predicted speedup and its k; a guess costs `cost` steps of the target, a round's scores one."""
        return max((self.tokens(k) / (1 + k * cost), k) for k in range(1, len(self.rates) + 1))


STEPS = 4  # that are measured: the first with the target's states, and 3 with the head's own
TAUGHT = 3  # of them; guesses of later steps then agree as often, and a fourth costs a third more time
DECAY = 0.8  # of a step's weight in the loss over that of the step before: a later guess is needed less often
SHORTEST = STEPS + 2  # tokens of a text with all steps


@dataclass(frozen=True, slots=True)
class Lesson:
    """Tokens int64[tokens] and states float32[tokens, size]; the first start that counts.

    After token t the target expects the rows `rows[t]` int64[n] of the head with probabilities `expected[t]`
    float32[n], all 0 where it has none of them; its likeliest token is `best[t]`.
    """

    tokens: Tensor
    states: Tensor
    first: int
    rows: Tensor
    expected: Tensor
    best: Tensor

    @classmethod
    def of(cls, example: Example, row_of: Tensor) -> Lesson:
        """`row_of` int64[vocabulary] is the head's row of each token, -1 without one."""
        likeliest = torch.from_numpy(example.likeliest).long()
        rows = row_of[likeliest]
        logits = torch.from_numpy(example.logits).float().masked_fill(rows < 0, -torch.inf)
        expected = logits.softmax(-1).nan_to_num(0.0)  # NaN where no row is among the likeliest
        return cls(
            torch.from_numpy(example.ids).long(),
            torch.from_numpy(example.states).float(),
            max(example.begin - 2, 0),
            rows.clamp(min=0),
            expected,
            likeliest[:, 0],
        )

    @property
    def counted(self) -> int:
        """The number of its starts that count."""
        return max(len(self.tokens) - 2 - self.first, 0)

    def loss(self, head: Eagle3Head) -> Tensor:
        """The cross-entropy to what the target expects, summed over starts and steps, each step with its weight."""
        total = torch.zeros(())
        for step, logits in enumerate(unroll(head, self.tokens, self.states, TAUGHT)):
            places = slice(self.first + step + 1, len(self.tokens) - 1)
            said = logits[self.first :].log_softmax(-1, dtype=torch.float32).gather(1, self.rows[places])
            total = total - DECAY**step * (self.expected[places] * said).sum()
        return total

    @torch.no_grad()
    def agreements(self, head: Eagle3Head, token_of: Tensor) -> list[tuple[int, int]]:
        """For each step the starts whose earlier guesses the text has, and those where target and head then agree."""
        found, running = [], torch.ones(max(self.counted, 0), dtype=torch.bool)
        for step, logits in enumerate(unroll(head, self.tokens, self.states, STEPS)):
            guesses = token_of[logits[self.first :].argmax(-1)]
            running = running[: len(guesses)]
            places = slice(self.first + step + 1, len(self.tokens) - 1)
            found.append((int(running.sum()), int((running & (guesses == self.best[places])).sum())))
            running = running & (guesses == self.tokens[self.first + step + 2 :])
        return found
