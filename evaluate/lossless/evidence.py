"""Tests of the distribution that emitted tokens came from, collected token by token.

At every position the distributions of target and draft are known, p and q. The score of a token is s = p / (p + q), in
whole steps of 1 / 32; tokens that a verifier wrongly accepts from the draft lower the scores. The law of each score is
known, and therefore the law of their sum: the p-value is exact. A second test uses the probability-integral transforms
of the tokens, which are uniform and independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from mxspec.evaluate.lossless.result import SURE, Chance, Equality, Power
from mxspec.evaluate.significance import Probs, lag_tail, rejected_beyond, scipy_stats, sum_of, sum_tail

# --- what a wrong verifier would write at the position of a drafted token ---


def lenient(target: Probs, draft: Probs, lenience: float) -> Probs:
    """Tokens are kept with min(1, target / (lenience · draft)); the others come from the correct residual."""
    kept = np.minimum(draft, target / lenience)
    rest = np.maximum(target - draft, 0.0)
    total = rest.sum()
    written: Probs = kept + (1 - kept.sum()) * (rest / total if total > 0 else target)
    return written


def residual_from_target(target: Probs, draft: Probs) -> Probs:
    """A rejected token is replaced by a draw from the target itself, not from the residual."""
    kept = np.minimum(draft, target)
    written: Probs = kept + (1 - kept.sum()) * target
    return written


def always_accepted(target: Probs, draft: Probs) -> Probs:
    return draft


FAULTS: dict[str, Callable[[Probs, Probs], Probs]] = {
    "lenience 0.5": lambda target, draft: lenient(target, draft, 0.5),
    "lenience 0.9": lambda target, draft: lenient(target, draft, 0.9),
    "residual from the target": residual_from_target,
    "always accepted": always_accepted,
}


# --- evidence ---

LEVELS = 32
LAGS = 4


@dataclass(slots=True)
class Evidence:
    """The tokens of all texts of one way to sample."""

    name: str
    possible: Equality  # counts all tokens, and those that the target cannot have written
    laws: list[Probs] = field(default_factory=list)  # float64[LEVELS + 1] for each position
    broken: dict[str, list[Probs]] = field(default_factory=dict)  # the same laws, with each fault
    scores: list[int] = field(default_factory=list)
    by_rank: list[float] = field(default_factory=list)  # transforms, with the likeliest token first
    by_id: list[list[float]] = field(default_factory=list)  # for each text, transforms with tokens by id

    def begin(self) -> None:
        """Begin another text."""
        self.by_id.append([])

    def add(self, token: int, target: Probs, draft: Probs, drafted: bool, uniform: float) -> bool:
        """Add a token with both models' distributions at its position, float64[vocab]; `uniform` is in [0, 1).

        Returns False if the target cannot have written the token.
        """
        self.possible.compared += 1
        if target[token] == 0:
            self.possible.differences.append(
                f"token {token} after {len(self.by_id[-1])} others of {self.name} has no probability"
            )
            return False
        both = target + draft
        levels = np.rint(LEVELS * np.divide(target, both, out=np.zeros_like(both), where=both > 0)).astype(np.int64)
        law = _law(levels, target)
        self.laws.append(law)
        self.scores.append(int(levels[token]))
        for fault, written in FAULTS.items():
            wrong = _law(levels, written(target, draft)) if drafted else law
            self.broken.setdefault(fault, []).append(wrong)
        own = target[token]
        tied = target == own
        self.by_rank.append(float(target[target > own].sum() + uniform * target[tied].sum()))
        self.by_id[-1].append(float(target[:token].sum() + uniform * own))
        return True

    def chances(self) -> list[Chance]:
        """The tests of these tokens."""
        count = len(self.scores)
        if not count:
            return []
        kstest, law, total = scipy_stats().kstest, sum_of(np.array(self.laws)), sum(self.scores)
        mean, spread = _moments(law)
        p_values = {
            "score": sum_tail(law, total),
            "transform by rank": kstest(self.by_rank, "uniform").pvalue,
            "transform by id": kstest([*chain.from_iterable(self.by_id)], "uniform").pvalue,
            "neighbours": lag_tail(self.by_id, LAGS),
        }
        details = {"score": f"z = {(total - mean) / spread if spread > 1e-4 else 0:+.2f}"}
        return [
            Chance(way=self.name, test=test, compared=count, p_value=p, detail=details.get(test, ""))
            for test, p in p_values.items()
        ]

    def powers(self, level: float) -> list[Power]:
        """The probability that the score, tested at `level`, would have shown each fault."""
        if not self.scores:
            return []
        law = sum_of(np.array(self.laws))
        rejected = rejected_beyond(law, level)
        count = len(self.scores)
        found = []
        for fault, places in self.broken.items():
            wrong = sum_of(np.array(places))
            needed, shows = _needed(law, wrong, level, count), float(wrong[rejected].sum())
            found.append(Power(texts=self.name, fault=fault, probability=shows, tokens=count, tokens_needed=needed))
        return found


def _law(levels: NDArray[np.int64], probs: Probs) -> Probs:
    return np.bincount(levels, probs, LEVELS + 1).astype(np.float64)


def _needed(law: Probs, wrong: Probs, level: float, count: int) -> int | None:
    """The number of such tokens after which a fault shows with probability 0.95, by the normal approximation."""
    (mean, spread), (shifted, wrong_spread) = _moments(law), _moments(wrong)
    if abs(shifted - mean) < 1e-9 * count:
        return None
    both_tails, one_tail = map(float, scipy_stats().norm.isf([level / 2, 1 - SURE]))
    roots = (both_tails * spread + one_tail * wrong_spread) / abs(shifted - mean)
    return math.ceil(count * roots**2)


def _moments(law: Probs) -> tuple[float, float]:
    totals = np.arange(len(law))
    mean = float(law @ totals)
    return mean, math.sqrt(max(float(law @ (totals - mean) ** 2), 0.0))
