"""What changes logits before a token is chosen: each writes into one row float32[vocab], a copy of the model's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.sampling.truncate import Indices


def penalise_repetition(row: Logits, seen: Indices, penalty: float) -> None:
    """Divide the positive logits of tokens that were seen, multiply the negative ones.

    Keskar et al. (2019), section 4.1, in the form that transformers gave it, which lowers negative logits too.
    """
    values = row[seen]
    row[seen] = np.where(values < 0, values * np.float32(penalty), values / np.float32(penalty))


def penalise_counts(row: Logits, seen: Indices, counts: NDArray[np.float32], presence: float, frequency: float) -> None:
    """Lower a logit by `presence` once and by `frequency` for each time it was generated, as OpenAI defines it."""
    row[seen] -= counts * np.float32(frequency) + (counts > 0) * np.float32(presence)


class Repeats:
    """Which tokens would repeat a sequence of `size` tokens of the text: none may come twice.

    Paulus et al. (2017), section 2.5, for sequences of any length, over prompt and answer, as transformers has it.
    """

    def __init__(self, size: int, prompt: Sequence[int]) -> None:
        self._context = size - 1
        self._next: dict[tuple[int, ...], list[int]] = {}  # the tokens that have followed each context
        self._last: tuple[int, ...] = ()  # the text's last tokens: as many as a context has
        self.keep(prompt)

    def banned(self, ahead: Sequence[int]) -> Sequence[int]:
        """The tokens that may not come after the text and `ahead`."""
        text, count = (*self._last, *ahead), self._context
        if len(text) < count:
            return ()
        context = text[len(text) - count :]
        places = range(len(self._last), len(text))  # of the tokens that are not kept yet
        new = [text[i] for i in places if i >= count and text[i - count : i] == context]
        return [*self._next.get(context, ()), *new]

    def keep(self, tokens: Sequence[int]) -> None:
        """These tokens belong to the text now."""
        for token in tokens:
            if len(self._last) == self._context:
                self._next.setdefault(self._last, []).append(token)
            self._last = (*self._last, token)[-self._context :] if self._context else ()


class History:
    """Which tokens occur in the text, and how often each was generated: `seen` int64[n], `counts` float32[n].

    A look-ahead is pushed onto it and popped off again: the cost of a token does not depend on the text's length.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        """Start with a prompt, whose tokens count as seen where repetition is penalised, and never as generated."""
        first = dict.fromkeys(prompt if sampling.repetition_penalty != 1 else ())
        self._sampling = sampling
        self._place = {token: i for i, token in enumerate(first)}
        self._kept = len(first)  # the prompt's stay when their count is 0
        self._seen = np.zeros(max(64, 2 * self._kept), np.int64)
        self._seen[: self._kept] = list(first)
        self._counts = np.zeros(len(self._seen), np.float32)
        self._ahead: list[int] = []

    def penalise(self, row: Logits, ahead: Sequence[int]) -> None:
        """Apply all three penalties to the row after the tokens kept and `ahead`."""
        self._move(ahead)
        count = len(self._place)
        seen, counts, sampling = self._seen[:count], self._counts[:count], self._sampling
        if sampling.repetition_penalty != 1:
            penalise_repetition(row, seen, sampling.repetition_penalty)
        if sampling.presence_penalty or sampling.frequency_penalty:
            penalise_counts(row, seen, counts, sampling.presence_penalty, sampling.frequency_penalty)

    def keep(self, tokens: Sequence[int]) -> None:
        """These tokens belong to the text now."""
        self._move(tokens)
        self._ahead = []
        self._kept = len(self._place)

    def _move(self, ahead: Sequence[int]) -> None:
        """Go from the last look-ahead to `ahead`, by way of their common beginning."""
        shared = 0
        while shared < min(len(ahead), len(self._ahead)) and ahead[shared] == self._ahead[shared]:
            shared += 1
        while len(self._ahead) > shared:
            self._pop(self._ahead.pop())
        for token in ahead[shared:]:
            self._push(token)
            self._ahead.append(token)

    def _push(self, token: int) -> None:
        if token not in self._place:
            place = self._place[token] = len(self._place)
            if place == len(self._seen):
                self._seen, self._counts = np.resize(self._seen, 2 * place), np.resize(self._counts, 2 * place)
            self._seen[place], self._counts[place] = token, 0
        self._counts[self._place[token]] += 1

    def _pop(self, token: int) -> None:
        """Undo the last push of this token: a token that was new then is the last of all."""
        place = self._place[token]
        self._counts[place] -= 1
        if place >= self._kept and self._counts[place] == 0:
            del self._place[token]
