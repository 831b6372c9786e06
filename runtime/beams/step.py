"""One step of a beam search, as pure functions on arrays; results equal those of transformers' `_beam_search`.

    scores [live] + log_probs [live, vocab]  ──►  the best continuations of all beams together, best first
    those that end the text, of the first N  ──►  hypotheses, of which the N best are kept
    those that do not, up to N               ──►  the next beams

A step looks at (1 + number of end tokens) · N continuations, at least twice N, so that N beams remain if likely texts
end. A continuation that ends the text is dropped unless it is among the first N.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from mxspec.runtime.events import FinishReason
from mxspec.runtime.sampling.settings import Beams
from mxspec.runtime.sampling.shape import Logits, check_peaks
from mxspec.runtime.sampling.truncate import largest

End = TypeVar("End")


@dataclass(frozen=True, slots=True)
class Candidate:
    """Beam `parent` and one more token; `score` is the sum of all log-probabilities of its answer."""

    parent: int
    token: int
    score: np.float32


def log_softmax(logits: Logits) -> Logits:
    """Log-probabilities float32[rows, vocab] of rows of logits; GenerationError for NaN and infinity.

    The result of a row does not depend on other rows: each row is summed separately, in float64.
    """
    peaks = logits.max(axis=1, keepdims=True)
    check_peaks(peaks)
    shifted: Logits = logits - peaks
    sums = np.exp(shifted).astype(np.float64).sum(axis=1, keepdims=True)
    shifted -= np.log(sums).astype(np.float32)
    return shifted


def looked_at(beams: int, ends: int) -> int:
    """Number of continuations that a step looks at, if `ends` different tokens end a text."""
    return max(2, 1 + ends) * beams


def continuations(scores: Sequence[np.float32], log_probs: Logits, count: int) -> list[Candidate]:
    """The `count` best continuations of all beams, best first, ties by beam and token, without those of probability 0.

    log_probs: float32[live, vocab], already shaped; minus infinity for tokens that are not allowed.
    """
    totals = (log_probs + np.array(scores, np.float32)[:, None]).ravel()
    best = largest(totals, count)
    best = best[totals[best] > -np.inf]
    parents, tokens = np.divmod(best, log_probs.shape[1])
    return [Candidate(*one) for one in zip(parents.tolist(), tokens.tolist(), totals[best], strict=True)]


def select(
    found: Sequence[Candidate], beams: int, end_of: Callable[[Candidate], FinishReason | None]
) -> tuple[list[Candidate], list[tuple[Candidate, FinishReason]]]:
    """From continuations, best first, the next `beams` that go on, and those of the first `beams` that end the text.

    `end_of` says why a continuation ends the text; None if it goes on.
    """
    live: list[Candidate] = []
    ended: list[tuple[Candidate, FinishReason]] = []
    for place, one in enumerate(found):
        if len(live) == beams and place >= beams:
            break
        end = end_of(one)
        if end is None:
            if len(live) < beams:
                live.append(one)
        elif place < beams:
            ended.append((one, end))
    return live, ended


def normalised(score: np.float32, length: int, penalty: float) -> float:
    """The score over length ** penalty, which compares texts of different lengths; `length` counts answer tokens."""
    return float(score / np.float32(length**penalty))


@dataclass(slots=True)
class Hypotheses(Generic[End]):
    """The best texts that have ended, best first; of equal scores, the one that ended first."""

    beams: Beams
    found: list[tuple[float, End]] = field(default_factory=list)

    @property
    def full(self) -> bool:
        return len(self.found) == self.beams.count

    def add(self, score: float, text: End) -> None:
        """Add a text that has ended, with its normalised score."""
        place = sum(other >= score for other, _ in self.found)
        self.found.insert(place, (score, text))
        del self.found[self.beams.count :]

    def may_improve(self, best: np.float32, length: int, longest: int) -> bool:
        """Whether the search goes on; the best live beam has `length` of at most `longest` tokens.

        With a length penalty above 0 a beam may gain by going on; only early stopping "never" takes this into account.
        """
        if not self.full:
            return True
        if self.beams.early_stopping is True:
            return False
        penalty = self.beams.length_penalty
        reckoned = longest if self.beams.early_stopping == "never" and penalty > 0 else length
        return normalised(best, reckoned, penalty) > self.found[-1][0]
