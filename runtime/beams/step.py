"""One step of a beam search, as pure functions on arrays; with the results of transformers' `_beam_search`.

    scores [live] + log_probs [live, vocab]  ──►  the best continuations of all beams together, best first
    those that end the text, of the first N  ──►  hypotheses, of which the N best are kept
    those that do not, up to N               ──►  the next beams

So that N beams are left where likely texts end, (1 + number of end tokens) · N continuations are looked at, twice N
at least. One that ends the text and is not among the first N is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mxspec.runtime.sampling.beam_settings import Beams
from mxspec.runtime.sampling.shape import Logits, check_peaks
from mxspec.runtime.sampling.truncate import largest

Scores = NDArray[np.float32]
Text = TypeVar("Text")
End = TypeVar("End")


@dataclass(frozen=True, slots=True)
class Continuation:
    """Beam `parent` and one token more; `score` is the sum of all log-probabilities of its answer."""

    parent: int
    token: int
    score: np.float32


def log_softmax(logits: Logits) -> Logits:
    """Log-probabilities float32[rows, vocab] of rows of logits; GenerationError for NaN and infinity.

    What a row gives does not depend on the others: a sum over float64 goes along each row by itself.
    """
    peaks = logits.max(axis=1, keepdims=True)
    check_peaks(peaks)
    shifted: Logits = logits - peaks
    sums = np.exp(shifted).astype(np.float64).sum(axis=1, keepdims=True)
    shifted -= np.log(sums).astype(np.float32)
    return shifted


def looked_at(beams: int, ends: int) -> int:
    """Number of continuations that a step looks at, where `ends` different tokens end a text."""
    return max(2, 1 + ends) * beams


def continuations(scores: Sequence[np.float32], log_probs: Logits, count: int) -> list[Continuation]:
    """The `count` best of all beams together, best first, ties by beam and token; those of probability 0 are left out.

    log_probs: float32[live, vocab], after whatever shapes them, minus infinity for what is not allowed.
    """
    totals = (log_probs + np.array(scores, np.float32)[:, None]).ravel()
    best = largest(totals, count)
    best = best[totals[best] > -np.inf]
    parents, tokens = np.divmod(best, log_probs.shape[1])
    return [Continuation(*one) for one in zip(parents.tolist(), tokens.tolist(), totals[best], strict=True)]


@dataclass(frozen=True, slots=True)
class Selected(Generic[End]):
    """The next beams, best first, and what has ended in this step."""

    live: list[Continuation]
    ended: list[tuple[Continuation, End]]


def select(found: Sequence[Continuation], beams: int, end_of: Callable[[Continuation], End | None]) -> Selected[End]:
    """Of continuations, best first: the next `beams` that go on, and those of the first `beams` that end.

    `end_of` says why a continuation ends the text, None where it goes on.
    """
    live: list[Continuation] = []
    ended: list[tuple[Continuation, End]] = []
    for place, one in enumerate(found):
        if len(live) == beams and place >= beams:
            break
        end = end_of(one)
        if end is None:
            if len(live) < beams:
                live.append(one)
        elif place < beams:
            ended.append((one, end))
    return Selected(live, ended)


def normalised(score: np.float32, length: int, penalty: float) -> float:
    """A score over length ** penalty: what texts of different lengths are compared by; `length` tokens answered."""
    return float(score / np.float32(length**penalty))


@dataclass(slots=True)
class Hypotheses(Generic[Text]):
    """The best texts that have ended, best first; of equals the first that came."""

    beams: Beams
    found: list[tuple[float, Text]] = field(default_factory=list)

    @property
    def full(self) -> bool:
        return len(self.found) == self.beams.count

    def add(self, score: float, text: Text) -> None:
        """A text has ended with this score, its length taken into account."""
        place = sum(other >= score for other, _ in self.found)
        self.found.insert(place, (score, text))
        del self.found[self.beams.count :]

    def may_improve(self, best: np.float32, length: int, longest: int) -> bool:
        """Whether the search goes on: the best live beam has `length` of at most `longest` tokens.

        With a length penalty above 0 a beam may gain by going on; only "never" reckons with that.
        """
        if not self.full:
            return True
        if self.beams.early_stopping is True:
            return False
        penalty = self.beams.length_penalty
        reckoned = longest if self.beams.early_stopping == "never" and penalty > 0 else length
        return normalised(best, reckoned, penalty) > self.found[-1][0]
