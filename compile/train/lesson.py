"""An example as tensors: what the head reads, and what it should say of the tokens that it can propose."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mxspec.compile.heads.eagle3 import Eagle3Head
from mxspec.compile.train.examples import Example
from mxspec.compile.train.unroll import unroll

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
